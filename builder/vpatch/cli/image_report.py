"""What the commands for images have to say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vpatch.cli.output import Report, tell
from vpatch.cli.output import as_json as as_object

if TYPE_CHECKING:
    from vpatch.image.model import Tested
    from vpatch.image.order import Built


def build_report(built: Built) -> Report:
    """Report a build."""
    read = [f"read {built.extra['bytes_read'] / 1e6:.1f} MB of the base"] if "bytes_read" in built.extra else []
    for line in (*read, *built.notes, *lines(built.tests)):
        tell(line)
    layer = built.layer
    extra = {
        "base": {"ref": built.base.ref, "digest": built.base.digest or built.base.id},
        "image": {"ref": built.image, "digest": built.image.rpartition("@")[2]} if built.image else None,
        "layer": layer and {"diff_id": layer.diff_id, "bytes": len(layer.blob), "files": list(layer.files)},
        "tests": as_json(built.tests),
        "notes": list(built.notes),
        **built.extra,
    }
    return Report(
        "build",
        built.root,
        built.vllm,
        built.verdicts,
        problems=built.problems,
        extra=extra,
        lines=[built.image] if built.image else [],
        failed=failed(built.tests),
    )


def failed(tests: Sequence[Tested]) -> bool:
    """Tell whether a test failed; one that was not run did not."""
    return any(test.ok is False for test in tests)


def as_json(tests: Sequence[Tested]) -> list[dict[str, object]]:
    """Give outcomes as the contract has them; `ok` is null for a test that was not run."""
    return [{"name": test.name, "ok": test.ok, "because": test.because} for test in tests]


def lines(tests: Sequence[Tested]) -> list[str]:
    """Give outcomes for people."""
    words = {True: "passed", False: "FAILED", None: "not run"}
    return [f"{test.name}: {words[test.ok]}: {test.because}" for test in tests]


def together(reports: Sequence[Report]) -> Report:
    """Make one report of several builds: `builds` has what each says."""
    builds = [json.loads(as_object(report)) for report in reports]
    return Report(
        "build",
        problems=[problem for report in reports for problem in report.problems],
        extra={"builds": builds},
        lines=[line for report in reports for line in report.lines or ()],
        failed=any(report.failed for report in reports),
    )

"""One digest, one code: it tells releases apart, and is the same wherever the same release runs the same overlays."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import vpatch.run.planning
from vpatch.core.catalogue import Selection, discover
from vpatch.guest.vpatch_receipt import combined, parsed, release_of, written_to
from vpatch.run.launch import planned
from vpatch.tree.apply import apply
from vpatch.tree.locate import locate
from vpatch.tree.write_plan import SitePackages

from tests.conftest import Trees
from tests.engines import engine_of
from tests.tiers import deep

PREFIX = Selection(only=("hybrid-mtp-prefix",))
QUICK = ("hybrid-mtp-prefix", "receipt", "turboquant-skip-list")  # to plan
SOME = ("hybrid-mtp-counts", "hybrid-mtp-prefix", "hybrid-mtp-states", "receipt", "turboquant-skip-list")
UNRELATED = "vllm/version.py"


@pytest.fixture(autouse=True)
def _shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vpatch.run.planning, "Engine", engine_of)


def digest(root: Path, selection: Selection = PREFIX) -> str:
    return planned(locate(root), selection).digest


def put(root: Path, selection: Selection) -> None:
    chosen = selection.among(discover())
    apply(SitePackages(locate(root)), chosen, engine_of(chosen))


def record_of(root: Path) -> Path:
    (record,) = root.glob("*.dist-info/RECORD")
    return record


def test_two_releases_with_the_same_change_have_two_digests(slim: Trees) -> None:
    """The overlay makes the same of the same file in both."""
    assert digest(slim("0.20.2")) != digest(slim("0.21.0"))


Changed = Callable[[Path], Path]


def other_version(root: Path) -> Path:
    """As of the wheel for another CUDA."""
    record_of(root).parent.rename(root / "vllm-0.20.2+cu129.dist-info")
    return root


def rows(change: Callable[[list[str]], list[str]]) -> Changed:
    def rewritten(root: Path) -> Path:
        record = record_of(root)
        lines = record.read_text().splitlines()
        record.unlink()  # a link to the release's
        record.write_bytes("\n".join(change(lines)).encode())
        return root

    return rewritten


OTHER_HASH = f"{UNRELATED},sha256=0,1"
# An installer's notes, scripts and bytecode differ between machines.
INSTALLED = ["../../../bin/vllm,sha256=1,2", "vllm-0.20.2.dist-info/INSTALLER,sha256=1,2", '"vllm/a,b.txt",,']
OTHERS: dict[str, Changed] = {
    "another version": other_version,
    "another module": rows(lambda old: [OTHER_HASH if row.startswith(f"{UNRELATED},") else row for row in old]),
    "one module more": rows(lambda old: [*old, "vllm/more.py,sha256=0,1"]),
    "one module less": rows(lambda old: [row for row in old if not row.startswith(f"{UNRELATED},")]),
}
SAME: dict[str, Changed] = {
    "another place": lambda root: shutil.copytree(root, root.with_name("elsewhere")),
    "another order": rows(lambda old: sorted(old, reverse=True)),
    "another newline": rows(lambda old: [f"{row}\r" for row in old]),
    "an installer's rows": rows(lambda old: [*INSTALLED, *old, "vllm/__pycache__/version.cpython-312.pyc,,"]),
}


@pytest.mark.parametrize("change", [*OTHERS, *SAME])
def test_another_release_has_another_digest_and_another_machine_has_not(change: str, linked: Trees) -> None:
    root = linked("0.20.2")
    before = digest(root)
    changed = {**OTHERS, **SAME}[change](root)

    assert (digest(changed) == before) == (change in SAME)


@pytest.mark.parametrize("seed", [0, *(deep(seed) for seed in range(1, 4))])
def test_however_overlays_came_there_the_digest_is_that_of_the_result(seed: int, linked: Trees) -> None:
    """Applied, run, or some of each; and as a receipt in the applied vLLM has it."""
    rng = random.Random(seed)  # noqa: S311 - the same on every run
    root = linked("0.20.2")
    some = SOME if seed else QUICK
    everything, first = Selection(only=some), Selection(only=tuple(rng.sample(some, rng.randrange(1, len(some)))))
    expected = digest(root, everything)

    put(root, first)
    partly = digest(root, everything)
    assert written_to(root)["digest"] == digest(root, first)
    put(root, everything)

    assert {partly, digest(root, everything), written_to(root)["digest"]} == {expected}
    assert parsed(json.dumps(written_to(root)).encode())["digest"] == expected


def test_without_a_record_it_is_that_of_the_changes(linked: Trees) -> None:
    """As of a source checkout: nothing lists what its other modules have to be."""
    root, other = linked("0.20.2"), linked("0.21.0", "other")
    for tree in (root, other):
        shutil.rmtree(record_of(tree).parent)

    content = planned(locate(root), PREFIX)
    assert content.release == {"info": "", "modules": ""}
    assert content.digest == combined(content.hashes, content.release)
    assert digest(other) == content.digest


def test_two_notes_of_two_releases_are_no_receipt(linked: Trees) -> None:
    root = linked("0.20.2")
    put(root, PREFIX)
    shutil.copytree(record_of(root).parent, root / "vllm-0.20.1.dist-info")

    with pytest.raises(ValueError, match=r"more than one dist-info .*: vllm-0\.20\.1\.dist-info, vllm-0\.20\.2\."):
        written_to(root)


def test_rows_of_changed_modules_do_not_count() -> None:
    record = b"vllm/a.py,sha256=1,1\nvllm/b.py,sha256=2,1\n"

    assert release_of("", record, ["vllm/b.py"]) == release_of("", b"vllm/a.py,sha256=1,1", [])
    assert release_of("", record, ["vllm/b.py"]) != release_of("", record, [])
    assert release_of("", record, ["vllm/a.py", "vllm/b.py"])["modules"] == ""

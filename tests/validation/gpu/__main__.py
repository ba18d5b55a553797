"""`python -m tests.validation.gpu [SCENARIO...]`: run the scenarios on this GPU and check the claims."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.validation.gpu import drive, report, session
from tests.validation.gpu.claims import verdicts
from tests.validation.gpu.evidence import BROKEN, gather
from tests.validation.gpu.scenarios import SCENARIOS


def main(arguments: list[str]) -> int:
    """Return the exit status: 1 if a claim is broken or a probe was not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.validation.gpu", description=__doc__)
    parser.add_argument("scenario", nargs="*", choices=[*SCENARIOS, []], help=f"default: all of {', '.join(SCENARIOS)}")
    parser.add_argument("--deadline", type=float, default=float("inf"), metavar="S", help="seconds that it may take")
    parser.add_argument("--out", type=Path, default=session.WORK / "out", metavar="DIR", help="for results and logs")
    parser.add_argument("--upstream", type=Path, metavar="DIR", help="upstream's test files, for that scenario")
    parser.add_argument("--commit", default="", help="where this is no git checkout: the commit it was made from")
    asked = parser.parse_args(arguments)
    if not asked.upstream and (lacking := [name for name in asked.scenario if session.runs_upstream(name)]):
        parser.error(f"{', '.join(lacking)}: --upstream DIR is missing")
    names = asked.scenario or session.default_scenarios(asked.upstream)
    try:
        file = session.execute(
            names, asked.out, deadline_s=asked.deadline, upstream=asked.upstream, revision=asked.commit,
            tell=lambda one: _print(f"{one['probe']}, {one['tree']}: {one['error'] or 'ok'} ({one.get('s', 0)} s)"),
        )  # fmt: skip
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    run = json.loads(file.read_text())
    found = verdicts(gather([run]))
    _print(*report.claims(found), "", str(file))
    unrun = [f"{one['probe']}, {one['tree']}" for one in run["results"] if str(one["error"]).startswith(drive.NOT_RUN)]
    if unrun:
        _print(f"not run: {'; '.join(unrun)}")
    return 1 if unrun or any(verdict.state == BROKEN for verdict in found) else 0


def _print(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

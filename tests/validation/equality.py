"""Compare what two commits of vpatch print and write, over every vLLM release.

    python -m tests.validation.equality OLD_COMMIT [NEW_COMMIT]

Each command runs as a process that imports one commit's sources. On equal copies of a release, each selection of
overlays is applied, applied again and reverted; after every command, every file of the tree is compared. Only texts
under the key `because` may differ: any other difference makes the exit code 1.

A full run takes half an hour of one core for each commit. With --cache, what a commit did is recorded once.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.image.servers import ENGINE
from tests.needs import lacking
from tests.paths import ROOT
from tests.releases import RELEASES
from tests.validation import recording
from tests.validation.recording import Engine, Program, Record

PARTS = ("catalogue", "plan", "matrix", "build", "trees")
LINES = 20  # printed of each part and release
WIDTH = 100  # characters of each value
FITTING = ("default: ", "matrix ", "registry: ")  # prefixes of the commands that succeed on every release

_ABSENT = object()
_SHA256 = re.compile(r"\b[0-9a-f]{64}\b")
_HEADER = re.compile(r"^(?:---|\+\+\+) .*", re.MULTILINE)


@dataclass(frozen=True)
class Difference:
    """One value that differs: the command, the JSON path in what is recorded of it, and both values."""

    command: str
    path: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.command}: {self.path}: {self.old} -> {self.new}"

    @property
    def is_reason(self) -> bool:
        """Whether it is in a text that may differ."""
        return self.path.endswith(".because")


@dataclass(frozen=True)
class Outcome:
    """What the comparison of a part, or of a release, found."""

    unit: str
    commands: int
    failures: Sequence[str]
    reasons: int

    def lines(self) -> Iterator[str]:
        """Yield what to print as soon as it is known."""
        yield from (f"{self.unit}: {line}" for line in self.failures[:LINES])
        if len(self.failures) > LINES:
            yield f"{self.unit}: {len(self.failures) - LINES} more"


@dataclass(frozen=True)
class Side:
    """One of the two commits; `records` is the folder for what it did (None: keep nothing)."""

    program: Program
    records: Path | None
    versions: Sequence[str]
    engine: Engine | None

    def record(self, unit: str) -> Record:
        """Return the record of a part or release, from the folder if it is there."""
        if not self.records:
            return self._run(unit)
        whole = unit != "matrix" or self.versions == RELEASES
        file = self.records / f"{unit if whole else '-'.join([unit, *self.versions])}.json"
        if not file.exists():
            record = self._run(unit)
            self.records.mkdir(parents=True, exist_ok=True)
            file.with_suffix(".new").write_text(json.dumps(record))
            file.with_suffix(".new").rename(file)
        kept: Record = json.loads(file.read_text())
        return kept

    def _run(self, unit: str) -> Record:
        match unit:
            case "catalogue":
                return recording.catalogue(self.program)
            case "plan":
                return recording.plan(self.program)
            case "matrix":
                return recording.matrix(self.program, self.versions)
            case "build":
                assert self.engine
                return recording.build(self.program, self.engine)
            case version:
                return recording.release(self.program, version)


def compare(old: Record, new: Record, *, syntax: bool) -> list[Difference]:
    """Compare two records; with `syntax`, the Python files that were written by their syntax trees."""
    if syntax:
        old, new = _by_syntax(old), _by_syntax(new)
    return [
        Difference(command, *values)
        for command in {**old, **new}
        for values in _differ(old.get(command, _ABSENT), new.get(command, _ABSENT), "$")
    ]


def broken_promises(record: Record) -> Iterator[str]:
    """Yield what is wrong with one record by itself, so that two equal failures do not pass for equality."""
    for command, step in record.items():
        if command.startswith(FITTING) and step["exit"]:
            yield f"{command}: exits with {step['exit']}"
        first = record.get(command.removesuffix(" (again)"), step)
        if step.get("files") != first.get("files"):
            yield f"{command}: writes"
        if command.endswith((": revert --json", recording.COPY)) and step["files"]:
            yield f"{command}: leaves changes in {', '.join(step['files'])}"


def _by_syntax(record: Record) -> Record:
    """Drop what follows from the bytes of Python files: hashes, the text of diffs, the size of a layer."""
    found: Record = json.loads(_SHA256.sub("...", json.dumps(record)))
    for command, step in found.items():
        if command.endswith(": diff"):
            step["out"] = _HEADER.findall(step["out"])
        if command.endswith(": build --json") and not step["exit"]:
            del step["out"]["layer"]["bytes"]
            step["out"].pop("bytes_sent", None)
            step.get("image", {}).pop("size", None)
    return found


def _differ(old: Any, new: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _differ(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        for number, (one, other) in enumerate(zip_longest(old, new, fillvalue=_ABSENT)):
            yield from _differ(one, other, f"{path}[{number}]")
    elif isinstance(old, str) and isinstance(new, str) and old != new:
        line, before, after = _from_first_difference(old, new)
        yield f"{path}, line {line}" if line > 1 else path, _shown(before), _shown(after)
    elif old != new or type(old) is not type(new):
        yield path, _shown(old), _shown(new)


def _from_first_difference(old: str, new: str) -> tuple[int, str, str]:
    """Return the number of the first line that differs, and both texts from shortly before the difference."""
    at = next(at for at, (one, other) in enumerate(zip_longest(old, new)) if one != other)
    start = max(0, at - WIDTH // 3)
    return old.count("\n", 0, at) + 1, old[start:], new[start:]


def _shown(value: Any) -> str:
    text = "(absent)" if value is _ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}..."


def _side(commit: str | None, work: Path, cache: Path | None, versions: Sequence[str], engine: Engine | None) -> Side:
    if commit is None:
        return Side(Program(None, work), None, versions, engine)
    git = ["git", "-C", str(ROOT), "rev-parse", "--verify", f"{commit}^{{commit}}"]
    full = subprocess.run(git, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    return Side(Program(full, work), cache / full if cache else None, versions, engine)


def _compared(old: Side, new: Side, unit: str, *, syntax: bool) -> Outcome:
    before, after = old.record(unit), new.record(unit)
    found = compare(before, after, syntax=syntax and unit not in ("catalogue", "plan", "matrix"))
    failures = [f"{name}: {line}" for name, one in (("old", before), ("new", after)) for line in broken_promises(one)]
    failures += [str(difference) for difference in found if not difference.is_reason]
    return Outcome(unit, len({**before, **after}), failures, sum(difference.is_reason for difference in found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.validation.equality", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("old", metavar="OLD_COMMIT")
    parser.add_argument("new", metavar="NEW_COMMIT", nargs="?", help="default: the working tree")
    parser.add_argument("--vllm", metavar="V", action="append", choices=RELEASES, help="only this release (repeatable)")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part (repeatable)")
    parser.add_argument("--syntax", action="store_true", help="ignore comments and docstrings in what is written")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep there what a commit did, and use what is kept")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="parts and releases at once (default: 1)")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Compare two commits, print what differs, and return the exit status."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    parts = [part for part in PARTS if part in (asked.only or PARTS)]
    versions = tuple(version for version in RELEASES if version in (asked.vllm or RELEASES))
    if "build" in parts and (lacks := lacking(*ENGINE)):
        parser.error(f"needs {lacks}; name the parts other than `build` with --only")
    units = [unit for part in parts for unit in (versions if part == "trees" else (part,))]
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vpatch-equality-")))
        engine = stack.enter_context(recording.engine_with_base(work)) if "build" in parts else None
        old = _side(asked.old, work / "old", asked.cache, versions, engine)
        new = _side(asked.new, work / "new", asked.cache, versions, engine)
        _print("", "commands", "differences", "`because`")
        sums = [0, 0, 0]
        with ThreadPoolExecutor(asked.jobs) as pool:
            for outcome in pool.map(lambda unit: _compared(old, new, unit, syntax=asked.syntax), units):
                counts = (outcome.commands, len(outcome.failures), outcome.reasons)
                _print(outcome.unit, *counts)
                sys.stdout.writelines(f"{line}\n" for line in outcome.lines())
                sums = [one + other for one, other in zip(sums, counts, strict=True)]
    _print("all", *sums)
    return int(sums[1] > 0)


def _print(unit: str, *columns: str | int) -> None:
    sys.stdout.write("{:<10}{:>10}{:>13}{:>11}\n".format(unit, *columns))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

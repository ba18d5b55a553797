"""Judge patches on all releases: on those that contain the change, and where it can be made.

    python -m benchmarks.carried [--cells N] [--seed N] [--rows contained first results]

A patch is what leads from a release A to A with some lines of B in one function of a module: a cell of
`benchmarks.porting`.

contained: B and each later release with the module contain the change. Counted is how often vpatch reports the patch as
merged, and how often `git apply -R --check` succeeds. If vpatch reports it as pending, upstream must have taken the
change back: the lines before it are there again.

first: the same for B alone.

results: on each release but A where the patch is pending, the result must compile, and pyflakes must say no more of it
than of the release, but for what it says of the change on A. If `git apply` has a result, it must be the same program.

The exit code is 1 if one of these is not so.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

from pyflakes.checker import Checker
from vpatch.core import nesting
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.core.patch_file import overlay_of
from vpatch.core.verdict import State
from vpatch.porting.program import difference
from vpatch.porting.proof import Unproven
from vpatch.tree.verify import compiles

from benchmarks.porting import Cell, cells_of_options, options, patch_of, ran, reader, write_diff
from tests.releases import RELEASES, tree_of

ROWS = ("contained", "first", "results")
MERGED, REVERSED = "vpatch: merged", "git apply -R --check: succeeds"


def main() -> None:
    """Measure, and print the rows."""
    parser = options(__doc__, 60)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    arguments = parser.parse_args()
    counts: dict[str, Counter[str]] = {row: Counter() for row in arguments.rows}
    wrong = False
    for cell in (cells := cells_of_options(arguments)):
        shown: dict[tuple[str, str], list[str]] = {}
        for row, what, is_wrong, release in judged(cell):
            if row in counts:
                counts[row][what] += 1
                wrong |= is_wrong
                if release:
                    shown.setdefault((row, what), []).append(release)
        for (row, what), releases in shown.items():
            print(f"{row}: {what}: {cell.file}, {' -> '.join(cell.releases)}, on", *releases, flush=True)
    for row, found in counts.items():
        print(f"{row}, {len(cells)} patches:", ", ".join(f"{what} {count}" for what, count in sorted(found.items())))
        if row != "results":
            print(f"{row}: merged {found[MERGED] / max(found[REVERSED], 1):.2f} times as often as git apply -R --check")
    raise SystemExit(wrong)


Finding = tuple[str, str, bool, str]
"""A row, what counts in it, whether that is wrong, and the release to print it of, "" for none."""


def judged(cell: Cell) -> Iterator[Finding]:
    """Judge all releases by a cell's patch."""
    try:
        engine = Engine([Catalogued("fix", overlay_of(patch_of(cell)), "")])
    except Unproven as error:
        yield from ((row, f"no patch file ({error})", False, "") for row in ROWS)
        return
    own = complaints(cell.after) - complaints(cell.before)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        write_diff(at, cell)
        for release in (one for one in RELEASES if one != cell.releases[0] and (tree_of(one) / cell.file).is_file()):
            text = (tree_of(release) / cell.file).read_text()
            made = engine.plan(reader(release, cell.file, text))
            state = made.before[0].state
            if RELEASES.index(release) >= RELEASES.index(cell.releases[1]):
                found = list(contained(cell, release, text, state, at))
                yield from (("contained", *one) for one in found)
                if release == cell.releases[1]:
                    yield from (("first", *one[:2], "") for one in found)
            if state is State.PENDING:
                yield from results(release, made.files[cell.file].decode(), text, own, at)


def contained(cell: Cell, release: str, text: str, state: State, at: Path) -> Iterator[tuple[str, bool, str]]:
    """Yield what vpatch and git say of a release that contains the change, as findings without their row."""
    yield "releases", False, ""
    if ran(at, text, "git", "apply", "-R", "--check", "change.diff") is not None:
        yield REVERSED, False, ""
        if state is not State.MERGED:
            yield "git apply -R --check: succeeds alone", False, release
    if state is State.PENDING:
        back = taken_back(cell, text)
        yield f"vpatch: pending, {'' if back else 'not '}taken back", not back, release
    else:
        yield f"vpatch: {state}", False, ""


def taken_back(cell: Cell, text: str) -> bool:
    """Whether a module has again the lines that a change took out, and where it took none, those around what came."""
    before, after, now = (code_lines(one) for one in (cell.before, cell.after, text))
    joined = "\n".join(["", *now, ""])
    changes = (
        before[i1:i2] or before[max(0, i1 - 1) : i1 + 1]
        for tag, i1, i2, _, _ in SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        if tag != "equal"
    )
    return all("\n".join(["", *lines, ""]) in joined for lines in changes)


def code_lines(text: str) -> list[str]:
    """Return the lines with code, without indentation."""
    return [line for row in text.splitlines() if (line := row.strip()) and not line.startswith("#")]


def results(release: str, result: str, text: str, own: Counter[str], at: Path) -> Iterator[Finding]:
    """Yield what is found in the result of a patch.

    Args:
        release: the release.
        result: its module with the patch.
        text: its module without it.
        own: what pyflakes says of the patch on its base.
        at: where the patch is as a diff.
    """
    yield "results", "pending", False, ""
    if problems := compiles("module.py", result.encode()):
        yield "results", f"does not compile ({problems[0].cause})", True, release
        return
    for said in complaints(result) - complaints(text) - own:
        yield "results", f"new for pyflakes ({said})", True, release
    lines = ran(at, text, "git", "apply", "change.diff")
    if lines is not None:
        odd = unlike(result, lines, text)
        yield "results", f"not as by git apply ({odd})" if odd else "as by git apply", bool(odd), odd and release


def unlike(result: str, lines: str, text: str) -> str:
    """Return in what two results of a module differ; "" if they are one program."""
    try:
        return difference(result, lines, text)
    except (SyntaxError, nesting.Unparsable) as error:
        return f"what git makes is not valid Python: {error}"


def complaints(text: str) -> Counter[str]:
    """Count what pyflakes says of a module, without line numbers."""
    return Counter(one.message % one.message_args for one in Checker(nesting.parse(text)).messages)


if __name__ == "__main__":
    main()

"""Count the drafts of `vpatch rebase`, where the right result is known, and for releases that are older than a change.

    python -m benchmarks.drafts [--cells N] [--seed N]

The cells are those of `benchmarks.porting`. Of each, the patch file of the change is carried to B without it, where the
right result is known; to B itself, where nothing may be changed again; and to a release three before A. Counted are the
cells on which the patch file drifts. The exit code is 1 if a draft is wrong or changes something again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.core.patch_file import PatchFile, overlay_of
from vpatch.core.verdict import State
from vpatch.porting.bases import PatchBase
from vpatch.porting.proof import Unproven
from vpatch.porting.rebasing import draft

from benchmarks.porting import Cell, cells_of_options, options, outcome, patch_of, reader
from tests.releases import RELEASES, tree_of


def main() -> None:
    """Measure, and print how many drafts there are, and how they were made."""
    cells = cells_of_options(options(__doc__, 200).parse_args())
    found = Counter(one for cell in cells for one in drafts(cell))
    for (where, what), count in sorted(found.items()):
        print(f"{where:26} {count:4}  {what}")
    raise SystemExit(any(what.startswith(("wrong", "changed again")) for _, what in found))


def drafts(cell: Cell) -> Iterator[tuple[str, str]]:
    """Yield, for each place to which the change of a cell does not fit, what came of a draft."""
    old = reader(cell.releases[0], cell.file, cell.before)
    base = PatchBase(cell.releases[0], cell.releases[0], old)
    try:
        patch = patch_of(cell)
    except Unproven:
        return
    back = RELEASES[max(RELEASES.index(base.version) - 3, 0)]
    older = (tree_of(back) / cell.file).read_text() if (tree_of(back) / cell.file).is_file() else None
    targets = {"without the change": cell.target, "with the change": cell.truth, "three releases back": older}
    for where, text in targets.items():
        version = back if where.endswith("back") else cell.releases[1]
        if text is None or (version == base.version and where.endswith("back")):
            continue
        target = PatchBase(version, version, reader(version, cell.file, text))
        if state(patch, target) is State.DRIFTED:
            yield where, drafted(patch, base, target, cell, where)


def state(patch: PatchFile, target: PatchBase) -> State:
    """Return the state of a patch file on a vLLM."""
    (found,) = Engine([Catalogued("fix", overlay_of(patch), "")]).status(target.read)
    return found.state


def drafted(patch: PatchFile, base: PatchBase, target: PatchBase, cell: Cell, where: str) -> str:
    """Return what came of a draft, and how it was made."""
    made = draft("fix", patch, base, target)
    if made.patch is None:
        return "no draft"
    if where == "with the change":
        return f"changed again, by {made.how}"
    if where != "without the change":
        return f"a draft, by {made.how}"
    result = Engine([Catalogued("fix", overlay_of(made.patch), "")]).plan(target.read)
    return f"{outcome(result.files[cell.file].decode(), cell)}, by {made.how}"


if __name__ == "__main__":
    main()

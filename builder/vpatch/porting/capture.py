"""What was done to an installed vLLM: its files compared with the ones that were installed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vpatch.core import nesting
from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine
from vpatch.core.marks import without_marks
from vpatch.core.overlay import COMPANIONS, DATA, MODULE, Catalogued
from vpatch.core.patch_file import CONTROL, SUFFIX
from vpatch.core.verdict import State
from vpatch.errors import Failure, Problem, naming, raise_all, shell
from vpatch.foreign import CODE_BYTES
from vpatch.manifest import sha256
from vpatch.porting.bases import line_feeds
from vpatch.porting.originals import FAILED, Originals, content_of, files_below, unreadable
from vpatch.porting.program import text_in
from vpatch.porting.proof import ModuleVersions
from vpatch.tree.beneath import Touched, beneath
from vpatch.tree.copies import known_in
from vpatch.tree.locate import Tree
from vpatch.tree.upgrade import marks, pristine
from vpatch.tree.write_plan import SitePackages
from vpatch.wrapping import from_here

_OTHER = re.compile(r"vllm/(?:(?!__pycache__/)\w[^/]*/)*[^/]+(?<!\.py)")
_BACKUP = re.compile(r"\.(?:orig|bak|old|save|rej|log)$")  # what tools leave beside a file that they change


@dataclass(frozen=True)
class Capture:
    """What was done to a vLLM, besides what vpatch applied.

    Attributes:
        changes: the modules that changed, even if they are still the same program, the data files that changed, and
            both kinds that came.
        base: the bytes of what changed, before.
        missing: the modules that went.
        data: the files that changed and that no patch file can have, or whose originals are not at hand; those above
            16 MiB are compared by their sizes.
        notes: which changes were made on top of overlays.
        beneath: these overlays.
        on_top: the modules with these changes as they stand, without marks.
        undone: the files that `vpatch revert --force` restores as they were installed.
    """

    changes: tuple[ModuleVersions, ...]
    base: Mapping[str, bytes]
    missing: tuple[str, ...]
    data: tuple[str, ...]
    notes: tuple[str, ...]
    beneath: tuple[Catalogued, ...] = ()
    on_top: Mapping[str, bytes] = field(default_factory=dict)
    undone: Collection[str] = ()

    @property
    def added(self) -> tuple[str, ...]:
        """The modules and data files that came."""
        return tuple(change.path for change in self.changes if change.before is None)


def capture(tree: Tree, originals: Originals) -> Capture:
    """Compare a vLLM with its originals; what vpatch applied does not count.

    A module that vpatch changed is what it was before, unless it was edited since; then it is compared with what
    the overlays make of its original, and the edit is made on the original.

    Raises:
        Failure: an original cannot be read, or a module cannot be decoded; or what an overlay inserted was edited.
    """
    store = SitePackages(tree)
    patched = {path: data for path, data in store.originals.items() if data is not None}
    modules = [path for path in originals.paths if MODULE.fullmatch(path) and not path.startswith(COMPANIONS)]
    others = [*_others(tree, originals)]
    texts = [path for path in others if _is_text(path, tree)]
    listed = sorted([*modules, *texts])
    now = {path: data for path in listed if (data := content_of(tree, path)) is not None}
    ours = {path: data for path, data in patched.items() if path in now and store.kept.wrote(path, now[path])}
    found = {path: data for path, data in (now | ours).items() if not originals.has(path, data)}
    kept = {path: data for path, data in patched.items() if path in found and originals.has(path, data)}
    base = {**kept, **originals.read(sorted(found.keys() - kept.keys()))}
    found = {path: data for path, data in found.items() if path in base}  # data that no folder of originals has
    edited = {path: base[path] for path in sorted(found) if path in patched and path not in ours}
    overlays, made = _overlaid(store, edited) if edited else ((), {})
    on_top = {path: without_marks(found[path]) for path in made}
    found |= _beneath(tree, overlays, edited, made, found)
    notes = [f"{path}: changed on top of {', '.join(_of(overlays, path))}" for path in on_top]
    new = {*files_below(tree)}.difference(originals.paths, store.kept.added)
    came = {path: content_of(tree, path) or b"" for path in sorted(new) if _is_new(path, tree)}
    notes += [
        f"{path}: vpatch added it, and it was edited since, which is not captured"
        for path in sorted(store.kept.added)
        if store.kept.is_edited(path, content_of(tree, path))
    ]
    return Capture(
        changes=tuple(_texts(base, found | came)),
        base={**patched, **base},
        missing=tuple(path for path in listed if path not in now),
        data=tuple(path for path in others if path not in texts or path not in {*base, *ours}),
        notes=tuple(notes),
        beneath=overlays,
        on_top=on_top,
        undone=kept.keys(),
    )


def _overlaid(store: SitePackages, originals: Mapping[str, bytes]) -> tuple[tuple[Catalogued, ...], dict[str, bytes]]:
    """Return the overlays that changed modules which were edited since, and what they make of these.

    Raises:
        Failure: these are not the overlays that were applied.
    """
    here = marks(store)
    known = (item for item in known_in(store.tree, store.read, discover()) if item.id in here)
    items = [item for item in known if not originals.keys().isdisjoint(item.overlay.files)]
    engine = Engine(items)
    made = engine.plan(lambda file: originals[file] if file in originals else pristine(store, file)).files
    wrong = [path for path in originals if sha256(made.get(path, b"")) not in store.kept.hashes(path)]
    # What was applied after the edit is in no hash; then each overlay has to be whole in what is there.
    whole = made.keys() >= originals.keys() and all(one.state is State.APPLIED for one in engine.status(store.read))
    if wrong and not whole:
        cause = "edited after vpatch, and other overlays are installed than vpatch applied"
        hint = "install the vpatch, and the packages of overlays, that applied them"
        raise Failure(*(Problem(FAILED, path, cause, hint=hint) for path in wrong))
    return tuple(items), {path: made.get(path, data) for path, data in originals.items()}


def _of(overlays: Iterable[Catalogued], path: str) -> list[str]:
    return [item.id for item in overlays if path in item.overlay.files]


def _beneath(
    tree: Tree,
    overlays: Sequence[Catalogued],
    originals: Mapping[str, bytes],
    made: Mapping[str, bytes],
    found: Mapping[str, bytes],
) -> dict[str, bytes]:
    """Return the originals of modules that were edited on top of overlays, each with the edit.

    Raises:
        Failure: edits change what overlays inserted.
    """
    edited, refused = dict[str, bytes](), list[tuple[str, Touched]]()
    for path, data in made.items():
        edited[path], touched = beneath(originals[path], data, found[path])
        refused += [(path, one) for one in touched]
    items, alone = {item.id: item for item in overlays}, len(dict(refused)) == 1
    problems = []
    for path, one in refused:
        names = one.overlays or _of(overlays, path)
        cause = f"line {one.line}: it changes code of {' and '.join(names)}"
        hint = _instead(tree, [items[name] for name in names if name in items], alone=alone)
        problems.append(Problem(FAILED, path, cause, hint=hint))
    raise_all(problems)
    return edited


def _instead(tree: Tree, owners: Sequence[Catalogued], *, alone: bool) -> str:
    """Return what to do about an edit of the code of overlays, which is the only one or not.

    A patch file has no address for it. Beside another edit, the overlays cannot be reverted by their names.
    """
    apply = shell("vpatch", "apply", from_here(tree.root))
    if shipped := " and ".join(dict.fromkeys(item.origin for item in owners if item.point is not None)):
        revert = shell("vpatch", "revert", "--force", from_here(tree.root))
        diff = f"keep it as a diff, which {revert} writes, with the commands that make it again"
        return f"that belongs to {shipped}, so no patch file can have it: undo it, or {diff}"
    files = " and ".join(f"{item.id}{SUFFIX}" for item in owners)
    ids = [word for item in owners if alone for word in ("--overlay", item.id)]
    revert = shell("vpatch", "revert", "--force", *ids, from_here(tree.root))
    gone = f"{revert} discards it here, with what else was edited there"
    return f"make it in {files} instead: {gone}, and {apply}, with its options as before, applies {files} anew"


def _texts(base: Mapping[str, bytes], found: Mapping[str, bytes]) -> Iterator[ModuleVersions]:
    """Yield modules before and after, with lines that end with line feeds alone, as Python reads them."""
    problems = []
    for path in sorted(found):
        try:
            before = _text(path, base[path]) if path in base else None
            yield ModuleVersions(path, before, _text(path, found[path]))
        except (SyntaxError, ValueError, nesting.Unparsable) as error:
            problems.append(unreadable(path, error))
    raise_all(problems)


def _text(path: str, data: bytes) -> str:
    return line_feeds(path, text_in(path, data))


def _is_new(path: str, tree: Tree) -> bool:
    """Whether a file that came is a module, or data that a patch file can have."""
    if MODULE.fullmatch(path):
        return not path.startswith(COMPANIONS)
    return not _BACKUP.search(path) and _is_text(path, tree)


def _is_text(path: str, tree: Tree) -> bool:
    """Whether a file is data that a patch file can have."""
    if not DATA.fullmatch(path):
        return False
    try:
        return CONTROL.search(text_in(path, content_of(tree, path) or b"")) is None
    except nesting.Unparsable:
        return False


def _others(tree: Tree, originals: Originals) -> Iterator[str]:
    """Yield the files that changed and are no modules."""
    for path in sorted(filter(_OTHER.fullmatch, originals.paths)):
        with naming("cannot read", path):
            try:
                size = (tree.root / path).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                continue
            known = originals.size(path)
        if known not in (-1, size) or (
            -1 < known <= CODE_BYTES and not originals.has(path, content_of(tree, path) or b"")
        ):
            yield path

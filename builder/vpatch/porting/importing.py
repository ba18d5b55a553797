"""Make patch files of patches that people carry, each proven on the vLLM that it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from vpatch.core.patch_file import PatchFile
from vpatch.errors import Failure, Problem, collecting, did_you_mean, raise_all
from vpatch.foreign import CODE_BYTES, read_regular
from vpatch.porting.bases import FAILED, PatchBase, decoded, fitting, modules_of, text_of
from vpatch.porting.diffs import Carried
from vpatch.porting.fitting import Misfit, patched
from vpatch.porting.letters import name_of
from vpatch.porting.proof import ModuleVersions, Unproven, patch_file
from vpatch.porting.upstreams import own

_MOST = 3  # modules that a question names


@dataclass(frozen=True)
class Imported:
    """A patch file that was made and proven.

    Attributes:
        id: the id of the overlay that it is.
        patch: the patch file.
        base: the vLLM that it was proven on.
        remarks: what it leaves as it was, and what was left out.
    """

    id: str
    patch: PatchFile
    base: PatchBase
    remarks: tuple[str, ...] = ()


def imported(
    patches: Sequence[Carried],
    base: PatchBase | None,
    bases: Callable[[], Iterator[PatchBase]],
    *,
    squash: bool = False,
) -> tuple[Imported, ...]:
    """Make a patch file of each patch.

    Args:
        patches: the patches, in their order.
        base: the vLLM that they are for, if it is known.
        bases: yields the candidates, else.
        squash: make one patch file of all of them.

    Raises:
        Failure: with the problem of each patch that fits no vLLM, or that no patch file makes.
    """
    base = base or fitting(patches[0], bases())
    problems, made = list[Problem](), list[Imported]()
    for some in [patches] if squash else [[one] for one in patches]:
        with collecting(problems):
            try:
                changes = _changed(some, base)
            except Misfit as error:
                hint = ("" if squash else _needs_others(some[0], patches, base)) or _optional(some)
                raise Failure(Problem(FAILED, some[0].name, f"{error}, in vLLM {base.name}", hint=hint)) from error
            made.append(_made(some, changes, base))
    raise_all(problems)
    return tuple(made)


def of_module(file: Path, path: str, base: PatchBase, later: Callable[[], Iterable[PatchBase]]) -> Imported:
    """Make a patch file of a whole module that was changed.

    Args:
        file: the changed module.
        path: the module of vLLM that it replaces.
        base: the vLLM that it was made from.
        later: yields the releases after the base; changes that one of them has, too, are upstream's, and left out.

    Raises:
        Failure: it cannot be read, its base does not have the module, or no patch file makes the change.
    """
    try:
        data = read_regular(file, CODE_BYTES)
    except OSError as error:
        raise Failure(Problem(FAILED, str(file), str(error.strerror or error).lower())) from error
    if (before := text_of(base, path)) is None:
        raise Failure(
            Problem(FAILED, path, f"vLLM {base.name} has no such module", hint=did_you_mean(_alike(path, base)))
        )
    words, after = file.stem.replace("_", " "), decoded(path, data)
    try:
        texts = ((one.name, text_of(one, path)) for one in later())
        mine, remarks = own(before, after, ((name, text) for name, text in texts if text is not None))
    except Failure as failure:
        mine, remarks = after, (f"it was not compared with later releases: {failure.problems[0]}",)
    changed = data if mine == after else mine.encode()
    made = of_bytes(name_of("", words), f"{words.capitalize()} as changed", {path: changed}, base)
    return replace(made, remarks=(*remarks, *made.remarks))


def _alike(path: str, base: PatchBase) -> list[str]:
    """Return the modules that a user may have meant by a path: what it ends, else those of the same name."""
    found = modules_of(base)
    same = [one for one in found if one.endswith(f"/{PurePosixPath(path).name}")]
    return ([one for one in same if one.endswith(f"/{path}")] or same)[:_MOST]


def of_bytes(
    name: str,
    subject: str,
    changed: Mapping[str, bytes | None],
    base: PatchBase,
    left_out: Sequence[str] = (),
) -> Imported:
    """Make a patch file of modules and data files that were changed in place.

    Args:
        name: the id of the overlay.
        subject: its subject.
        changed: by path, what each is after the change; None if it is gone.
        base: the vLLM that they were changed in.
        left_out: a sentence for each kind of files that are left out.

    Raises:
        Failure: one is no text, or no patch file makes the change.
    """
    changes = []
    for path, data in changed.items():
        before, after = text_of(base, path), None if data is None else decoded(path, data)
        if before and after and "\r\n" not in before and path.endswith(".py"):
            after = after.replace("\r\n", "\n")
        changes.append(ModuleVersions(path, before, after))
    return _made([Carried(name, subject, "", (), None, "", (), tuple(left_out))], tuple(changes), base)


def _changed(patches: Iterable[Carried], base: PatchBase) -> tuple[ModuleVersions, ...]:
    """Return the modules that patches change one after the other; raises `Misfit`."""
    texts: dict[str, str | None] = {}
    for patch in patches:
        for change in patch.changes:
            texts[change.path] = patched(change, texts.get(change.path, text_of(base, change.path)))
    return tuple(ModuleVersions(path, text_of(base, path), after) for path, after in texts.items())


def _needs_others(patch: Carried, patches: Sequence[Carried], base: PatchBase) -> str:
    """Return what to do if a patch fits where those before it are applied; "" if it does not."""
    before = patches[: patches.index(patch)]
    try:
        _changed([*before, patch], base)
    except Misfit:
        return ""
    return "it builds on the patches before it: --squash makes one patch file of all" if before else ""


def _optional(patches: Iterable[Carried]) -> str:
    data = any(not change.path.endswith(".py") for patch in patches for change in patch.changes)
    return "`--python-only` leaves data files out" if data else ""


def _made(patches: Sequence[Carried], changes: tuple[ModuleVersions, ...], base: PatchBase) -> Imported:
    first = patches[0]
    upstream = dict.fromkeys(link for one in patches for link in one.upstream)
    described = "\n\n".join(filter(None, (one.description for one in patches)))
    head: Mapping[str, str] = {
        "Subject": first.subject,
        "Description": "\n".join(line.rstrip() for line in described.expandtabs(4).strip().split("\n")),
        "Upstream": ", ".join(upstream),
        "Base": base.version,
    }
    try:
        patch, notes = patch_file(first.name, {key: text for key, text in head.items() if text}, changes, base.read)
    except Unproven as error:
        raise Failure(Problem(FAILED, first.name, str(error))) from error
    left_out = dict.fromkeys(f"left out: {sentence}" for one in patches for sentence in one.left_out)
    return Imported(first.name, patch, base, (*left_out, *notes))

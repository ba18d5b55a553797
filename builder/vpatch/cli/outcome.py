"""The last line of a command on a tree: what came of it, in one sentence, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from vpatch import api
from vpatch.cli.options import project
from vpatch.cli.target import Target
from vpatch.cli.wording import command, counted, counted_are, do_not_fit, is_are, it_them, listed, options, was_were
from vpatch.core.catalogue import id_of
from vpatch.core.marks import marked_files
from vpatch.core.verdict import MISFITS, State
from vpatch.errors import Code
from vpatch.tree.locate import Tree

_THIS = "this vLLM"
_LEFT = {State.DRIFTED: "drifted", State.CONFLICT: "in conflict"}
_RESTART = "Restart vLLM if it is running."


def of_status(found: api.Result, target: Target) -> str:
    """Return the outcome of `status`."""
    if misfits := _misfits(found):
        return f"{misfits}.{_rest(target, found)}"
    if gone := [one.where for one in found.problems if one.code is Code.FILE_MISSING]:
        return f"{counted_are(len(gone), 'file')} missing: {target.again('apply')} writes {it_them(len(gone))} again."
    if found.upgradable:
        old = counted_are(len(found.upgradable), "overlay")
        return f"{old} outdated: {target.again('apply')} upgrades {it_them(len(found.upgradable))}."
    if pending := _ids(found, State.PENDING):
        if found.obstacle:
            return f"Cannot apply {counted(len(pending), 'overlay')}: {found.obstacle.what}."
        return f"{counted(len(pending), 'overlay')} ready to apply: {target.again('apply')}."
    return _nothing(found)


def offer(found: api.Result, target: Target) -> str:
    """Return lines on the opt-in overlays that `status` does not list, and on what the user's deployment needs."""
    if found.problems:
        return ""
    said = []
    if found.opt_in:
        one = found.opt_in[0]
        how = f"{target.command('show', one)}, {target.command('apply', '--with', one)}"
        said.append(f"{counted(len(found.opt_in), 'opt-in overlay')}: {listed(found.opt_in)} ({how}).")
    if target.selection.only is None and _ids(found, State.PENDING):
        said.append(f"To learn which of these your deployment needs: {command('plan', '--help')}.")
    return " ".join(said)


def unselected(found: api.Result, target: Target, *, every: bool = False) -> str:
    """Return a sentence on patch files that the user named, or on `every` one, which the project's file leaves out."""
    chosen, here = target.selection, project()
    ids = [id_of(one.path) for one in here.sources.patches] if every else here.named
    seen = {*chosen.without, *(verdict.id for verdict in found.overlays)}
    left = [name for name in dict.fromkeys(ids) if name not in seen and not chosen.selects(name)]
    add = target.again("apply", *options("--with", left))
    return f" {here.file} does not select {listed(left)}: {add} does." if left and chosen.only is None else ""


def of_diff(found: api.Diff, target: Target) -> str:
    """Return the outcome of `diff`, and of `apply` if it was asked to write nothing."""
    if misfits := _misfits(found):
        return f"Nothing would be written: {misfits}.{_rest(target, found)}"
    if found.obstacle:
        return f"Nothing would be written: {found.obstacle.what}."
    if not found.files:
        return _nothing(found)
    added = [file for file, (old, _) in found.files.items() if old is None]
    new = _ids(found, State.PENDING)
    size = _counts(len(found.files), len(added))
    verbs = _verbs("apply", new, "upgrade", found.upgradable)
    would = f"{verbs}: {size}" if verbs else f"repair {counted(len(found.files), 'file')}"
    return f"Would {would}. Nothing is written yet: {target.again('apply')}."


def of_apply(done: api.Changed, target: Target) -> str:
    """Return the outcome of `apply`."""
    if misfits := _misfits(done):
        return f"Nothing was written: {misfits}.{_rest(target, done)}"
    if not done.changed:
        return _nothing(done)
    sources = [file for file in done.changed if _is_source(file)]
    if not done.affected:
        what = f"Repaired {counted(len(sources), 'file')}" if sources else "Updated RECORD"
        applied = f"{what}: {counted_are(len(_ids(done, State.APPLIED)), 'overlay')} applied."
        return f"{applied} {_RESTART}" if sources else applied
    new = [name for name in done.affected if name not in done.upgraded]
    did = _verbs("applied", new, "upgraded", done.upgraded).capitalize()
    return f"{did}: {_counts(len(sources), len(done.added))}. {_RESTART} Undo with {target.command('revert')}."


def of_applied(found: api.Diff) -> str:
    """Return the outcome of `diff` of what stands in a tree."""
    if not found.files:
        return "Nothing to show: no overlay is applied."
    added = sum(old is None for old, _ in found.files.values())
    overlays = counted_are(len(_ids(found, State.APPLIED)), "overlay")
    return f"{overlays} applied: {_counts(len(found.files), added)}{_edited(found)}."


def of_edits(found: api.Diff, target: Target) -> str:
    """Return the outcome of `diff` of the edits in a tree."""
    if not found.files:
        others = target.command("doctor")
        whose = "of these overlays" if target.selection.only else "that vpatch patched"
        return f"Nothing to show: no file {whose} was edited since. Others: {others}."
    edited = f"{counted(len(found.files), 'file')} {was_were(len(found.files))} edited after vpatch"
    kept = [file for file in found.files if file in found.captured]
    keep = f"{target.command('capture')} makes a patch file of {listed(kept)}; " if kept else ""
    return f"{edited}. {keep}{target.command('revert', '--force')} discards {it_them(len(found.files))}."


def of_revert(done: api.Changed, target: Target, *, dry_run: bool = False, force: bool = False) -> str:
    """Return the outcome of `revert`."""
    named = list(dict.fromkeys(target.selection.only or ()))
    if not done.affected and (left := [path for path in done.removed if path.endswith(".dist-info")]):
        return f"Removed {listed(left)}, which an earlier vLLM left."
    if not any(map(_is_source, done.changed)):
        if not named:
            return "Nothing to revert: no overlay is applied."
        return f"Nothing to revert: {listed(named)} {is_are(len(named))} not applied."
    restored = counted(len({*filter(_is_source, done.changed)} - {*done.removed}), "file")
    overlays, removed = counted(len(done.affected), "overlay"), len(done.removed)
    if gone := [*done.not_installed]:
        overlays += f" ({listed(gone)}, whose {'package is' if len(gone) == 1 else 'packages are'} not installed here)"
    if dry_run:
        would = f"Would revert {overlays}: {restored} restored, {removed} removed"
        return f"{would}. Nothing is written yet: {target.again('revert', *(['--force'] if force else []))}."
    return f"Reverted {overlays}: {restored} restored, {removed} removed. {_RESTART}"


def of_verify(found: api.Result, target: Target) -> str:
    """Return the outcome of `verify`."""
    applied = _ids(found, State.APPLIED)
    if not found.problems:
        digest = f" (digest {found.digest[:12]})" if found.digest else ""
        left = "".join(f"; {n} {word}, not applied" for state, word in _LEFT.items() if (n := len(_ids(found, state))))
        return f"Verified: {counted_are(len(applied), 'overlay')} applied and complete{digest}{left}."
    if not applied and not _misfits(found) and not found.not_installed:
        return f"Not verified: no overlay is applied. Apply with {target.again('apply')}."
    pending = len(_ids(found, State.PENDING))
    left = f" {counted_are(pending, 'overlay')} not applied: {target.again('apply')}." if pending else ""
    return f"Not verified: {counted(len(found.problems), 'problem')}.{left}"


def not_installed(found: api.Result, target: Target) -> list[str]:
    """Return a note on each overlay that is applied and not installed."""
    remedy = f"{target.command('revert')} removes it, with all others."
    return [f"{name} is applied, too; its package is not installed here. {remedy}" for name in found.not_installed]


def files(found: api.Result) -> list[str]:
    """Return a line for each file that a run changed, or would change."""
    if isinstance(found, api.Diff):
        return [f"would {_verb(*change)}: {file}" for file, change in found.files.items()]
    if not isinstance(found, api.Changed):
        return []
    special = dict.fromkeys(found.added, "added") | dict.fromkeys(found.removed, "removed")
    usual = "changed" if found.overlays else "restored"
    return [f"{special.get(file, usual)}: {file}" for file in found.changed]


def _verb(old: bytes | None, new: bytes | None) -> str:
    return "add" if old is None else "change" if new is not None else "remove"


def _verbs(apply: str, new: Sequence[str], upgrade: str, upgraded: Sequence[str]) -> str:
    """Return what is done with which overlays, as in "apply 1 overlay and upgrade 2 overlays"."""
    pairs = ((apply, new), (upgrade, upgraded))
    return " and ".join(f"{verb} {counted(len(ids), 'overlay')}" for verb, ids in pairs if ids)


def _is_source(file: str) -> bool:
    """Whether a file is vLLM's, and not the RECORD that lists it."""
    return file.startswith("vllm/")


def _ids(found: api.Result, *states: State) -> list[str]:
    return [verdict.id for verdict in found.overlays if verdict.state in states]


def _misfits(found: api.Result) -> str:
    """Return a clause on the overlays that do not fit, "" if all do; one that `apply` upgrades is none of them."""
    wrong = {
        verdict.id: verdict.problems for verdict in found.overlays if verdict.state in MISFITS and verdict.problems
    }
    edited = [name for name, problems in wrong.items() if all(one.code is Code.EDITED for one in problems)]
    misfits = [name for name in wrong if name not in edited]
    was = f"{listed(edited)} {was_were(len(edited))} edited after vpatch" if edited else ""
    return "; ".join(filter(None, (do_not_fit(misfits, _THIS) if misfits else "", was)))


def _rest(target: Target, found: api.Result) -> str:
    """Return how to apply the overlays that fit."""
    if not found.fitting:
        return ""
    words = _without(target, found) or options("--overlay", found.fitting)
    return f" To apply the others: {target.command('apply', *words)}."


def _without(target: Target, found: api.Result) -> list[str]:
    """Return the user's options with what does not fit left out; [] where that is longer, or does not leave it out."""
    wrong = {verdict.id: verdict.files for verdict in found.overlays if verdict.problems}
    read = Tree(found.tree, None, None).read
    # Without `--overlay`, what is in the tree counts as selected.
    stays = any(marked_files(name, files, read) for name, files in wrong.items())
    if target.selection.only is not None or stays or len(wrong) >= len(found.fitting):
        return []
    typed = zip(target.typed[::2], target.typed[1::2], strict=True)
    kept = [word for pair in typed if pair[1] not in wrong for word in pair]
    return [*kept, *options("--without", (name for name in wrong if name not in target.typed))]


def _nothing(found: api.Result) -> str:
    applied = _ids(found, State.APPLIED)
    if applied:
        return f"Nothing to do: {counted_are(len(applied), 'overlay')} applied{_edited(found)}."
    return "Nothing to do: none of these overlays has anything to change in this vLLM."


def _edited(found: api.Result) -> str:
    """Return a clause on files that were edited after vpatch; "" for none."""
    if not found.edited:
        return ""
    return f"; {counted(len(found.edited), 'file')} {was_were(len(found.edited))} edited after vpatch"


def _counts(changed: int, added: int) -> str:
    return f"{counted(changed - added, 'file')} changed, {added} added"

"""The last line of a command on a tree: what came of it, in one sentence, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from vpatch import api
from vpatch.cli.target import Target
from vpatch.cli.wording import command, counted, counted_are, do_not_fit, is_are, listed, options
from vpatch.core.verdict import MISFITS, State

_THIS = "this vLLM"
_RESTART = "Restart vLLM if it is running."


def of_status(found: api.Result, target: Target) -> str:
    """Return the outcome of `status`."""
    if misfits := _misfits(found):
        return f"{do_not_fit(misfits, _THIS)}.{_rest(target, found)}"
    if found.upgradable:
        ready = f"{counted(len(found.upgradable), 'overlay')} of another version of vpatch"
        return f"{ready}: {target.again('apply')} upgrades {'it' if len(found.upgradable) == 1 else 'them'}."
    if pending := _ids(found, State.PENDING):
        if found.obstacle:
            return f"Cannot apply {counted(len(pending), 'overlay')}: {found.obstacle.what}."
        return f"{counted(len(pending), 'overlay')} ready to apply: {target.again('apply')}."
    return _nothing(found)


def offer(found: api.Result, target: Target) -> str:
    """Return a line on the opt-in overlays that `status` does not list; "" if none can be applied."""
    if not found.opt_in or found.problems:
        return ""
    one = found.opt_in[0]
    how = f"{command('show', one)}, {target.command('apply', '--with', one)}"
    return f"{counted(len(found.opt_in), 'opt-in overlay')}: {listed(found.opt_in)} ({how})"


def of_diff(found: api.Diff, target: Target) -> str:
    """Return the outcome of `diff`, and of `apply` if it was asked to write nothing."""
    if misfits := _misfits(found):
        return f"Nothing would be written: {do_not_fit(misfits, _THIS)}.{_rest(target, found)}"
    if found.obstacle:
        return f"Nothing would be written: {found.obstacle.what}."
    if not found.files:
        return _nothing(found)
    added = [file for file, (old, _) in found.files.items() if old is None]
    new = _ids(found, State.PENDING)
    would = f"Would {_verbs('apply', new, 'upgrade', found.upgradable)}: {_counts(len(found.files), len(added))}"
    return f"{would}. Nothing is written yet: {target.again('apply')}."


def of_apply(done: api.Changed, target: Target) -> str:
    """Return the outcome of `apply`."""
    if misfits := _misfits(done):
        return f"Nothing was written: {do_not_fit(misfits, _THIS)}.{_rest(target, done)}"
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


def of_revert(done: api.Changed, target: Target) -> str:
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
    return f"Reverted {overlays}: {restored} restored, {removed} removed. {_RESTART}"


def of_verify(found: api.Result, target: Target) -> str:
    """Return the outcome of `verify`."""
    applied = _ids(found, State.APPLIED)
    if not found.problems:
        return f"Verified: {counted_are(len(applied), 'overlay')} applied and complete."
    if not applied and not _misfits(found) and not found.not_installed:
        return f"Not verified: no overlay is applied. Apply with {target.again('apply')}."
    return f"Not verified: {counted(len(found.problems), 'problem')}."


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


def _misfits(found: api.Result) -> list[str]:
    """Return the overlays that do not fit; one that `apply` upgrades is none of them."""
    return [verdict.id for verdict in found.overlays if verdict.state in MISFITS and verdict.problems]


def _rest(target: Target, found: api.Result) -> str:
    """Return how to apply the overlays that fit."""
    if not found.fitting:
        return ""
    return f" To apply the others: {target.command('apply', *options('--overlay', found.fitting))}."


def _nothing(found: api.Result) -> str:
    applied = _ids(found, State.APPLIED)
    if applied:
        return f"Nothing to do: {counted_are(len(applied), 'overlay')} applied."
    return "Nothing to do: none of these overlays has anything to change in this vLLM."


def _counts(changed: int, added: int) -> str:
    return f"{counted(changed - added, 'file')} changed, {added} added"

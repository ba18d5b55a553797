"""The last line of a command on a tree: what came of it, in one sentence, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from vpatch import api
from vpatch.cli.target import Target
from vpatch.cli.wording import counted, listed, options
from vpatch.core.verdict import State, Verdict


def of_status(found: api.Result, target: Target, fitting: Sequence[str]) -> str:
    """Return the outcome of `status`; `fitting` are the pending overlays that fit although others do not."""
    if misfits := _misfits(found):
        return f"{_do_not_fit(misfits)}.{_rest(target, fitting)}"
    if pending := _ids(found, State.PENDING):
        return f"{counted(len(pending), 'overlay')} ready to apply: {target.again('apply')}."
    return _nothing(found)


def of_diff(found: api.Diff, target: Target, fitting: Sequence[str]) -> str:
    """Return the outcome of `diff`, and of `apply` if it was asked to write nothing."""
    if misfits := _misfits(found):
        return f"Nothing would be written: {_do_not_fit(misfits)}.{_rest(target, fitting)}"
    if not found.files:
        return _nothing(found)
    added = [file for file, (old, _) in found.files.items() if old is None]
    pending = _ids(found, State.PENDING)
    would = f"Would apply {counted(len(pending), 'overlay')}: {_counts(len(found.files), len(added))}"
    return f"{would}. Nothing is written yet: {target.again('apply')}."


def of_apply(done: api.Changed, target: Target, fitting: Sequence[str]) -> str:
    """Return the outcome of `apply`."""
    if misfits := _misfits(done):
        return f"Nothing was written: {_do_not_fit(misfits)}.{_rest(target, fitting)}"
    if not done.changed:
        return _nothing(done)
    if not done.affected:
        return (
            f"Repaired {counted(len(done.changed), 'file')}: {_are(len(_ids(done, State.APPLIED)), 'overlay')} applied."
        )
    applied, sources = counted(len(done.affected), "overlay"), [file for file in done.changed if _is_source(file)]
    return f"Applied {applied}: {_counts(len(sources), len(done.added))}. Undo with {target.command('revert')}."


def of_revert(done: api.Changed) -> str:
    """Return the outcome of `revert`."""
    if not done.changed:
        return "Nothing to revert: no overlay is applied."
    restored = counted(len({*filter(_is_source, done.changed)} - {*done.removed}), "file")
    return f"Reverted {counted(len(done.affected), 'overlay')}: {restored} restored, {len(done.removed)} removed."


def of_verify(found: api.Result, target: Target) -> str:
    """Return the outcome of `verify`."""
    applied = _ids(found, State.APPLIED)
    if not found.problems:
        return f"Verified: {_are(len(applied), 'overlay')} applied and complete."
    if not applied and not _misfits(found):
        return f"Not verified: no overlay is applied. Apply with {target.again('apply')}."
    return f"Not verified: {counted(len(found.problems), 'problem')}."


def files(found: api.Result) -> list[str]:
    """Return a line for each file that a run changed, or would change."""
    if isinstance(found, api.Diff):
        return [f"would {'add' if old is None else 'change'}: {file}" for file, (old, _) in found.files.items()]
    if not isinstance(found, api.Changed):
        return []
    special = dict.fromkeys(found.added, "added") | dict.fromkeys(found.removed, "removed")
    usual = "changed" if found.overlays else "restored"
    return [f"{special.get(file, usual)}: {file}" for file in found.changed]


def _is_source(file: str) -> bool:
    """Whether a file is vLLM's, and not the RECORD that lists it."""
    return file.startswith("vllm/")


def _ids(found: api.Result, *states: State) -> list[str]:
    return [verdict.id for verdict in found.overlays if verdict.state in states]


def _misfits(found: api.Result) -> list[Verdict]:
    return [verdict for verdict in found.overlays if verdict.state in {State.DRIFTED, State.CONFLICT}]


def _do_not_fit(misfits: Sequence[Verdict]) -> str:
    verb = "does not fit" if len(misfits) == 1 else "do not fit"
    return f"{listed([verdict.id for verdict in misfits])} {verb} this vLLM"


def _rest(target: Target, fitting: Sequence[str]) -> str:
    """Return how to apply the overlays that fit."""
    return f" To apply the others: {target.command('apply', *options('--overlay', fitting))}." if fitting else ""


def _nothing(found: api.Result) -> str:
    applied = _ids(found, State.APPLIED)
    if applied:
        return f"Nothing to do: {_are(len(applied), 'overlay')} applied."
    return "Nothing to do: this vLLM needs none of these overlays."


def _are(number: int, noun: str) -> str:
    return f"{counted(number, noun)} {'is' if number == 1 else 'are'}"


def _counts(changed: int, added: int) -> str:
    return f"{counted(changed - added, 'file')} changed, {added} added"

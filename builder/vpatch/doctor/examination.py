"""The examination of a vLLM: all findings, by what they are about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vpatch import api
from vpatch.core.catalogue import Selection
from vpatch.doctor import files, gpu, identity, other_code, overlays, stale
from vpatch.doctor.subject import Commands, Finding, Subject, described, unreadable
from vpatch.errors import Failure, UnknownName, failing
from vpatch.tree.environment import Located
from vpatch.tree.locate import Tree


@dataclass(frozen=True)
class Section:
    """The findings on one subject, with its title; there may be none."""

    title: str
    findings: Sequence[Finding]


def examine(located: Located, selection: Selection, commands: Commands) -> Subject:
    """Read what several findings rest on.

    Raises:
        UnknownName: there is no such overlay.
    """
    python, unanswered = None, None
    try:
        python = described(located.environment) if located.environment else None
    except Failure as failure:
        unanswered = failure.problems[0]
    return Subject(located, _verified(located.tree, selection), selection.named, python, unanswered, commands)


def _verified(tree: Tree, selection: Selection) -> api.Result:
    """Return what `verify` finds; if it cannot finish, the states alone, with the reason among the problems."""
    try:
        return api.verify(tree, selection)
    except api.Refused as refused:
        return refused.result
    except UnknownName:
        raise
    except Failure as failure:
        problems = failure.problems
    try:
        found = api.status(tree, selection)
    except Failure:
        return api.Result(tree.root, tree.version, problems=problems)
    return replace(found, problems=(*found.problems, *problems))


def sections(subject: Subject) -> list[Section]:
    """Return the findings on a vLLM and its surroundings."""
    found = {
        "vLLM": [identity.findings(subject)],
        "Overlays": [overlays.states(subject)],
        "Files": [overlays.faults(subject), files.edits(subject), files.permissions(subject)],
        "Other code that changes vLLM": [other_code.plugins(subject), other_code.startup(subject)],
        "GPU": [gpu.absence(subject), gpu.findings(subject)],
        "Since the overlays were applied": [stale.caches(subject), stale.processes(subject)],
    }
    return [
        # What cannot be read may stop several parts, and is reported once.
        Section(title, list(dict.fromkeys(finding for part in parts for finding in _complete(part))))
        for title, parts in found.items()
    ]


def _complete(part: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings; if one cannot be made, the reason instead of it and of those after it."""
    try:
        yield from part
    except Failure as failure:
        yield from map(unreadable, failure.problems)
    except OSError as error:
        yield unreadable(failing("cannot read", str(error.filename), error))

"""The examination: all findings, by subject."""

from __future__ import annotations

from collections.abc import Iterator

from vpatch.doctor import caches, edits, gpu, identity, overlays, permissions, plugins, processes, startup
from vpatch.doctor.findings import Finding, Section, unreadable
from vpatch.doctor.subject import Subject
from vpatch.errors import Failure, failing


def sections(subject: Subject) -> list[Section]:
    """Return the findings on a vLLM and its surroundings; a section may be empty."""
    return [
        _section("vLLM", identity.findings(subject)),
        _section("Overlays", overlays.states(subject)),
        _section("Files", overlays.faults(subject), edits.findings(subject), permissions.findings(subject)),
        _section("Other code that changes vLLM", plugins.findings(subject), startup.findings(subject)),
        _section("GPU", gpu.findings(subject)),
        _section("Since the overlays were applied", caches.findings(subject), processes.findings(subject)),
    ]


def _section(title: str, *parts: Iterator[Finding]) -> Section:
    # What cannot be read may stop several parts, and is reported once.
    return Section(title, list(dict.fromkeys(finding for part in parts for finding in _complete(part))))


def _complete(part: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings; if one cannot be made, the reason instead of it and of those after it."""
    try:
        yield from part
    except Failure as failure:
        yield from map(unreadable, failure.problems)
    except OSError as error:
        yield unreadable(failing("cannot read", str(error.filename), error))

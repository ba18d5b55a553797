"""The examination: all findings, by subject."""

from __future__ import annotations

from itertools import chain

from vpatch.doctor import caches, edits, gpu, identity, overlays, permissions, plugins, processes, startup
from vpatch.doctor.findings import Section
from vpatch.doctor.subject import Subject


def sections(subject: Subject) -> list[Section]:
    """Return the findings on a vLLM and its surroundings; a section may be empty."""
    files = chain(overlays.faults(subject), edits.findings(subject), permissions.findings(subject))
    return [
        Section("vLLM", list(identity.findings(subject))),
        Section("Overlays", list(overlays.states(subject))),
        Section("Files", list(files)),
        Section("Other code that changes vLLM", list(chain(plugins.findings(subject), startup.findings(subject)))),
        Section("GPU", list(gpu.findings(subject))),
        Section("Since the overlays were applied", list(chain(caches.findings(subject), processes.findings(subject)))),
    ]

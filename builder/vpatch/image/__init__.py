"""Patched images: a changeset as one layer on a base, built in a Docker engine or directly in a registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Phase(Protocol):
    """Called when a phase begins, and again as it goes on, with the bytes that are `done` of `total`; 0 if unknown."""

    def __call__(self, what: str, done: int = 0, total: int = 0, /) -> object:
        """Take note."""


class FoundVllm(Protocol):
    """Called with vLLM's version once it is known, and with the vpatch that patched the image, "" for a base."""

    def __call__(self, image: str, vllm: str, vpatch: str = "", /) -> object:
        """Take note."""


def ignored(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Watch:
    """What is called during a build or a test; by default, nothing."""

    phase: Phase = ignored
    found: FoundVllm = ignored

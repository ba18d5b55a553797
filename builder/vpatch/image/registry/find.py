"""Find an image in its registry, and the tags that come close to one that is not there."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from vpatch.errors import Failure, did_you_mean, nearest
from vpatch.foreign import parse_json
from vpatch.image.registry.image import (
    LARGEST,
    NO_IMAGE,
    NoImageError,
    RemoteImage,
    Repository,
    open_image,
)
from vpatch.image.registry.reference import Reference
from vpatch.net.ranges import CutError, blocks


def find_image(ref: Reference, platform: str | None = None) -> RemoteImage:
    """Find an image in its registry, as `open_image` does; the failure of a missing tag names the closest ones."""
    try:
        return open_image(ref, platform)
    except NoImageError as error:
        (problem,) = error.problems
        known = "" if ref.digest else similar_tags(ref)
        raise NoImageError(replace(problem, cause=f"{NO_IMAGE}{known or ': check its name and its tag'}")) from error


def similar_tags(ref: Reference) -> str:
    """Return the end of a message that names the closest tags; "" if there are none, or the registry does not tell."""
    with suppress(Failure, CutError, ValueError, LookupError, TypeError):
        names = [name for name in _tags(Repository(ref)) if isinstance(name, str) and name != ref.tag]
        if meant := did_you_mean(f"{ref.name}:{name}" for name in nearest(ref.tag or "", names)):
            return f"; {meant}"
    return ""


def _tags(repository: Repository) -> list[object]:
    raw = b""
    with repository.ask("GET", "tags/list") as answer:
        for block in blocks(answer):
            raw += block
            if len(raw) > LARGEST:
                return []
    found: list[object] = parse_json(raw)["tags"]
    return found or []

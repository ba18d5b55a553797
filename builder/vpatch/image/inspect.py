"""What a patched image says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from vpatch.errors import Failure
from vpatch.image.checks import Provenance, provenance_of
from vpatch.image.engine.base import resolve
from vpatch.image.engine.client import engine
from vpatch.image.model import Base
from vpatch.image.registry.build import PLATFORM
from vpatch.image.registry.pulled import open_image
from vpatch.image.registry.reference import parse


@dataclass(frozen=True)
class Seen:
    """An image, what its label says, and who told it: `engine` or `registry`."""

    image: Base
    said: Provenance
    told_by: str


def look(ref: str, platform: str | None) -> Seen:
    """Ask the engine, if there is one and it has the image, else the registry; nothing is pulled.

    Raises:
        Failure: nobody has it, or it is not patched.
    """
    image = _in_engine(ref, platform)
    told_by = "engine" if image else "registry"
    image = image or open_image(parse(ref), platform or PLATFORM).base
    return Seen(image, provenance_of(image), told_by)


def _in_engine(ref: str, platform: str | None) -> Base | None:
    """The image in the engine; None where the registry is to be asked."""
    try:
        with engine() as client:
            return resolve(client, ref, platform, pull=False)
    except Failure:
        if ref.startswith("sha256:"):  # an ID: only an engine knows it
            raise
        return None

"""In which image a deployment runs: vLLM's own, one that is published, or one that is to be built."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from vpatch.plan.model import Deployment

STOCK = "vllm/vllm-openai"


@dataclass(frozen=True)
class Image:
    """An image that has `overlays`, and its base, which has none; `built` if somebody must build it first."""

    base: str
    name: str
    overlays: tuple[str, ...] = ()
    built: bool = False


@cache
def defined() -> tuple[Image, ...]:
    """Give the patched images that are published, or are to be."""
    return tuple(Image(one["base"], one["name"], tuple(one["overlays"])) for one in _said()["image"])


def published() -> tuple[Image, ...]:
    """Give those that are there to be pulled."""
    return defined() if _said()["published"] else ()


def _said() -> dict[str, Any]:
    return tomllib.loads(files("vpatch.plan").joinpath("images.toml").read_text(encoding="utf-8"))


def image(deployment: Deployment, overlays: Collection[str], there: Sequence[Image] | None = None) -> Image:
    """Give the image to run in, with these overlays at least, of those that are `there`: those that are published."""
    tag = f"v{deployment.vllm.public}{deployment.cuda and '-'}{deployment.cuda}"
    base = f"{STOCK}:{tag}"
    if not overlays:
        return Image(base, base)
    for one in published() if there is None else there:
        if one.base == base and set(overlays) <= set(one.overlays):
            return one
    # Of no registry: what is not built yet must not be pulled from somebody who took the name.
    return Image(base, f"localhost/vllm-openai:{tag}-vpatch", tuple(sorted(overlays)), built=True)

"""The configuration of the new image: the base's, with one layer, one step of history and our labels more."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from importlib.metadata import metadata, version
from pathlib import Path
from typing import Any

from vpatch.image.model import Base, Layer
from vpatch.image.patch import now

LABEL = "io.vpatch.overlays"
"""The label that holds the provenance."""

_OCI = "org.opencontainers.image"


def labels(base: Base, name: str, provenance: str) -> dict[str, str]:
    """Give the labels of an image, which are its manifest's annotations too.

    The keys are those of the OCI image specification, annotations.md, and our own.

    Args:
        base: what it is built on.
        name: the base's full name, with its registry.
        provenance: the JSON of `vpatch.image.patch.Patch`.
    """
    said = {
        f"{_OCI}.base.name": name,
        f"{_OCI}.base.digest": base.digest,
        f"{_OCI}.created": now(),
        f"{_OCI}.revision": _revision(),
        f"{_OCI}.source": _source(),
        f"{_OCI}.version": f"{json.loads(provenance)['vllm']}-vpatch{version('vpatch')}",
        LABEL: provenance,
    }
    return {key: value for key, value in said.items() if value}


def revised(base: Base, layer: Layer, new_labels: Mapping[str, str]) -> dict[str, Any]:
    """Give the new image's configuration; entry point, command, environment, user and folder stay the base's."""
    config = json.loads(json.dumps(base.config))
    inner = config.get("config") or {}
    config["config"] = {**inner, "Labels": {**(inner.get("Labels") or {}), **new_labels}}
    config["rootfs"]["diff_ids"].append(layer.diff_id)
    config["created"] = new_labels[f"{_OCI}.created"]
    if config.get("history"):
        step = {"created": config["created"], "created_by": "vpatch build", "comment": f"vpatch {version('vpatch')}"}
        config["history"].append(step)
    return dict(config)


def serialise(config: Mapping[str, Any]) -> bytes:
    """Give a configuration's bytes, by whose digest the image is known."""
    return json.dumps(config, separators=(",", ":"), sort_keys=True).encode()


def _source() -> str:
    urls: dict[str, str] = dict(url.split(", ") for url in metadata("vpatch").get_all("Project-URL", ()))
    return urls["Issues"].removesuffix("/issues")


def _revision() -> str:
    """Give the commit that this vpatch runs from, empty where it is an installed package."""
    top = Path(__file__).parents[3]
    if not (top / ".git").exists():
        return ""
    asked = ["git", "-C", str(top), "rev-parse", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""

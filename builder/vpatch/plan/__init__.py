"""Compute what a model needs on a GPU, from its config alone: overlays, memory, concurrency and the command.

It uses no GPU, loads no weights and imports no vLLM: it repeats vLLM's own arithmetic, release by release.
"""

import tomllib
from importlib.resources import files
from typing import Any

GIB = 1 << 30
MIB = 1 << 20


def table(name: str) -> dict[str, Any]:
    """Read a TOML file that ships with plan."""
    return tomllib.loads(files("vpatch.plan").joinpath(name).read_text(encoding="utf-8"))

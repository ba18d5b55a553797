"""Deployments that somebody described, by name: `presets.toml`."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.version import Version

from vpatch.errors import Failure, Problem
from vpatch.plan.model import Deployment, Gpu


@dataclass(frozen=True)
class Preset:
    """A model on a GPU with a release, as `source` describes it: a document's title and section.

    `gpu` is the name of a GPU, `options` are values of `Deployment`'s other fields by their names.
    """

    name: str
    summary: str
    source: str
    model: str
    gpu: str
    vllm: Version
    revision: str | None
    options: Mapping[str, Any]

    def deployment(self, gpu: Gpu, given: Mapping[str, Any]) -> Deployment:
        """Give the deployment on a GPU; `given` are fields of it that somebody said, and win."""
        said = dict(self.options)
        if given.get("vllm", self.vllm) != self.vllm:
            said.pop("cuda", None)  # which images there are differs by release
        if "max_model_len" in given:
            said.pop("longest", None)
        return Deployment(**{"vllm": self.vllm, "gpu": gpu, **said, **given})


@cache
def presets() -> tuple[Preset, ...]:
    """Give every preset."""
    text = files("vpatch.plan").joinpath("presets.toml").read_text(encoding="utf-8")
    said: dict[str, dict[str, Any]] = {}
    for one in tomllib.loads(text)["preset"]:
        said[one["name"]] = (said[one.pop("like")] if "like" in one else {}) | one
    return tuple(map(_preset, said.values()))


def _preset(said: Mapping[str, Any]) -> Preset:
    options: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in said.items()}
    of_itself = {key: options.pop(key) for key in ("name", "summary", "source", "model", "gpu")}
    vllm, revision = Version(options.pop("vllm")), options.pop("revision", None)
    return Preset(**of_itself, vllm=vllm, revision=revision, options=options)


def preset(name: str) -> Preset:
    """Give the preset of that name.

    Raises:
        Failure: there is none; says which names come near.
    """
    named = {one.name: one for one in presets()}
    if name in named:
        return named[name]
    near = difflib.get_close_matches(name, named, 3, 0.5) or [one for one in named if name in one][:3]
    cause = f"do you mean {', '.join(near)}?" if near else "`vpatch plan --list` prints those that there are"
    raise Failure(Problem("no such preset", name, cause))

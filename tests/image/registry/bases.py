"""Bases as vllm-openai has them, in a registry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import Program, Ran
from tests.image.registry.images import Built, put_image
from tests.image.standin import CONFIG, SITE

BASE = "vllm/vllm-openai:v0.20.2"
COPIED = "COPY examples /vllm-workspace/examples # buildkit"
BALLAST = 4 << 20


@dataclass(frozen=True)
class Base:
    """The base in its registry: its name, and what was put there."""

    name: str
    built: Built


def parents(folder: Path) -> list[tuple[Path, str]]:
    """Give an empty folder for each above vLLM, as the tars of real layers have them."""
    (folder / "empty").mkdir()
    above = [str(path) for path in Path(SITE).parents][-2::-1]
    return [(folder / "empty", path) for path in above]


def put_base(host: str, layers: list[bytes], name: str = BASE, **more: Any) -> Base:
    repository, _, tag = name.rpartition(":")
    history = [{"created_by": "RUN pip install torch"}, {"created_by": "RUN pip install vllm"}, {"created_by": COPIED}]
    settings = {"config": dict(CONFIG), "created": "2026-05-09T10:00:00.123456789Z"}
    return Base(f"{host}/{name}", put_image(host, repository, tag, layers, history=history, settings=settings, **more))


def build(vpatch: Program, base: str, *more: str) -> Ran:
    return vpatch("build", "--registry", "--base", base, *more)

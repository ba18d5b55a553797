"""What to build, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vpatch.core.verdict import Changeset, State, Verdict
from vpatch.errors import Failure, Problem
from vpatch.image.extensions import Served
from vpatch.image.find import Vllm
from vpatch.image.model import Base, Layer, Tested
from vpatch.image.patch import Patch


@dataclass(frozen=True)
class Order:
    """An image to build.

    `base` is its name, `platform` as `linux/amd64` (None: the engine's own, or amd64 in a registry), `python` an
    interpreter inside the image (None: the one on its PATH). `tags` are full names; they are set at the end, unless
    `set_tags` is false: then they only say where to push to. `push` sends them from an engine to their registries.
    `tests` has some of `files`, `containers` and `gpus`. `architectures`, as `sm_120`, must be served by the base's
    compiled extensions, and the overlays whose ids are in `named` must apply.
    """

    base: str
    platform: str | None = None
    python: str | None = None
    tags: tuple[str, ...] = ()
    set_tags: bool = True
    push: bool = False
    tests: frozenset[str] = frozenset({"files", "containers"})
    architectures: tuple[str, ...] = ()
    named: tuple[str, ...] = ()


@dataclass(frozen=True)
class Built:
    """What came of an order.

    `image` is the ID, or `repository@digest` once pushed; the base's own where there was nothing to do, which `notes`
    says. `layer` is None then.
    """

    base: Base
    image: str = ""
    verdicts: tuple[Verdict, ...] = ()
    layer: Layer | None = None
    root: str | None = None
    vllm: str | None = None
    tests: tuple[Tested, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


def begun(
    base: Base, image: str, found: Patch, vllm: Vllm, served: Served, more: Mapping[str, Any] | None = None
) -> Built:
    """Give what is known before anything is made; `more` is told in JSON too."""
    extra = {**(more or {}), **served.json}
    root, verdicts = f"/{vllm.root}", found.changeset.after
    return Built(base, image, verdicts, root=root, vllm=vllm.version, notes=served.lines, extra=extra)


def refused(order: Order, base: Base, changeset: Changeset, served: Sequence[Problem]) -> tuple[Problem, ...]:
    """Give every reason not to build: overlays that drift, those that were named and do not apply, GPUs not served."""
    idle = [v for v in changeset.before if v.id in order.named and v.state is State.NOT_APPLICABLE]
    told = (Problem("not applicable", base.ref, f"{verdict.id}: {verdict.because}") for verdict in idle)
    return (*changeset.problems, *told, *served)


def nothing_to_do(order: Order, base: Base, verdicts: Sequence[Verdict]) -> str:
    """Say that the base is as asked already.

    Raises:
        Failure: it should get a tag; the base's image keeps the names that it has.
    """
    states = ", ".join(f"{verdict.id} is {verdict.state}" for verdict in verdicts)
    if order.tags and order.set_tags:
        cause = f"nothing to build, so {', '.join(order.tags)} is not set: {states}"
        raise Failure(Problem("nothing to build", base.ref, cause))
    return f"nothing to build: {base.ref}: {states}"

"""Build an image in an engine: find, compute, load, test, tag, push; in that order, so that no tag is ever wrong."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.errors import Failure, Problem
from vpatch.image import checks, config
from vpatch.image.engine.base import resolve
from vpatch.image.engine.client import engine
from vpatch.image.engine.container import files_of
from vpatch.image.engine.containers import Run, run_of_its_own
from vpatch.image.engine.inside import Inside
from vpatch.image.engine.load import discard, load, tagged
from vpatch.image.engine.push import push
from vpatch.image.engine.tests import in_containers
from vpatch.image.extensions import check, serve
from vpatch.image.find import find
from vpatch.image.model import Base, Tested
from vpatch.image.order import Built, Order, begun, nothing_to_do, refused
from vpatch.image.patch import Patch, patch
from vpatch.image.registry.reference import parse

if TYPE_CHECKING:
    from docker import DockerClient

    from vpatch.net.ranges import Progress


def build(order: Order, overlays: Sequence[Catalogued], progress: Progress | None = None) -> Built:
    """Build what is ordered.

    Raises:
        Failure: it cannot be built; the engine is as it was, but for a base that was pulled.
    """
    check(order.architectures)
    with engine() as client, run_of_its_own() as run:
        base = resolve(client, order.base, order.platform, progress)
        with files_of(client, base.id, run.name) as files:
            vllm = find(files, base, order.python)
            if order.python and files.kind(order.python.strip("/")) is None:
                raise Failure(Problem("no interpreter", base.ref, f"there is no {order.python} in the image"))
            files.expect(f"{vllm.root}/{file}" for file in (*Engine(overlays).files, vllm.record))
            served = serve(files, vllm, base, order.architectures)
            found = patch(files, vllm, base, overlays, order.python)
        built = begun(base, base.id, found, vllm, served)
        if problems := refused(order, base, found.changeset, served.problems):
            return replace(built, image="", problems=problems)
        if found.layer is None:
            return replace(built, notes=(*built.notes, nothing_to_do(order, base, found.changeset.after)))
        return _made(client, order, built, found, run)


def _made(client: DockerClient, order: Order, built: Built, found: Patch, run: Run) -> Built:
    base, layer = built.base, found.layer
    assert layer is not None  # noqa: S101 - for mypy; the caller looked
    settings = config.revised(base, layer, config.labels(base, _full_name(base.ref), found.provenance))
    image, diff_id, new = load(client, base, settings, layer, run)
    done = replace(built, image=image, layer=replace(layer, diff_id=diff_id))
    if diff_id != layer.diff_id:
        note = "the engine takes no single layer: this one is of its own making, and its diffID is not reproducible"
        done = replace(done, notes=(*built.notes, note))
    keep = False
    try:
        done = replace(done, tests=_tested(client, replace(base, config=settings), image, run.name, order.tests))
        if any(test.ok is False for test in done.tests):
            return replace(done, image="")
        with tagged(client, image, order.tags):
            done = replace(done, image=push(client, order.tags)) if order.push else done
        keep = True
        return done
    finally:
        if new and not keep:
            # What went wrong before matters more than that the image cannot be taken away.
            with suppress(Failure):
                discard(client, image)


def _full_name(ref: str) -> str:
    """Give an image's name with its registry; an ID stays what it is."""
    return ref if ref.startswith("sha256:") else parse(ref).full


def tested(ref: str, tests: frozenset[str], progress: Progress | None) -> tuple[Base, tuple[Tested, ...]]:
    """Test an image that was patched before; `tests` are those of an `Order`.

    Raises:
        Failure: it is not there, not patched, or the engine refuses.
    """
    with engine() as client, run_of_its_own() as run:
        base = resolve(client, ref, None, progress)
        return base, _tested(client, base, base.id, run.name, tests)


def _tested(client: DockerClient, image: Base, which: str, owner: str, tests: frozenset[str]) -> tuple[Tested, ...]:
    said = checks.provenance_of(image)
    return tuple(in_containers(Inside(client, which, said.python, owner), said, tests, discover()))

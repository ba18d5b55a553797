"""Build an image in a registry, without an engine: read, compute, push by digest, test, tag; in that order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vpatch.core.catalogue import discover
from vpatch.core.overlay import Catalogued
from vpatch.image import checks, config
from vpatch.image.checks import Provenance, provenance_of
from vpatch.image.extensions import check, serve
from vpatch.image.model import Base, Tested
from vpatch.image.order import Built, Order, begun, nothing_to_do, refused
from vpatch.image.patch import Patch, patch
from vpatch.image.registry.layers import LayeredFiles
from vpatch.image.registry.pulled import RemoteImage, open_image
from vpatch.image.registry.push import push, tag
from vpatch.image.registry.reference import Reference, parse
from vpatch.image.registry.tree import is_wanted, is_wanted_or_compiled, vllm_in
from vpatch.net.ranges import Progress

PLATFORM = "linux/amd64"
"""What an image is for where nobody says otherwise."""


def build(order: Order, overlays: Sequence[Catalogued], progress: Progress | None = None) -> Built:
    """Build what is ordered, in the repositories that its tags name.

    Raises:
        Failure: it cannot be built. No tag was set, but for those that were when a registry refused the next.
    """
    check(order.architectures)
    image = open_image(parse(order.base), order.platform or PLATFORM)
    layers = LayeredFiles(image, is_wanted_or_compiled if order.architectures else is_wanted, progress=progress)
    vllm, files = vllm_in(layers, image.base, order.python)
    served = serve(files, vllm, image.base, order.architectures)
    found = patch(files, vllm, image.base, overlays, order.python)
    read = {"bytes_read": layers.bytes_read, "layers_read": [one.digest for one in layers.layers_read]}
    built = begun(image.base, "", found, vllm, served, read)
    if problems := refused(order, image.base, found.changeset, served.problems):
        return replace(built, problems=problems)
    if found.layer is None:
        same = f"{image.ref.name}@{image.digest}"
        note = nothing_to_do(order, image.base, found.changeset.after)
        return replace(built, image=same, notes=(*built.notes, note))
    return _pushed(order, built, image, found, layers)


def _pushed(order: Order, built: Built, image: RemoteImage, found: Patch, layers: LayeredFiles) -> Built:
    assert found.layer is not None  # noqa: S101 - for mypy; the caller looked
    labels = config.labels(image.base, image.ref.full, found.provenance)
    settings = config.revised(image.base, found.layer, labels)
    targets = [parse(name) for name in order.tags]
    sent, tests, names = 0, [], []
    for target in {one.name: one for one in targets}.values():
        pushed = push(image, target, found.layer, settings, labels)
        sent += pushed.sent
        names.append(f"{target.name}@{pushed.digest}")
        if order.tests:
            said = provenance_of(Base(order.base, "", settings))
            tests += _tested(Reference(target.host, target.repository, digest=pushed.digest), said, order, layers)
    extra = {**built.extra, "bytes_sent": sent}
    done = replace(built, layer=found.layer, tests=tuple(dict.fromkeys(tests)), extra=extra)
    if any(test.ok is False for test in tests):
        return done
    for target in targets if order.set_tags else ():
        tag(target, names[0].rpartition("@")[2], str(target.tag))
    return replace(done, image=names[0])


def _tested(pushed: Reference, said: Provenance, order: Order, known: LayeredFiles) -> list[Tested]:
    """Test what is in the registry now; of the base's layers, those that were read need not be read again."""
    image = open_image(pushed, order.platform or PLATFORM)
    layers = LayeredFiles(image, is_wanted, known=known.views)
    _, files = vllm_in(layers, image.base, order.python)
    return list(checks.on_files(files, said, discover()))

"""Build an image in an engine: find, compute, load, test, tag, push; in that order, so that no tag is ever wrong."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from tarfile import TarInfo
from typing import Any

from docker import DockerClient

from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine
from vpatch.core.listing import is_folder
from vpatch.core.overlay import Catalogued
from vpatch.errors import Failure, Problem
from vpatch.image import Watch
from vpatch.image.checks import Check, check_names, failed, run_checks
from vpatch.image.config import Base, build_labels, digest_of, extend_config, serialize
from vpatch.image.engine import discard, engine, engine_errors, layers_of, load_archive, push, resolve, tagged
from vpatch.image.engine.containers import Run, ScriptRunner, container, require_gpus, start_run
from vpatch.image.engine.files import open_files
from vpatch.image.filesystem import WHITEOUT
from vpatch.image.order import Built, Order, prepare
from vpatch.image.patch import Layer, label_of
from vpatch.image.registry.reference import parse
from vpatch.image.search import find_vllm

_KEPT = ("Entrypoint", "Cmd", "Env", "User", "WorkingDir")


def build(order: Order, overlays: Sequence[Catalogued], watch: Watch) -> Built:
    """Build an image. If that fails, the engine is unchanged, except for a base that was pulled."""
    check_names(order.architectures)
    with engine() as client, start_run() as run:
        base = resolve(client, order.base, order.platform, watch)
        if "gpus" in order.tests:
            watch.phase("looking for GPUs")
            require_gpus(client, base.id, run.name, order.python or "python3")
        watch.phase(f"reading {base.ref}")
        with open_files(client, base.id, run.name) as files:
            vllm = find_vllm(files, base, order.python)
            if order.python and files.kind(order.python.strip("/")) is None:
                raise Failure(Problem("no interpreter", base.ref, f"there is no {order.python} in the image"))
            patcher = Engine(overlays)
            ahead = (*(file for file in patcher.files if not is_folder(file)), vllm.record)
            files.prefetch(f"{vllm.root}/{file}" for file in ahead)
            built = prepare(order, files, vllm, base, patcher, same=base.id, watch=watch)
        return _make(client, order, built, built.layer, run, watch) if built.layer else built


def _make(client: DockerClient, order: Order, built: Built, layer: Layer, run: Run, watch: Watch) -> Built:
    base = built.base
    full_name = base.ref if base.ref.startswith("sha256:") else parse(base.ref).full
    settings = extend_config(base, layer.diff_id, build_labels(base, full_name, layer.provenance, order.labels))
    watch.phase("loading the layer")
    image, diff_id, new = _load(client, base, settings, layer, run)
    done = replace(built, image=image, layer=replace(layer, diff_id=diff_id))
    if diff_id != layer.diff_id:
        note = "the engine takes no single layer: this one is of its own making, and its diffID is not reproducible"
        done = replace(done, notes=(*built.notes, note))
    keep = False
    try:
        done = replace(done, tests=_test(client, replace(base, config=settings), image, run.name, order.tests, watch))
        if failed(done.tests):
            return replace(done, image="")
        with tagged(client, image, order.tags):
            done = replace(done, image=push(client, order.tags, watch)) if order.push else done
        keep = True
        return done
    finally:
        if new and not keep:
            with suppress(Failure):  # the one before this matters more
                discard(client, image)


def retest(ref: str, tests: frozenset[str], watch: Watch) -> tuple[Base, tuple[Check, ...]]:
    """Test an image that was patched before; `tests` are those of an `Order`."""
    with engine() as client, start_run() as run:
        base = resolve(client, ref, None, watch)
        label = label_of(base)
        watch.found(ref, label.vllm, label.vpatch)
        if "gpus" in tests:
            watch.phase("looking for GPUs")
            require_gpus(client, base.id, run.name, label.python)
        return base, _test(client, base, base.id, run.name, tests, watch)


def _test(
    client: DockerClient, image: Base, image_id: str, owner: str, tests: frozenset[str], watch: Watch
) -> tuple[Check, ...]:
    label = label_of(image)
    runner = ScriptRunner(client, image_id, label.python, owner)
    return tuple(run_checks(runner, label, tests, discover(), watch.phase))


def _load(client: DockerClient, base: Base, config: Mapping[str, Any], layer: Layer, run: Run) -> tuple[str, str, bool]:
    """Bring a new image, without a tag, into the engine; return its ID, its layer's diffID, and whether it is new."""
    wanted = config["rootfs"]["diff_ids"]
    content = serialize(config)
    image = digest_of(content)
    known = layers_of(client, image)
    if known is None:
        run.register(image)
    if known != wanted:
        # As `docker save` writes it, but only with the last layer: the engine has the others.
        names = [f"{diff_id.removeprefix('sha256:')}.tar" for diff_id in wanted]
        file = f"{image.removeprefix('sha256:')}.json"
        manifest = json.dumps([{"Config": file, "RepoTags": None, "Layers": names}]).encode()
        members = {file: content, names[-1]: layer.blob, "manifest.json": manifest}
        load_archive(client, _tar((TarInfo(name), data) for name, data in members.items()), base.ref)
    if layers_of(client, image) == wanted:
        return image, layer.diff_id, known is None
    # An engine that insists on an archive with all layers, as stores of containerd's may, makes the layer itself.
    image, diff_id = _commit(client, base, config, layer, run.name)
    run.register(image)
    return image, diff_id, True


def _tar(members: Iterable[tuple[TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _commit(client: DockerClient, base: Base, config: Mapping[str, Any], layer: Layer, owner: str) -> tuple[str, str]:
    """Put a layer's files into a container and commit it; return the image's ID and its last layer's new diffID."""
    settings = config["config"]
    python = label_of(replace(base, config=config)).python
    code = "import os, sys; [os.remove(path) for path in sys.argv[1:]]"
    # The whole command is the entry point: an image without a command would inherit the container's. Python leaves no
    # bytecode of its own. The files may belong to another user than the base's.
    run = [python, "-I", "-S", "-B", "-c", code, *(f"/{path}" for path in layer.removed)]
    rights: dict[str, Any] = {"user": "0" if settings.get("User") else None, "cap_add": ["DAC_OVERRIDE", "FOWNER"]}
    with container(client, base.id, owner, run, **rights) as made, engine_errors("cannot commit", base.ref):
        with tarfile.open(fileobj=io.BytesIO(layer.blob)) as tar:
            files = [one for one in tar if not one.name.rpartition("/")[2].startswith(WHITEOUT)]
            client.api.put_archive(
                made, "/", _tar((one, file.read() if (file := tar.extractfile(one)) else b"") for one in files)
            )
        if layer.removed:
            client.api.start(made)
            if ended := client.api.wait(made)["StatusCode"]:
                raise Failure(Problem("cannot remove bytecode", base.ref, f"{python} ends with exit code {ended}"))
        wanted = {**settings, "Entrypoint": settings.get("Entrypoint") or [], "User": settings.get("User") or ""}
        image = str(client.api.commit(made, conf=wanted)["Id"])
        there = client.api.inspect_image(image)
        if other := [key for key in _KEPT if (there["Config"].get(key) or None) != (settings.get(key) or None)]:
            client.api.remove_image(image, noprune=True)
            raise Failure(Problem("cannot commit", base.ref, f"the engine changes {', '.join(other)}"))
        return image, str(there["RootFS"]["Layers"][-1])

"""The commands for images: build, test, inspect, tag."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from vpatch.cli.options import overlay_option, reported, unwinding, verbose_option
from vpatch.cli.output import Report, tell
from vpatch.cli.progress import bar
from vpatch.core.catalogue import discover, select
from vpatch.errors import Failure
from vpatch.image.checks import failed
from vpatch.image.config import Base, extra_required
from vpatch.image.order import Built, Order, definition_files, read_definitions
from vpatch.image.patch import provenance_of
from vpatch.image.registry.reference import parse

_OCI = "org.opencontainers.image."


@click.command("build")
@click.argument("definitions", metavar="[FILE.toml]...", nargs=-1, type=click.Path(path_type=Path, readable=False))
@click.option("--all", "everything", is_flag=True, help="Build every images/*.toml.")
@click.option("--base", metavar="IMAGE", help="The image to build on: a tag, or better a digest.")
@overlay_option()
@click.option("--tag", "tags", multiple=True, metavar="NAME", help="Name of the new image (repeatable). Default: none.")
@click.option("--push", is_flag=True, help="Push every --tag to its registry, after the tests.")
@click.option("--registry", is_flag=True, help="Build without an engine, in the registry that --tag names.")
@click.option("--untagged", is_flag=True, help="With --registry: push by digest, and leave the tags as they are.")
@click.option("--platform", metavar="OS/ARCH", help="For which platform, as linux/amd64.")
@click.option("--python", metavar="PATH", help="The interpreter inside the image. Default: python3 on its PATH.")
@click.option("--require-arch", "architectures", multiple=True, metavar="SM", help="A GPU it must serve, as sm_120.")
@click.option("--no-test", is_flag=True, help="Don't test the new image.")
@click.option("--gpus", is_flag=True, help="Give the tests all GPUs, and serve a small model too.")
@verbose_option
@reported
def build_command(
    definitions: tuple[Path, ...],
    base: str | None,
    *,
    everything: bool,
    push: bool,
    registry: bool,
    untagged: bool,
    no_test: bool,
    gpus: bool,
    **options: Any,
) -> Report:
    """Build a patched image: the base, and one layer with the changed files.

    Prints the image's ID, or repository@digest once pushed. A tag is set last: an image that fails a test gets none.
    With --registry no engine is needed, and of the base only the layers that hold vLLM are read; tests that need a
    container are not run then. FILE.toml says base, overlays and tags of an image that is published.
    """
    by_definition = "a definition says overlays, tags, platform and architectures: leave out these options"
    _refuse(
        "name an image with --base, or definitions, or --all", bool(definitions or everything) == (base is not None)
    )
    _refuse(by_definition, base is None and any(options.values()))
    _refuse("--registry has no engine: leave out --push and --gpus", registry and (push or gpus))
    _refuse("--untagged goes with --registry", untagged and not registry)
    orders = [
        replace(order, set_tags=not untagged, push=push, tests=_tests(order, gpus=gpus, no_test=no_test))
        for order in _orders(definitions, base, options, everything=everything)
    ]
    untargeted = (push or registry) and not all(order.tags for order in orders)
    _refuse(f"--{'push' if push else 'registry'} needs a --tag: the name to push to", untargeted)
    _refuse("--gpus is a test: leave out --no-test", no_test and gpus)
    for order in orders:
        _check_names(order)
        select(discover(), order.overlays or None)  # before the first is built, or published
    unwinding()
    reports = [_built(order, registry=registry) for order in orders]
    return reports[0] if len(reports) == 1 else _together(reports)


def _refuse(message: str, wrong: object) -> None:
    if wrong:
        raise click.UsageError(message)


def _orders(files: tuple[Path, ...], base: str | None, options: dict[str, Any], *, everything: bool) -> list[Order]:
    if base is None:
        return read_definitions(definition_files(Path()) if everything else files)
    overlays, names = options.pop("ids"), options.pop("tags")
    tags = [name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest" for name in names]
    return [Order(base, tags=tuple(tags), overlays=overlays, **options)]


def _tests(order: Order, *, gpus: bool, no_test: bool = False) -> frozenset[str]:
    return frozenset() if no_test else order.tests | {"gpus"} if gpus else order.tests


def _check_names(order: Order) -> None:
    """Reject invalid tags and the base's own name, which stays with the base."""
    for name in order.tags:
        try:
            named = parse(name)
        except Failure as failure:
            raise click.UsageError(str(failure)) from failure
        if named.digest:
            raise click.UsageError(f"--tag {name}: a digest comes of what is built")
        if not order.base.startswith("sha256:") and named.full == parse(order.base).full:
            raise click.UsageError(f"{name} is the base's own name: it stays with the base")


def _built(order: Order, *, registry: bool) -> Report:
    with extra_required():
        if registry:
            from vpatch.image.registry.build import build
        else:
            from vpatch.image.engine.build import build
    try:
        with bar(f"reading {order.base}") as progress:
            return _report(build(order, select(discover(), order.overlays or None), progress))
    except Failure as failure:  # the other images are built and reported all the same
        base = {"ref": order.base, "digest": None}
        nothing: dict[str, Any] = {"base": base, "image": None, "layer": None, "tests": []}
        return Report("build", problems=failure.problems, extra=nothing)


def _report(built: Built) -> Report:
    read = [f"read {built.extra['bytes_read'] / 1e6:.1f} MB of the base"] if "bytes_read" in built.extra else []
    for line in (*read, *built.notes, *map(str, built.tests)):
        tell(line)
    layer = built.layer
    extra: dict[str, Any] = {
        "base": {"ref": built.base.ref, "digest": built.base.digest or built.base.id},
        "image": {"ref": built.image, "digest": built.image.rpartition("@")[2]} if built.image else None,
        "layer": layer and {"diff_id": layer.diff_id, "bytes": len(layer.blob), "files": list(layer.files)},
        "tests": [asdict(test) for test in built.tests],
        "notes": list(built.notes),
        **built.extra,
    }
    about = (built.root, built.vllm, built.verdicts, (), built.problems, extra, [built.image] if built.image else [])
    return Report("build", *about, failed=failed(built.tests))


def _together(reports: Sequence[Report]) -> Report:
    """Return one report of several builds."""
    return Report(
        "build",
        problems=[problem for report in reports for problem in report.problems],
        extra={"builds": [json.loads(report.as_json()) for report in reports]},
        lines=[line for report in reports for line in report.lines or ()],
        failed=any(report.failed for report in reports),
    )


@click.command("test")
@click.argument("image")
@click.option("--gpus", is_flag=True, help="Give the tests all GPUs, and serve a small model too.")
@reported
def test_command(image: str, *, gpus: bool) -> Report:
    """Test a patched IMAGE again, inside containers of it that have no network."""
    with extra_required():
        from vpatch.image.engine.build import retest

    unwinding()
    with bar(f"pulling {image}") as progress:
        base, tests = retest(image, _tests(Order(image), gpus=gpus), progress)
    extra = {"image": {"ref": image, "digest": base.digest or base.id}, "tests": [asdict(test) for test in tests]}
    return Report("test", extra=extra, lines=[*map(str, tests)], failed=failed(tests))


@click.command("inspect")
@click.argument("image")
@click.option("--platform", metavar="OS/ARCH", help="For which platform, as linux/amd64.")
@click.option("--sbom", is_flag=True, help="Print a CycloneDX bill of materials of what vpatch added.")
@verbose_option
@reported
def inspect_command(image: str, *, platform: str | None, sbom: bool) -> Report:
    """Tell what was done to a patched IMAGE: by the engine where it has it, else by its registry, without a pull."""
    found, source = _find(image, platform)
    said = provenance_of(found)
    labels = {key: value for key, value in found.labels.items() if key.startswith(_OCI)}
    extra: dict[str, Any] = {
        "image": {"ref": image, "digest": found.digest or found.id, "from": source},
        "base": {key: labels.get(f"{_OCI}base.{key}") for key in ("name", "digest")},
        "overlays": list(said.overlays),
        "vpatch": said.vpatch,
        "files": dict(said.files),
        "labels": labels,
    }
    if sbom:
        with extra_required():
            from vpatch.image.sbom import sbom_of

        document = sbom_of(found, said)
        extra["sbom"] = json.loads(document)
        return Report("inspect", said.root, said.vllm, extra=extra, lines=document.splitlines(), exact=True)
    lines = [
        f"{image}: vLLM {said.vllm}, patched by vpatch {said.vpatch}",
        *(f"{key.removeprefix(_OCI)}: {value}" for key, value in sorted(labels.items())),
        *(f"{one['id']}: {one['state']}: {one['because']}" for one in said.overlays),
        *(f"changed: {said.root}/{path}" for path in said.files),
    ]
    return Report("inspect", said.root, said.vllm, extra=extra, lines=lines)


def _find(ref: str, platform: str | None) -> tuple[Base, str]:
    """Return the image and who has it: the engine, or else its registry. Nothing is pulled."""
    with extra_required():
        from vpatch.image.engine import engine, resolve
        from vpatch.image.registry.image import open_image
    try:
        with engine() as client:
            return resolve(client, ref, platform, pull=False), "engine"
    except Failure:
        if ref.startswith("sha256:"):  # an ID: only an engine knows it
            raise
    return open_image(parse(ref), platform).base, "registry"


@click.command("tag")
@click.argument("image", metavar="REPOSITORY@DIGEST")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@verbose_option
@reported
def tag_command(image: str, names: tuple[str, ...]) -> Report:
    """Set tags, in its registry, to an image that was pushed by digest: the last step, once it is tested and signed."""
    with extra_required():
        from vpatch.image.registry.build import tag

    named = parse(image)
    if named.digest is None:
        raise click.UsageError(f"{image} has no digest: name what was tested")
    for name in map(parse, names):
        if name.name != named.name or name.tag is None:
            raise click.UsageError(f"{name} is no tag of {named.name}")
    for name in map(parse, names):
        tag(named, named.digest, str(name.tag))
    return Report("tag", extra={"image": {"ref": image, "digest": named.digest}}, changed=names)

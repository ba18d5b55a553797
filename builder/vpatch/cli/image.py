"""The commands for images: build, test, inspect, tag."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vpatch.cli.image_report import as_json, build_report, failed, lines, together
from vpatch.cli.options import chosen, overlay_option, reported, unwinding, verbose_option
from vpatch.cli.output import Report
from vpatch.cli.progress import bar
from vpatch.errors import Failure

if TYPE_CHECKING:
    from vpatch.image.definition import Definition
    from vpatch.image.order import Order


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
    ids: tuple[str, ...],
    tags: tuple[str, ...],
    architectures: tuple[str, ...],
    *,
    everything: bool,
    push: bool,
    registry: bool,
    untagged: bool,
    platform: str | None,
    python: str | None,
    no_test: bool,
    gpus: bool,
) -> Report:
    """Build a patched image: the base, and one layer with the changed files.

    Prints the image's ID, or repository@digest once pushed. A tag is set last: an image that fails a test gets none.
    With --registry no engine is needed, and of the base only the layers that hold vLLM are read; tests that need a
    container are not run then. FILE.toml says base, overlays and tags of an image that is published.
    """
    from vpatch.image.access import Order

    if bool(definitions or everything) == (base is not None):
        raise click.UsageError("name an image with --base, or definitions, or --all")
    if base is None and (ids or tags or platform or python or architectures):
        raise click.UsageError("a definition says overlays, tags, platform and architectures: leave out these options")
    if registry and (push or gpus):
        raise click.UsageError("--registry has no engine: leave out --push and --gpus")
    if untagged and not registry:
        raise click.UsageError("--untagged goes with --registry")
    if base is None:
        from vpatch.image.access import everything as every
        from vpatch.image.access import read

        orders = [_defined(one) for one in read(every(Path()) if everything else list(definitions))]
    else:
        orders = [(Order(base, platform, python, tuple(map(_full, tags)), architectures=architectures), ids)]
    if (push or registry) and not all(order.tags for order, _ in orders):
        raise click.UsageError(f"--{'push' if push else 'registry'} needs a --tag: the name to push to")
    if no_test and gpus:
        raise click.UsageError("--gpus is a test: leave out --no-test")
    for order, named in orders:
        _check_names(order)
        chosen(named)  # before the first is built, or published
    unwinding()
    reports = [
        _built(
            replace(order, set_tags=not untagged, push=push, tests=_tests(order.tests, no_test=no_test, gpus=gpus)),
            named,
            registry=registry,
        )
        for order, named in orders
    ]
    return reports[0] if len(reports) == 1 else together(reports)


def _defined(said: Definition) -> tuple[Order, tuple[str, ...]]:
    from vpatch.image.access import Order

    order = Order(said.base, said.platform, None, said.tags, architectures=said.architectures, tests=said.tests)
    return order, said.overlays


def _tests(asked: frozenset[str], *, no_test: bool, gpus: bool) -> frozenset[str]:
    return frozenset() if no_test else asked | {"gpus"} if gpus else asked


def _check_names(order: Order) -> None:
    """Refuse names that cannot be set, and the base's own: that stays with the base."""
    from vpatch.image.access import parse

    for name in order.tags:
        try:
            named = parse(name)
        except Failure as failure:
            raise click.UsageError(str(failure)) from failure
        if named.digest:
            raise click.UsageError(f"--tag {name}: a digest comes of what is built")
        if not order.base.startswith("sha256:") and named.full == parse(order.base).full:
            raise click.UsageError(f"{name} is the base's own name: it stays with the base")


def _built(order: Order, ids: tuple[str, ...], *, registry: bool) -> Report:
    if registry:
        from vpatch.image.access import build_in_registry as build
    else:
        from vpatch.image.access import build_in_engine as build
    try:
        with bar(f"reading {order.base}") as progress:
            return build_report(build(replace(order, named=ids), chosen(ids), progress))
    except Failure as failure:  # the others are built, and told of, all the same
        base = {"ref": order.base, "digest": None}
        return Report(
            "build", problems=failure.problems, extra={"base": base, "image": None, "layer": None, "tests": []}
        )


def _full(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest"


@click.command("test")
@click.argument("image")
@click.option("--gpus", is_flag=True, help="Give the tests all GPUs, and serve a small model too.")
@reported
def test_command(image: str, *, gpus: bool) -> Report:
    """Test a patched IMAGE again, inside containers of it that have no network."""
    from vpatch.image.access import Order, tested

    unwinding()
    with bar(f"pulling {image}") as progress:
        base, tests = tested(image, _tests(Order(image).tests, no_test=False, gpus=gpus), progress)
    extra = {"image": {"ref": image, "digest": base.digest or base.id}, "tests": as_json(tests)}
    return Report("test", extra=extra, lines=lines(tests), failed=failed(tests))


@click.command("inspect")
@click.argument("image")
@click.option("--platform", metavar="OS/ARCH", help="For which platform, as linux/amd64.")
@verbose_option
@reported
def inspect_command(image: str, *, platform: str | None) -> Report:
    """Tell what was done to a patched IMAGE: by the engine where it has it, else by its registry, without a pull."""
    from vpatch.image.access import look

    seen = look(image, platform)
    labels = {key: value for key, value in seen.image.labels.items() if key.startswith("org.opencontainers.image.")}
    extra = {
        "image": {"ref": image, "digest": seen.image.digest or seen.image.id, "from": seen.told_by},
        "base": {key: labels.get(f"org.opencontainers.image.base.{key}") for key in ("name", "digest")},
        "overlays": list(seen.said.overlays),
        "vpatch": seen.said.vpatch,
        "files": dict(seen.said.files),
        "labels": labels,
    }
    lines = [
        f"{image}: vLLM {seen.said.vllm}, patched by vpatch {seen.said.vpatch}",
        *(f"{key.removeprefix('org.opencontainers.image.')}: {value}" for key, value in sorted(labels.items())),
        *(f"{one['id']}: {one['state']}: {one['because']}" for one in seen.said.overlays),
        *(f"changed: {seen.said.root}/{path}" for path in seen.said.files),
    ]
    return Report("inspect", seen.said.root, seen.said.vllm, extra=extra, lines=lines)


@click.command("tag")
@click.argument("image", metavar="REPOSITORY@DIGEST")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@verbose_option
@reported
def tag_command(image: str, names: tuple[str, ...]) -> Report:
    """Set tags, in its registry, to an image that was pushed by digest: the last step, once it is tested and signed."""
    from vpatch.image.access import parse, tag

    named = parse(image)
    if named.digest is None:
        raise click.UsageError(f"{image} has no digest: name what was tested")
    for name in map(parse, names):
        if name.name != named.name or name.tag is None:
            raise click.UsageError(f"{name} is no tag of {named.name}")
    for name in map(parse, names):
        tag(named, named.digest, str(name.tag))
    return Report("tag", extra={"image": {"ref": image, "digest": named.digest}}, changed=names)

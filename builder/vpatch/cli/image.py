"""The commands for images: build, test, inspect, tag."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import click

from vpatch.cli.bar import bar
from vpatch.cli.options import chosen, complete_overlay, not_applicable, reported
from vpatch.image.build import Built, Order
from vpatch.image.model import Tested
from vpatch.report import Report


@click.command("build")
@click.option("--base", metavar="IMAGE", help="The image to build on: a tag, or better a digest.")
@click.option(
    "--overlay",
    "ids",
    multiple=True,
    metavar="ID",
    shell_complete=complete_overlay,
    help="Only this overlay (repeatable). Default: every one that is not opt-in.",
)
@click.option("--tag", "tags", multiple=True, metavar="NAME", help="Name of the new image (repeatable). Default: none.")
@click.option("--push", is_flag=True, help="Push every --tag to its registry, after the tests.")
@click.option("--registry", is_flag=True, help="Build without an engine, in the registry that --tag names.")
@click.option("--untagged", is_flag=True, help="With --registry: push by digest, and leave the tags as they are.")
@click.option("--platform", metavar="OS/ARCH", help="For which platform, as linux/amd64.")
@click.option("--python", metavar="PATH", help="The interpreter inside the image. Default: python3 on its PATH.")
@click.option("--no-test", is_flag=True, help="Don't test the new image.")
@click.option("--gpus", is_flag=True, help="Give the tests all GPUs, and serve a small model too.")
@reported
def build_command(
    base: str | None,
    ids: tuple[str, ...],
    tags: tuple[str, ...],
    *,
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
    container are not run then.
    """
    if base is None:
        raise click.UsageError("name an image with --base")
    if (push or registry) and not tags:
        raise click.UsageError(f"--{'push' if push else 'registry'} needs a --tag: the name to push to")
    if registry and (push or gpus):
        raise click.UsageError("--registry has no engine: leave out --push and --gpus")
    if untagged and not registry:
        raise click.UsageError("--untagged goes with --registry")
    order = Order(
        base,
        platform,
        python,
        tuple(map(_full, tags)),
        set_tags=not untagged,
        push=push,
        test=not no_test,
        gpus=gpus,
    )
    if order.base in order.tags:
        raise click.UsageError(f"--tag {base} is the base's own name: it stays with the base")
    _unwinding()
    if registry:
        from vpatch.image.registry.build import build
    else:
        from vpatch.image.engine.build import build
    with bar(f"reading {base}") as progress:
        built = build(order, chosen(ids), progress)
    return _report(built, ids)


def _full(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _unwinding() -> None:
    """Let SIGTERM end the run as SIGINT does: containers and half-made images go, however it ends."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@click.command("test")
@click.argument("image")
@click.option("--gpus", is_flag=True, help="Give the tests all GPUs, and serve a small model too.")
@reported
def test_command(image: str, *, gpus: bool) -> Report:
    """Test a patched IMAGE again, inside containers of it that have no network."""
    from vpatch.image.engine.build import tested

    _unwinding()
    with bar(f"pulling {image}") as progress:
        base, tests = tested(image, progress, gpus=gpus)
    extra = {"image": {"ref": image, "digest": base.digest or base.id}, "tests": _as_json(tests)}
    return Report("test", extra=extra, lines=_lines(tests), failed=_failed(tests))


@click.command("inspect")
@click.argument("image")
@click.option("--platform", metavar="OS/ARCH", help="For which platform, as linux/amd64.")
@reported
def inspect_command(image: str, *, platform: str | None) -> Report:
    """Tell what was done to a patched IMAGE: by the engine where it has it, else by its registry, without a pull."""
    from vpatch.image.inspect import look

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
@reported
def tag_command(image: str, names: tuple[str, ...]) -> Report:
    """Set tags, in its registry, to an image that was pushed by digest: the last step, once it is tested and signed."""
    from vpatch.image.registry.push import tag
    from vpatch.image.registry.reference import parse

    named = parse(image)
    if named.digest is None:
        raise click.UsageError(f"{image} has no digest: name what was tested")
    for name in map(parse, names):
        if name.name != named.name or name.tag is None:
            raise click.UsageError(f"{name} is no tag of {named.name}")
    for name in map(parse, names):
        tag(named, named.digest, str(name.tag))
    return Report("tag", extra={"image": {"ref": image, "digest": named.digest}}, changed=names)


def _report(built: Built, ids: tuple[str, ...]) -> Report:
    problems = [*built.problems, *not_applicable(built.verdicts, ids, built.base.ref)]
    read = [f"read {built.extra['bytes_read'] / 1e6:.1f} MB of the base"] if "bytes_read" in built.extra else []
    for line in (*read, *built.notes, *_lines(built.tests)):
        click.echo(line, err=True)
    layer = built.layer
    extra = {
        "base": {"ref": built.base.ref, "digest": built.base.digest or built.base.id},
        "image": {"ref": built.image, "digest": built.image.rpartition("@")[2]} if built.image else None,
        "layer": layer and {"diff_id": layer.diff_id, "bytes": len(layer.blob), "files": list(layer.files)},
        "tests": _as_json(built.tests),
        "notes": list(built.notes),
        **built.extra,
    }
    lines = [built.image] if built.image else []
    failed = _failed(built.tests)
    return Report(
        "build", built.root, built.vllm, built.verdicts, problems=problems, extra=extra, lines=lines, failed=failed
    )


def _failed(tests: Sequence[Tested]) -> bool:
    return any(test.ok is False for test in tests)


def _as_json(tests: Sequence[Tested]) -> list[dict[str, object]]:
    return [{"name": test.name, "ok": test.ok, "because": test.because} for test in tests]


def _lines(tests: Sequence[Tested]) -> list[str]:
    words = {True: "passed", False: "FAILED", None: "not run"}
    return [f"{test.name}: {words[test.ok]}: {test.because}" for test in tests]

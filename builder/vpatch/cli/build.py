"""The command that builds images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from vpatch.cli import image_outcome as outcome
from vpatch.cli.options import (
    PathType,
    examples,
    overlay_option,
    project,
    receipt_option,
    reported,
    selected,
    unwinding,
    verbose_option,
    with_option,
    with_project,
    without_option,
)
from vpatch.cli.output import Report, as_object, fitted, for_people, frame, remark, tell, tell_table
from vpatch.cli.progress import phases
from vpatch.cli.wording import Line, as_objects, noted, rows
from vpatch.core.catalogue import Selection, discover
from vpatch.errors import Failure, Problem, UnknownName
from vpatch.image import Watch, ignored
from vpatch.image.checks import check_names, failed
from vpatch.image.config import check_label, extra_required
from vpatch.image.order import Built, Order, check_files, definition_files, read_definitions
from vpatch.image.registry.reference import parse

_MB = 1e6


def _labels(_context: click.Context, _parameter: click.Parameter, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what is no label, and the labels of vpatch's own."""
    if wrong := next(filter(None, map(check_label, labels)), ""):
        raise click.BadParameter(wrong)
    return labels


@click.command(
    "build",
    epilog=examples(
        "build --base vllm/vllm-openai:v0.20.2 --tag me/vllm:v0.20.2",
        "build --registry --base ghcr.io/a/vllm:v1 --tag ghcr.io/me/vllm:v1",
        "build images/v0.20.2.toml --push",
    ),
)
@click.argument("definitions", metavar="[FILE.toml]...", nargs=-1, type=PathType())
@click.option("--all", "everything", is_flag=True, help="Build every images/*.toml.")
@click.option("--base", metavar="IMAGE", help="The image to build on; NAME@DIGEST pins it.")
@overlay_option()
@with_option
@without_option
@reported
@with_project
@receipt_option
@click.option("--tag", "tags", multiple=True, metavar="NAME", help="A name of the new image (repeatable).")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_labels,
    help="A label of the new image, such as org.opencontainers.image.source=URL (repeatable).",
)
@click.option("--push", is_flag=True, help="Push every --tag to its registry, after the tests.")
@click.option("--registry", is_flag=True, help="Build in the registry that --tag names, without an engine.")
@click.option("--untagged", is_flag=True, help="With --registry: push by digest only. `vpatch tag` sets tags later.")
@click.option("--platform", metavar="OS/ARCH", help="The platform, as linux/amd64.")
@click.option("--python", metavar="PATH", help="The interpreter inside the image. Default: python3 on its PATH.")
@click.option(
    "--require-arch",
    "architectures",
    multiple=True,
    metavar="SM",
    help="A GPU that the base must serve, as sm_120 (repeatable).",
)
@click.option("--no-test", is_flag=True, help="Skip the tests.")
@click.option("--gpus", is_flag=True, help="Also serve a small model on all GPUs, as a test.")
@verbose_option("Show parts, all tests, and which servers get your login.")
def build_command(
    definitions: tuple[Path, ...],
    base: str | None,
    labels: tuple[str, ...],
    *,
    everything: bool,
    push: bool,
    registry: bool,
    untagged: bool,
    no_test: bool,
    gpus: bool,
    verbose: bool,
    **options: Any,
) -> Report:
    """Build a patched image: the base and one small layer.

    vpatch finds vLLM in the base, applies the overlays, and tests the new image in containers of it. It sets tags last:
    an image that fails a test gets none. It prints the image's ID, or repository@digest once pushed.

    With --registry, vpatch needs no engine and reads only the layers that hold vLLM. Tests that need a container are
    not run; run `vpatch test` where there is an engine. FILE.toml defines base, overlays and tags of an image.
    """
    if base and registry and definitions:
        _refuse(f"--registry takes no value: name the new image by --tag {definitions[0]}", definitions)
    _refuse("name one: --base IMAGE, FILE.toml, or --all", bool(definitions or everything) == (base is not None))
    _refuse("--all builds every images/*.toml: leave out --all, or the files", everything and definitions)
    in_file = "FILE.toml has the overlays, tags, platform and architectures: leave out these options"
    _refuse(in_file, base is None and any(options.values()))
    given = (options.pop(name) for name in ("ids", "more", "fewer"))
    selection = selected(*given, receipt=options.pop("receipt"))
    _refuse("--registry builds without an engine: leave out --push and --gpus", registry and (push or gpus))
    _refuse("--untagged is for --registry: add it", untagged and not registry)
    _refuse("--gpus is a test: leave out --no-test", no_test and gpus)
    on_gpus = {"gpus"} if gpus else set()
    orders = [
        replace(
            order,
            labels=labels,
            set_tags=not untagged,
            push=push,
            tests=frozenset() if no_test else order.tests | on_gpus,
        )
        for order in _orders(definitions, base, selection, options, everything=everything)
    ]
    untargeted = (push or registry) and not all(order.tags for order in orders)
    _refuse(f"--{'push' if push else 'registry'} needs a --tag: the name to push to", untargeted)
    _check(orders)  # before the first is built, or published
    unwinding()
    if len(orders) == 1:
        return _built(orders[0], registry=registry, verbose=verbose)
    reports = []
    for order in orders:
        reports.append(_built(order, registry=registry, verbose=verbose))
        remark(reports[-1], as_object=not for_people())
    problems = [problem for report in reports for problem in report.problems]
    wrong = [bool(report.exit_code) for report in reports]
    summary = outcome.of_all(orders, wrong, registry=registry)
    return BuildsReport(builds=reports, problems=problems, failed=any(wrong), outcome=summary)


def _refuse(message: str, wrong: object) -> None:
    if wrong:
        raise click.UsageError(message)


def _orders(
    files: tuple[Path, ...], base: str | None, selection: Selection, options: dict[str, Any], *, everything: bool
) -> list[Order]:
    if base is None:
        check_files(files)
        return read_definitions(definition_files(Path()) if everything else files)
    names = options.pop("tags")
    tags = [name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest" for name in names]
    options |= {"also": selection.also, "without": selection.without, "default": selection.default}
    return [Order(base, tags=tuple(tags), overlays=selection.only or (), **options)]


def _check(orders: Sequence[Order]) -> None:
    """Reject names that are wrong: of images, overlays and architectures. Those of all orders are told at once."""
    problems: list[Problem] = []
    installed = discover()
    for order in orders:
        _check_names(order)
        for check in (partial(order.selection.among, installed), partial(check_names, order.architectures)):
            try:
                check()
            except UnknownName as unknown:
                problems += (replace(one, scope=order.path) for one in unknown.problems)
    if problems:
        raise UnknownName(*problems)


def _check_names(order: Order) -> None:
    """Reject invalid tags and the base's own name, which stays with the base."""
    for name in order.tags:
        try:
            named = parse(name)
        except Failure as failure:
            raise click.UsageError(str(failure)) from failure
        _refuse(f"--tag {name}: a digest results from the build; leave it out", named.digest)
        same = not order.base.startswith("sha256:") and named.full == parse(order.base).full
        _refuse(f"{name} is the base's own name: it stays with the base", same)


def _built(order: Order, *, registry: bool, verbose: bool) -> BuildReport:
    with extra_required():
        if registry:
            from vpatch.image.registry.build import build
        else:
            from vpatch.image.engine.build import build
    try:
        with watching() as watch:
            built = build(order, order.selection.among(discover()), watch)
    except Failure as failure:  # the other images are built and reported all the same
        said = outcome.of_failure(order, failure, registry=registry)
        unknown = isinstance(failure, UnknownName)
        return BuildReport(base=order.base, problems=failure.problems, misused=unknown, outcome=said)
    _tell(built, verbose=verbose)
    said = outcome.of_build(order, built, registry=registry)
    notes = noted((), built.verdicts)
    lost = failed(built.tests)
    return BuildReport(base=order.base, built=built, problems=built.problems, failed=lost, notes=notes, outcome=said)


@contextmanager
def watching() -> Iterator[Watch]:
    """Show the phases of a build or a test, and say which vLLM was found."""
    with phases() as phase:
        yield Watch(phase or ignored, introduce)


def introduce(image: str, vllm: str, vpatch: str = "") -> None:
    """Print the first line: which vLLM, in which image."""
    named = f" (project: {project().file})" if project().file else ""
    frame(f"vLLM {vllm} in {outcome.short(image)}{f', patched by vpatch {vpatch}' if vpatch else ''}{named}")


def _tell(built: Built, *, verbose: bool) -> None:
    """Print what was found and tested; stdout has the image only."""
    if not for_people():
        for line in outcome.failures(built.tests):
            tell(line, fg="red")
        return
    tell_table([*rows(built.verdicts, parts=verbose)])
    read = built.extra.get("bytes_read")
    for line in (*built.notes, *(built.details if verbose else ())):
        tell(f"  {line}")
    if read is not None and verbose:
        tell(f"  read {read / _MB:.1f} MB of the base")
    red = {*outcome.failures(built.tests)}
    for line in outcome.test_lines(built.tests, verbose=verbose, everything=False):
        tell(line, fg="red" if line in red else None)
    if built.digest and built.image:
        tell(f"  receipt: {built.digest}")


@dataclass(frozen=True, kw_only=True)
class BuildReport(Report):
    """The report of one build; `built` is None if it could not go on."""

    base: str
    built: Built | None = None

    def fields(self) -> Mapping[str, Any]:
        """Return the base, the image, its layer and its tests."""
        if self.built is None:
            return {
                "base": {"ref": self.base, "digest": None},
                "image": None,
                "layer": None,
                "digest": None,
                "tests": [],
            }
        built, layer = self.built, self.built.layer
        idle = [] if layer or built.problems else [f"nothing to build: {built.base.ref}"]
        return {
            "tree": built.root,
            "vllm": built.vllm,
            "overlays": as_objects(built.verdicts),
            "base": {"ref": built.base.ref, "digest": built.base.digest or built.base.id},
            "image": {"ref": built.image, "digest": built.image.rpartition("@")[2]} if built.image else None,
            "layer": layer and {"diff_id": layer.diff_id, "bytes": len(layer.blob), "files": list(layer.files)},
            "digest": (built.digest or None) if built.image else None,
            "tests": [asdict(test) for test in built.tests],
            "notes": [*built.notes, *built.details, *idle],
            **built.extra,
        }

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield the image."""
        if self.built and self.built.image:
            yield from fitted([self.built.image], width)


@dataclass(frozen=True, kw_only=True)
class BuildsReport(Report):
    """The report of several builds, whose problems were printed after each."""

    builds: Sequence[BuildReport]

    @property
    def unseen(self) -> Sequence[Problem | str]:
        """Nothing: each build was reported at its end."""
        return ()

    def fields(self) -> Mapping[str, Any]:
        """Return the object of each build."""
        return {"builds": [as_object("build", build) for build in self.builds]}

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield the images."""
        for build in self.builds:
            yield from build.shown(width)

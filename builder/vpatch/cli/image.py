"""The commands for images that are patched: test, inspect, tag."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from vpatch.cli import image_outcome as outcome
from vpatch.cli.build import introduce, watching
from vpatch.cli.options import examples, reported, unwinding, verbose_option
from vpatch.cli.output import Failed, Report, TextReport, fitted, frame
from vpatch.cli.wording import Line, Row, command, counted, listed, table
from vpatch.core.verdict import State
from vpatch.errors import Failure, Problem, UnknownName
from vpatch.image import Watch
from vpatch.image.checks import failed
from vpatch.image.config import OCI, Base, NoGpusError, extra_required
from vpatch.image.order import Order
from vpatch.image.patch import Label
from vpatch.image.registry.reference import parse
from vpatch.image.standing import Standing, in_engine, in_registry
from vpatch.manifest import as_json
from vpatch.net import megabytes

if TYPE_CHECKING:
    from vpatch.image.registry.image import RemoteImage

_OCI = f"{OCI}."


@click.command("test", epilog=examples("test me/vllm:v0.20.2", "test me/vllm:v0.20.2 --gpus"))
@click.argument("image")
@click.option("--gpus", is_flag=True, help="Also serve a small model on all GPUs.")
@click.option("-v", "--verbose", is_flag=True, help="Show every test.")
@reported
def test_command(image: str, *, gpus: bool, verbose: bool) -> Report:
    """Test a patched IMAGE again.

    Each test runs in a container of the image, without a network. A test that lacks a package or a library, such as the
    GPU's driver, is not run, and does not fail.
    """
    unwinding()
    tests = Order(image).tests | ({"gpus"} if gpus else set())
    try:
        with extra_required():
            from vpatch.image.engine.build import retest
        with watching() as watch:
            found, ran = retest(image, tests, watch)
    except Failure as failure:
        without = f" Without GPUs: {command('test', image)}." if isinstance(failure, NoGpusError) else ""
        unknown = isinstance(failure, UnknownName)
        return Failed(problems=failure.problems, misused=unknown, outcome=f"Not tested.{without}")
    fields = {"image": {"ref": image, "digest": found.digest or found.id}, "tests": [asdict(test) for test in ran]}
    lines = [*outcome.test_lines(ran, verbose=verbose, everything=True)]
    return TextReport(object=fields, lines=lines, failed=failed(ran), outcome=outcome.of_test(image, ran))


@click.command("inspect", epilog=examples("inspect me/vllm:v0.20.2", "inspect --json me/vllm:v0.20.2 | jq .image"))
@click.argument("image")
@click.option("--platform", metavar="OS/ARCH", help="The platform, as linux/amd64.")
@click.option("--sbom", is_flag=True, help="Print a CycloneDX bill of materials of what vpatch added.")
@verbose_option("Show reasons, files, labels, and which servers get your login.")
@reported
def inspect_command(image: str, *, platform: str | None, sbom: bool, verbose: bool) -> Report:
    """Show what was done to a patched IMAGE.

    vpatch asks the engine if it has the image, else its registry, and compares the image's files with its label: a
    later layer may have changed them. It pulls nothing.
    """
    try:
        found, remote = _find(image, platform)
        with watching() as watch:
            label, now = in_registry(remote, watch) if remote else in_engine(found, watch)
    except _NowhereError as nowhere:
        said = outcome.of_nowhere(image, nowhere.first, pull=nowhere.pull)
        return Failed(problems=nowhere.problems, misused=nowhere.certain, outcome=said)
    except Failure as failure:
        return Failed(problems=failure.problems, outcome="Nothing to show.")
    source = "registry" if remote else "engine"
    about: dict[str, Any] = {"image": image, "found": found, "source": source, "label": label, "now": now}
    about |= {"verbose": verbose, "problems": [*_problems(label, now)]}
    summary, unsure = outcome.of_inspect(image, label, now), now.lost or now.unread
    if sbom:
        with extra_required():
            from vpatch.image.sbom import sbom_of
        document = sbom_of(found, label, now)
        return SbomReport(**about, document="" if unsure else document, outcome=summary if unsure else "")
    if now.whole:
        introduce(image, label.vllm, label.vpatch)
    else:
        frame(f"{outcome.short(image)} was built on a vLLM {label.vllm} that vpatch {label.vpatch} patched")
    return InspectReport(**about, outcome=summary)


@dataclass(frozen=True, kw_only=True)
class InspectReport(Report):
    """The report of `inspect`: what an image's label says was done to it, and what is so now."""

    image: str
    found: Base
    source: str
    label: Label
    now: Standing
    verbose: bool

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that the OCI's specification of images defines."""
        return {key: value for key, value in self.found.labels.items() if key.startswith(_OCI)}

    @property
    def digest(self) -> str | None:
        """The image's digest, or its ID."""
        return self.found.digest or self.found.id

    @property
    def base(self) -> Mapping[str, str | None]:
        """The name and the digest of the image's base."""
        return {key: self.labels.get(f"{_OCI}base.{key}") for key in ("name", "digest")}

    def fields(self) -> Mapping[str, Any]:
        """Return the image, what was done to it, and what is no longer so."""
        label, now = self.label, self.now
        return {
            "tree": label.root,
            "vllm": label.vllm if now.whole else None,
            "image": {"ref": self.image, "digest": self.digest, "from": self.source},
            "base": self.base,
            "overlays": now.overlays(label),
            "vpatch": label.vpatch,
            "by": "vpatch build" if label.built else "vpatch apply",
            "digest": now.digest or None,
            "files": as_json(label.files),
            "later_layers": now.later,
            "changed_since": dict(now.lost),
            "labels": self.labels,
            **{key: value for key, value in now.read.items() if key != "layers"},
        }

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield a line for each overlay, and lines on the image."""
        yield from table([*_rows(self.now.overlays(self.label), verbose=self.verbose)], width)
        details = [f"base: {value}" for value in self.base.values() if value]
        details += [f"receipt: {self.now.digest}"] if self.now.digest else []
        details += [f"image: {self.digest}", *(_everything(self.label, self.labels) if self.verbose else ())]
        details += [f"layers above vpatch's: {self.now.later}"] if self.now.later else []
        if read := self.now.read:
            count = f"{len({*read['layers_read']})} of {counted(read['layers'], 'layer')}"
            details += [f"read: {count}, {megabytes(read['bytes_read'])}"]
        yield from fitted(details, width)


@dataclass(frozen=True, kw_only=True)
class SbomReport(InspectReport):
    """The report of `inspect --sbom`; the document is empty if the image is not as built."""

    document: str
    exact: ClassVar[bool] = True

    def fields(self) -> Mapping[str, Any]:
        """Return the document, too."""
        document = {"sbom": json.loads(self.document)} if self.document else {}
        return {**super().fields(), **document}

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield the document."""
        yield from map(Line, self.document.splitlines())


def _problems(label: Label, now: Standing) -> Iterator[Problem]:
    if now.unread:
        yield now.unread
    elif now.whole:
        title = "not as built" if label.built else "not as recorded"
        yield from (Problem(title, f"{label.root}/{path}", f"it {what}") for path, what in now.lost.items())
    else:
        why = f"{counted(len(now.lost), 'file')} gone or changed: another vLLM is there now"
        yield Problem("not as built", f"{label.root}/{label.dist_info}", why)


class _NowhereError(Failure):
    """Neither the engine nor the registry has an image for us, as far as they tell.

    `first` is what the engine failed with, which was asked first. `certain`: the registry answered that it has none.
    `pull`: it may have the image all the same.
    """

    def __init__(self, first: Failure, failure: Failure, *, pull: bool) -> None:
        super().__init__(*failure.problems)
        self.first, self.pull, self.certain = first, pull, isinstance(failure, UnknownName)


def _find(ref: str, platform: str | None) -> tuple[Base, RemoteImage | None]:
    """Return the image that the engine has, or else its registry, and then the one there, too. Nothing is pulled.

    Raises:
        _NowhereError: neither has it for us; the problems are the registry's.
        Failure: the engine's, for an ID.
    """
    with extra_required():
        from vpatch.image.engine import engine, resolve
        from vpatch.image.registry.image import find_image
        from vpatch.image.registry.repository import MissingError
    try:
        with engine() as client:
            return resolve(client, ref, platform, Watch(), pull=False), None
    except Failure as failure:
        if ref.startswith("sha256:"):  # an ID: only an engine knows it
            raise
        first = failure
    try:
        image = find_image(parse(ref), platform)
        return image.base, image
    except Failure as failure:
        raise _NowhereError(first, failure, pull=not isinstance(failure, MissingError)) from failure


def _rows(overlays: Iterable[Mapping[str, Any]], *, verbose: bool) -> Iterator[Row]:
    for one in overlays:
        files, brief = one.get("files"), one.get("brief")  # other versions of vpatch may write none
        remark = str(one["because"]) if verbose or not isinstance(brief, str) else brief
        if not verbose and one["state"] == State.APPLIED:
            remark = counted(len(files), "file") if isinstance(files, list) else ""
        yield f"  {one['id']}", str(one["state"]), remark


def _everything(label: Label, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield the labels and the files, one a line."""
    yield from (f"{key.removeprefix(_OCI)}: {value}" for key, value in sorted(labels.items()))
    for title, new in (("changed", False), ("added", True)):
        files = [path for path, written in label.files.items() if (written.before is None) is new]
        if files:
            yield from (f"{title} in {label.root}:", *files)


@click.command("tag", epilog=examples("tag ghcr.io/me/vllm@sha256:... ghcr.io/me/vllm:v1"))
@click.argument("image", metavar="REPOSITORY@DIGEST")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@verbose_option("Show which servers get your login.")
@reported
def tag_command(image: str, names: tuple[str, ...], **_options: bool) -> Report:
    """Tag an image that was pushed by digest.

    This is the last step, once the image is tested and signed. NAME is in the image's own repository.
    """
    with extra_required():
        from vpatch.image.registry.build import tag

    named = parse(image)
    if named.digest is None:
        raise click.UsageError(f"{image} has no digest: name the image as `vpatch build --untagged` prints it")
    for name in map(parse, names):
        if name.name != named.name or name.tag is None:
            raise click.UsageError(f"{name} is no tag of {named.name}")
    done: list[str] = []
    about = {"image": {"ref": image, "digest": named.digest}}
    try:
        for full in names:
            tag(named, named.digest, str(parse(full).tag))
            done.append(full)
    except Failure as failure:
        rest = names[len(done) :]
        again = f"{listed(rest)} is not set. To try again: {command('tag', image, *rest)}."
        return TextReport(object={"changed": done, **about}, problems=failure.problems, outcome=again)
    return TextReport(object={"changed": done, **about}, outcome=outcome.of_tag(image, names))

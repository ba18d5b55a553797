"""The commands for images that are patched: test, inspect, tag."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click

from vpatch.cli import image_outcome as outcome
from vpatch.cli.build import introduce, watching
from vpatch.cli.options import examples, reported, unwinding, verbose_option
from vpatch.cli.output import Report
from vpatch.cli.verdicts import Row
from vpatch.cli.wording import command, counted, listed
from vpatch.core.verdict import State
from vpatch.errors import Failure
from vpatch.image.checks import failed
from vpatch.image.config import OCI, Base, NoGpusError, extra_required
from vpatch.image.order import Order
from vpatch.image.patch import Provenance, provenance_of
from vpatch.image.registry.reference import parse

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
        return Report("test", problems=failure.problems, outcome=f"Not tested.{without}")
    extra = {"image": {"ref": image, "digest": found.digest or found.id}, "tests": [asdict(test) for test in ran]}
    lines = [*outcome.test_lines(ran, verbose=verbose, everything=True)]
    return Report("test", extra=extra, lines=lines, failed=failed(ran), outcome=outcome.of_test(image, ran))


@click.command("inspect", epilog=examples("inspect me/vllm:v0.20.2", "inspect --json me/vllm:v0.20.2 | jq .image"))
@click.argument("image")
@click.option("--platform", metavar="OS/ARCH", help="The platform, as linux/amd64.")
@click.option("--sbom", is_flag=True, help="Print a CycloneDX bill of materials of what vpatch added.")
@verbose_option("Show reasons, files, labels, and which servers get your login.")
@reported
def inspect_command(image: str, *, platform: str | None, sbom: bool, verbose: bool) -> Report:
    """Show what was done to a patched IMAGE.

    vpatch asks the engine if it has the image, else its registry. It pulls nothing.
    """
    try:
        found, source = _find(image, platform)
        said = provenance_of(found)
    except _NowhereError as nowhere:
        return Report(
            "inspect", problems=nowhere.problems, outcome=outcome.of_nowhere(image, nowhere.first, pull=nowhere.pull)
        )
    except Failure as failure:
        return Report("inspect", problems=failure.problems, outcome="Nothing to show.")
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
    introduce(image, said.vllm, said.vpatch)
    details = [f"base: {value}" for value in extra["base"].values() if value]
    details += [f"image: {found.digest or found.id}", *(_everything(said, labels) if verbose else ())]
    rows = [*_rows(said, verbose=verbose)]
    told = outcome.of_inspect(image, said)
    return Report("inspect", said.root, said.vllm, extra=extra, rows=rows, details=details, outcome=told)


class _NowhereError(Failure):
    """Neither the engine nor the registry has an image for us, as far as they tell.

    `first` is what the engine failed with, which was asked first. `pull`: its registry may have the image all the same.
    """

    def __init__(self, first: Failure, failure: Failure, *, pull: bool) -> None:
        super().__init__(*failure.problems)
        self.first, self.pull = first, pull


def _find(ref: str, platform: str | None) -> tuple[Base, str]:
    """Return the image and who has it: the engine, or else its registry. Nothing is pulled.

    Raises:
        _NowhereError: neither has it for us; the problems are the registry's.
        Failure: the engine's, for an ID.
    """
    with extra_required():
        from vpatch.image.engine import engine, resolve
        from vpatch.image.registry.find import find_image
        from vpatch.image.registry.image import MissingError
    try:
        with engine() as client:
            return resolve(client, ref, platform, pull=False), "engine"
    except Failure as failure:
        if ref.startswith("sha256:"):  # an ID: only an engine knows it
            raise
        first = failure
    try:
        return find_image(parse(ref), platform).base, "registry"
    except Failure as failure:
        raise _NowhereError(first, failure, pull=not isinstance(failure, MissingError)) from failure


def _rows(said: Provenance, *, verbose: bool) -> Iterator[Row]:
    for one in said.overlays:
        files, brief = one.get("files"), one.get("brief")  # other versions of vpatch may write none
        remark = str(one["because"]) if verbose or not isinstance(brief, str) else brief
        if not verbose and one["state"] == State.APPLIED:
            remark = counted(len(files), "file") if isinstance(files, list) else ""
        yield f"  {one['id']}", str(one["state"]), remark


def _everything(said: Provenance, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield the labels and the files, one a line."""
    yield from (f"{key.removeprefix(_OCI)}: {value}" for key, value in sorted(labels.items()))
    for title, new in (("changed", False), ("added", True)):
        files = [path for path, hashes in said.files.items() if (hashes["before"] is None) is new]
        if files:
            yield from (f"{title} in {said.root}:", *files)


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
    extra = {"image": {"ref": image, "digest": named.digest}}
    try:
        for full in names:
            tag(named, named.digest, str(parse(full).tag))
            done.append(full)
    except Failure as failure:
        rest = names[len(done) :]
        again = f"{listed(rest)} is not set. To try again: {command('tag', image, *rest)}."
        return Report("tag", problems=failure.problems, changed=done, extra=extra, outcome=again)
    return Report("tag", extra=extra, changed=names, outcome=outcome.of_tag(image, names))

"""The commands that work on overlays: list, show, new."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from keyword import iskeyword
from pathlib import Path
from string import Template

import click

from vpatch.cli.options import PathType, complete_overlay, examples, known_overlays, reported
from vpatch.cli.output import Report, TextReport, on_terminal
from vpatch.cli.wording import command, counted
from vpatch.core.catalogue import GROUP, discover, select
from vpatch.core.overlay import Catalogued
from vpatch.errors import Failure, Problem, naming
from vpatch.foreign import TOML_BYTES, parse_toml, read_regular
from vpatch.installation import how_to_develop

_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def _title(item: Catalogued) -> str:
    return f"{item.id}{' (opt-in)' if item.overlay.opt_in else ''}: {item.overlay.summary}"


def _summary(item: Catalogued) -> dict[str, object]:
    overlay = item.overlay
    return {
        "id": item.id,
        "summary": overlay.summary,
        "opt_in": overlay.opt_in,
        "symptoms": list(overlay.symptoms),
        "upstream": list(overlay.upstream),
        "origin": item.origin,
    }


@click.command("list", epilog=examples("list", "list --json"))
@reported
def list_command() -> Report:
    """List the installed overlays."""
    installed = discover()
    opt_in = sum(item.overlay.opt_in for item in installed)
    said = f"{counted(len(installed), 'overlay')}, {opt_in} opt-in. {command('show', 'OVERLAY')} explains one."
    return TextReport(object={"overlays": [*map(_summary, installed)]}, lines=[*map(_title, installed)], outcome=said)


@click.command("show", epilog=examples("show turboquant-hybrid"))
@click.argument("overlay", shell_complete=complete_overlay)
@reported
def show_command(overlay: str) -> Report:
    """Explain one overlay: why, upstream links, releases, parts."""
    (item,) = select(discover(), (overlay,))
    parts = [
        {"name": part.name, "shapes": [{"name": s.name, "files": sorted(s.files)} for s in part.shapes]}
        for part in item.overlay.parts
    ]
    why = item.why
    if on_terminal(sys.stdout):  # one line a paragraph, so that it fits any width
        why = "\n\n".join(" ".join(paragraph.split()) for paragraph in why.split("\n\n"))
    changes = (
        f"{part.name}, from vLLM {shape.name}: {', '.join(sorted(shape.files))}"
        for part in item.overlay.parts
        for shape in part.shapes
    )
    links = [f"https://github.com/{link.replace('#', '/pull/')}" for link in item.overlay.upstream]
    lines = [
        _title(item),
        f"From {item.origin}.",
        *_section("You see", item.overlay.symptoms),
        *_section("Why", why.split("\n")),
        *_section("Releases", (f"vLLM {releases}: {what}" for releases, what in item.overlay.releases.items())),
        *_section("Upstream", links),
        *_section("Changes", changes),
    ]
    detail = _summary(item) | {"why": item.why, "links": links, "releases": dict(item.overlay.releases), "parts": parts}
    apply = command("apply", *(["--with", item.id] if item.overlay.opt_in else ["--overlay", item.id]))
    return TextReport(object={"overlays": [detail]}, lines=lines, outcome=f"Apply it with {apply}.")


def _section(title: str, lines: Iterable[str]) -> list[str]:
    """Return an empty line, the title and the indented lines; nothing if there are no lines."""
    body = [f"  {line}" if line else "" for line in lines]
    return ["", title, *body] if body else []


@click.command("new", epilog=examples("new my-fix", "new my-fix path/to/my-overlays"))
@click.argument("name")
@click.argument("folder", metavar="[DIR]", default=".", type=PathType(file_okay=False))
@click.option("--vllm", "release", metavar="V", default="0.24.0", help="The release to test on. Default: 0.24.0.")
@reported
def new_command(name: str, folder: Path, release: str) -> Report:
    """Write a new overlay: its module, a companion and a test.

    The test passes once you recorded what the code takes from vLLM; then make the overlay yours. DIR (default: the
    current folder) is a project that ships overlays: its pyproject.toml has an entry point `vpatch.overlays`. If it is
    not, vpatch makes a project in DIR/NAME.
    """
    if not _ID.fullmatch(name):
        raise click.BadParameter(
            f"{name!r}: use words in lower case, joined by hyphens, as in my-overlay", param_hint="NAME"
        )
    if iskeyword(name):
        raise click.BadParameter(f"{name!r} is a keyword of Python, which names no module", param_hint="NAME")
    if name in known_overlays():
        raise click.BadParameter(f"{name!r} is the id of an installed overlay: choose another", param_hint="NAME")
    package = _package(folder)
    top = folder / name if package is None else folder
    values = {"id": name, "module": name.replace("-", "_"), "release": release, "distribution": f"vpatch-{name}"}
    values["package"] = package.name if package else f"vpatch_{values['module']}"
    written = dict(_contents(top, package or top / values["package"], values, begun=package is None))
    if there := [path for path in written if path.exists()]:
        taken = Problem("exists already", "", "vpatch does not overwrite it", hint="choose another NAME")
        raise Failure(*(replace(taken, where=str(path)) for path in there))
    for path, text in written.items():
        with naming("cannot write", str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    install, python = how_to_develop(top)
    test = next(path for path in written if path.name.startswith("test_"))
    begun = [install] if package is None else []
    recorded = f"{python} -m vpatch.calls {name} --release {shlex.quote(release)}"
    steps = [*begun, recorded, f"{python} -m pytest {shlex.quote(str(test))}", f"vpatch show {name}"]
    said = f"Wrote {counted(len(written), 'file')}. Next: {', '.join(f'`{step}`' for step in steps)}."
    names = [*map(str, written)]
    return TextReport(object={"files": names}, lines=names, outcome=said)


def _package(folder: Path) -> Path | None:
    """Find the package of overlays of the project in a folder; None if it ships none.

    Raises:
        Failure: pyproject.toml cannot be read, or the package that it names is not there.
    """
    project = folder / "pyproject.toml"
    if not project.is_file():
        return None
    with naming("cannot read", str(project)):
        try:
            points = parse_toml(read_regular(project, TOML_BYTES)).get("project", {}).get("entry-points", {}).get(GROUP)
            named = str(next(iter(points.values()))).partition(":")[0] if points else ""
        except (ValueError, AttributeError) as error:  # AttributeError: something else instead of a table
            raise Failure(Problem("cannot read", str(project), str(error))) from error
    if not points:
        return None
    path = named.replace(".", "/")
    for found in (folder / path, folder / "src" / path, *sorted(folder.glob(f"*/{path}"))):
        if (found / "__init__.py").is_file():
            return found
    raise Failure(Problem("no such package", str(project), f"its entry point {GROUP} names {named}"))


def _contents(top: Path, package: Path, values: Mapping[str, str], *, begun: bool) -> Iterator[tuple[Path, str]]:
    """Yield the files to write, with their text."""

    def filled(template: str) -> str:
        return Template((files("vpatch.cli") / "templates" / template).read_text("utf-8")).substitute(values)

    module = f"{values['module']}.py"
    if begun:
        yield top / "pyproject.toml", filled("pyproject.toml.in")
        yield package / "__init__.py", '"""Overlays for vLLM, one a module; their companions are in `companions`."""\n'
    yield package / module, filled("overlay.py.in")
    if not (package / "companions/__init__.py").exists():
        yield package / "companions/__init__.py", '"""Modules that vpatch adds to `vllm/_vpatch/`."""\n'
    yield package / "companions" / module, filled("companion.py.in")
    tests = top / "tests/overlays" if (top / "tests/overlays").is_dir() else top / "tests"
    yield tests / f"test_{module}", filled("test.py.in")

"""The commands that work on overlays: list, show, new."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

import click

from vpatch.cli.options import complete_overlay, reported
from vpatch.cli.output import Report
from vpatch.core.catalogue import GROUP, discover, select
from vpatch.core.overlay import Catalogued
from vpatch.errors import Failure, Problem, naming

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


@click.command("list")
@reported
def list_command() -> Report:
    """List the installed overlays."""
    installed = discover()
    return Report("list", extra={"overlays": [*map(_summary, installed)]}, lines=[*map(_title, installed)])


@click.command("show")
@click.argument("overlay", shell_complete=complete_overlay)
@reported
def show_command(overlay: str) -> Report:
    """Tell one overlay in full: why, upstream links, what it does on which release, its parts."""
    (item,) = select(discover(), (overlay,))
    parts = [
        {"name": part.name, "shapes": [{"name": s.name, "files": sorted(s.files)} for s in part.shapes]}
        for part in item.overlay.parts
    ]
    links = [f"https://github.com/{link.replace('#', '/pull/')}" for link in item.overlay.upstream]
    lines = [
        _title(item),
        f"from {item.origin}",
        *(f"without it: {symptom}" for symptom in item.overlay.symptoms),
        "",
        *item.why.split("\n"),
        "",
        *links,
        "",
        *(f"vLLM {releases}: {what}" for releases, what in item.overlay.releases.items()),
        *(
            f"part {part.name}, from {shape.name}: {file}"
            for part in item.overlay.parts
            for shape in part.shapes
            for file in sorted(shape.files)
        ),
    ]
    detail = _summary(item) | {"why": item.why, "links": links, "releases": dict(item.overlay.releases), "parts": parts}
    return Report("show", extra={"overlays": [detail]}, lines=lines)


@click.command("new")
@click.argument("name")
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path, file_okay=False))
@click.option("--vllm", "release", metavar="V", default="0.24.0", help="The release to test on. Default: 0.24.0.")
@reported
def new_command(name: str, folder: Path, release: str) -> Report:
    """Write a new overlay NAME: its module, a companion and a test, which pass as they are. Then make them yours.

    DIR (default: the current folder) is a project that ships overlays, with a pyproject.toml that has an entry point
    `vpatch.overlays`. If it is not, a project is begun in DIR/NAME.
    """
    if not _ID.fullmatch(name):
        raise click.BadParameter("words in lower case, joined by hyphens, as my-overlay", param_hint="NAME")
    package = _package(folder)
    top = folder / name if package is None else folder
    values = {"id": name, "module": name.replace("-", "_"), "release": release, "distribution": f"vpatch-{name}"}
    values["package"] = package.name if package else f"vpatch_{values['module']}"
    written = dict(_contents(top, package or top / values["package"], values, begun=package is None))
    if there := [path for path in written if path.exists()]:
        raise Failure(*(Problem("exists already", str(path), "it is not overwritten") for path in there))
    for path, text in written.items():
        with naming("cannot write", str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    install = [f"pip install -e '{top}[test]'"] if package is None else []
    test = next(path for path in written if path.name.startswith("test_"))
    lines = [*map(str, written), "", "Next:", *install, f"python -m pytest {test}", f"vpatch show {name}"]
    return Report("new", extra={"files": list(map(str, written))}, lines=lines)


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
            points = tomllib.loads(project.read_text("utf-8")).get("project", {}).get("entry-points", {}).get(GROUP)
        except ValueError as error:
            raise Failure(Problem("cannot read", str(project), str(error))) from error
    if not points:
        return None
    named = str(next(iter(points.values()))).partition(":")[0]
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

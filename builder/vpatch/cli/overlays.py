"""The commands that work on overlays: list, new."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from keyword import iskeyword
from pathlib import Path
from string import Template

import click

from vpatch.cli.options import (
    PathType,
    examples,
    introduce_project,
    known_overlays,
    reported,
    retyped,
    source_words,
    with_project,
)
from vpatch.cli.output import Report, TextReport
from vpatch.cli.wording import command, counted
from vpatch.core.catalogue import GROUP, discover
from vpatch.core.overlay import Catalogued
from vpatch.errors import Failure, Problem, UnknownName, did_you_mean, naming
from vpatch.foreign import TOML_BYTES, parse_toml, read_regular
from vpatch.installation import how_to_develop
from vpatch.wrapping import shortened

_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 255 - len("vpatch_-0.1.0.dist-info")  # what pip names after it; 255 bytes are a file name's most


def title(item: Catalogued) -> str:
    """Return an overlay's line."""
    return f"{item.id}{' (opt-in)' if item.overlay.opt_in else ''}: {item.overlay.summary}"


def log_lines(item: Catalogued) -> list[str]:
    """Return the lines of a log by which an overlay is known, beside those among its symptoms."""
    return [*item.overlay.errors, *(line for part in item.overlay.parts for line in part.errors)]


def summary(item: Catalogued) -> dict[str, object]:
    """Return what `--json` has of each overlay."""
    overlay = item.overlay
    return {
        "id": item.id,
        "summary": overlay.summary,
        "opt_in": overlay.opt_in,
        "symptoms": list(overlay.symptoms),
        "errors": log_lines(item),
        "upstream": list(overlay.upstream),
        "origin": item.origin,
        "sha256": item.sha256,
    }


@click.command("list", epilog=examples("list", "list --json"))
@reported
@with_project
def list_command() -> Report:
    """List the overlays: of packages, of the project and of --patches."""
    introduce_project()
    installed = discover()
    opt_in = sum(item.overlay.opt_in for item in installed)
    said = f"{counted(len(installed), 'overlay')}, {opt_in} opt-in."
    said += f" Each is explained as by {command('show', installed[0].id, *source_words())}." if installed else ""
    return TextReport(object={"overlays": [*map(summary, installed)]}, lines=[*map(title, installed)], outcome=said)


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
    _check_name(name)
    release, notes = _release(release)
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
    steps = [*begun, recorded, f"{python} -m pytest {shlex.quote(str(test))}"]
    next_ = ", ".join([*(f"`{step}`" for step in steps), command("show", name)])
    said = f"Wrote {counted(len(written), 'file')}. Next: {next_}."
    names = [*map(str, written)]
    return TextReport(object={"files": names}, lines=names, notes=notes, outcome=said)


def _check_name(name: str) -> None:
    """Refuse a name of which no id, file or module can be made, and offer the spelling that can.

    Raises:
        click.BadParameter: the name is one of these.
    """
    meant = "-".join(re.findall("[a-z0-9]+", re.sub("(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()))
    if not _ID.fullmatch(name):
        offer = did_you_mean([retyped({name: (meant,)})]) if _ID.fullmatch(meant) and name else "as in my-overlay"
        wrong = f"{shortened(name, 80)!r}: use words in lower case that begin with a letter, joined by hyphens; {offer}"
    elif len(name) > _LONGEST:
        wrong = f"{shortened(name, 40)!r} has {len(name)} characters: a file can be named after {_LONGEST} at most"
    elif iskeyword(name) or name == "companions":
        kind = "a keyword of Python" if iskeyword(name) else "the folder of companions"
        offer = did_you_mean([retyped({name: (f"{name}-fix",)})])
        wrong = f"{name!r} is {kind}, which names no module of overlays; {offer}"
    elif name in known_overlays(click.get_current_context()):
        wrong = f"{name!r} is the id of an installed overlay: choose another"
    else:
        return
    raise click.BadParameter(wrong, param_hint="NAME")


def _release(version: str) -> tuple[str, Sequence[str]]:
    """Return the release as the index spells it, with notes. If `plan` knows it, no index is asked.

    Raises:
        UnknownName: it is no version, or no release.
    """
    from packaging.version import Version

    from vpatch.plan.deployment import RELEASES

    with suppress(ValueError):  # the index's own message names what is no version
        if (found := Version(version)) in RELEASES:
            return str(RELEASES[RELEASES.index(found)]), ()
    # The extra `fetch` has what these import.
    from vpatch.matrix.reading import user_cache
    from vpatch.matrix.releases import releases_of

    try:
        (release,), notes = releases_of("vllm", [version], user_cache())
    except UnknownName:
        raise
    except Failure as failure:
        return version, [f"vpatch could not check that vLLM {version} exists: {failure.problems[0]}"]
    return release.name, notes


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

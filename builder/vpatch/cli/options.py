"""What commands share: arguments, options, files that they write, and the way from a report to the exit code."""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import click

from vpatch.cli.output import QUIET, Failed, Report, frame, show, tell
from vpatch.cli.progress import waiting
from vpatch.cli.wording import command, options
from vpatch.core import sources
from vpatch.core.catalogue import Selection, discover
from vpatch.core.marks import mark, marked_by
from vpatch.errors import Failure, Problem, naming
from vpatch.project import Project, merged, opened

Command = TypeVar("Command", bound=Callable[..., Any])
_PROJECT = "vpatch.project"  # the key of click's context
_COMPARING = "comparing vLLM with the overlays"
_DOING = {
    **dict.fromkeys(("status", "diff", "show"), _COMPARING),
    "apply": "computing and checking the changes",
    "revert": "restoring the originals",
    "verify": "checking what is applied",
    "doctor": "examining vLLM",
    "capture": "comparing vLLM with its originals",
}


class PathType(click.Path):
    """A path; an empty one is refused: of a shell variable that is not set, it would mean the current folder."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, readable=False, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if param and value == "":
            name = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name.strip("[].")
            raise click.UsageError(f"{name} is empty", ctx)
        return super().convert(value, param, ctx)


def known_overlays(context: click.Context) -> list[str]:
    """Return the ids of the overlays; none if one of them cannot be loaded, which the command itself reports."""
    try:
        with sources.using(_opened(context.params).sources):
            return [item.id for item in discover()]
    except Failure:
        return []


def complete_overlay(context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Complete an overlay id for the shell."""
    return [name for name in known_overlays(context) if name.startswith(typed)]


def _opened(parameters: Mapping[str, Any]) -> Project:
    return opened(parameters.get("patches") or (), ignored=bool(parameters.get("no_project", False)))


def with_project(function: Command) -> Command:
    """Add `--patches` and `--no-project`: the command takes overlays from there, too; raises what `opened` raises."""

    @functools.wraps(function)
    def run(*args: Any, patches: tuple[Path, ...], no_project: bool, **kwargs: Any) -> Any:
        found = _opened({"patches": patches, "no_project": no_project})
        click.get_current_context().meta[_PROJECT] = found
        with sources.using(found.sources):
            return function(*args, **kwargs)

    # Eager: what other options say of overlays rests on them.
    told = "Also this patch file, NAME.vpatch, or those of this folder (repeatable). Default: $VPATCH_PATCHES."
    patches = click.option(
        "--patches",
        multiple=True,
        metavar="PATH",
        type=PathType(),
        envvar="VPATCH_PATCHES",
        is_eager=True,
        help=told,
    )
    ignore = click.option(
        "--no-project", is_flag=True, is_eager=True, help="Ignore vpatch.toml, and [tool.vpatch] in pyproject.toml."
    )
    return patches(ignore(run))  # type: ignore[return-value] # click keeps the type


def project() -> Project:
    """Return the project of the command that runs."""
    found = click.get_current_context().meta.get(_PROJECT)
    return found if isinstance(found, Project) else Project("", sources.Sources(), Selection())


def introduce_project() -> None:
    """Print which project's file is used, if there is one: the first line of a command that names no vLLM there."""
    if file := project().file:
        frame(f"Project: {file}.")


def source_words() -> tuple[str, ...]:
    """Return the options with which another command finds the same overlays; what the environment says stays there."""
    context = click.get_current_context(silent=True)
    if context is None:
        return ()
    typed = context.get_parameter_source("patches") is click.core.ParameterSource.COMMANDLINE
    places = map(str, context.params.get("patches", ()) if typed else ())
    return (*options("--patches", places), *(["--no-project"] if context.params.get("no_project") else []))


def retyped(words: Mapping[str, Sequence[str]]) -> str:
    """Return the user's command with some of its words replaced, to copy."""
    return command(*(new for word in sys.argv[1:] for new in words.get(word, (word,))))


def _one_each(_context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a list of overlays as the value of an option, since none has a comma in its id."""
    option, replaced = parameter.opts[0], dict[str, list[str]]()
    for value in (value for value in values if "," in value):
        repeated = options(option, filter(None, map(str.strip, value.split(","))))
        replaced |= {value: repeated[1:], f"{option}={value}": repeated}
    if replaced:
        raise click.UsageError(f"{option} takes one overlay: repeat it, as in {retyped(replaced)}")
    return values


def overlay_option(default: str = "each that is not opt-in") -> Callable[[Command], Command]:
    """Add `--overlay`; `default` describes the selection without it."""
    return click.option(
        "--overlay",
        "ids",
        multiple=True,
        metavar="ID",
        callback=_one_each,
        shell_complete=complete_overlay,
        help=f"Only this overlay (repeatable). Default: {default}.",
    )


def with_option(function: Command) -> Command:
    """Add `--with`."""
    return click.option(
        "--with",
        "more",
        multiple=True,
        metavar="ID",
        callback=_one_each,
        shell_complete=complete_overlay,
        help="Also this overlay, an opt-in one (repeatable).",
    )(function)


def without_option(function: Command) -> Command:
    """Add `--without`."""
    return click.option(
        "--without",
        "fewer",
        multiple=True,
        metavar="ID",
        callback=_one_each,
        shell_complete=complete_overlay,
        help="Not this overlay of the default ones (repeatable).",
    )(function)


def receipt_option(function: Command) -> Command:
    """Add `--receipt`."""
    told = "Also the overlay `receipt`: each vLLM process shows which overlays it runs. Not for a checkout."
    return click.option("--receipt", is_flag=True, help=told)(function)


def selected(
    ids: tuple[str, ...], more: tuple[str, ...], fewer: tuple[str, ...] = (), *, receipt: bool = False
) -> Selection:
    """Return what the project's file, `--overlay`, `--with`, `--without` and `--receipt` select.

    Raises:
        click.UsageError: `--overlay` is given with `--without`, or with `--with` of another; or these two are alike.
    """
    if ids and (fewer or not {*more} <= {*ids}):
        added = sorted({*more} - {*ids})
        way = f"leave out --with, or give --overlay {added[0]}" if added else "leave out --without"
        raise click.UsageError(f"--overlay selects exactly these overlays: {way}")
    proof = ("receipt",) if receipt else ()
    if both := sorted({*more, *proof} & {*fewer}):
        raise click.UsageError(f"{both[0]} is wanted and left out: give --with or --without")
    return Selection((*ids, *proof)) if ids else merged(project().selection, (*more, *proof), fewer)


def quiet_option(command: Command) -> Command:
    """Add `-q`: no first line, no outcome; see `vpatch.cli.output.frame`."""

    def silence(context: click.Context, _parameter: click.Parameter, quiet: bool) -> None:  # noqa: FBT001 - click's
        context.meta[QUIET] = quiet

    told = "Print results and problems only: neither the first line nor the outcome of a success."
    return click.option("-q", "--quiet", is_flag=True, expose_value=False, callback=silence, help=told)(command)


def examples(*commands: str) -> str:
    """Return the end of a command's help: commands to copy, without their first word."""
    return "\n".join(["\b", "Examples:", *(f"  vpatch {line}" for line in commands)])


def verbose_option(told: str) -> Callable[[Command], Command]:
    """Add `-v`; it also prints what vpatch logs, such as the servers that get the user's credentials."""

    def listen(context: click.Context, _parameter: click.Parameter, verbose: bool) -> bool:  # noqa: FBT001 - click's
        if verbose:
            context.with_resource(_logged())
        return verbose

    return click.option("-v", "--verbose", is_flag=True, callback=listen, help=told)


@contextmanager
def _logged() -> Iterator[None]:
    log, handler = logging.getLogger("vpatch"), logging.Handler()
    handler.emit = lambda record: tell(record.getMessage())  # type: ignore[method-assign]
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def reported(command: Callable[..., Report]) -> Callable[..., int]:
    """Add `--quiet` and `--json`, show the command's report or `Failure`, and return the exit code."""

    @functools.wraps(command)
    def run(*args: Any, as_object: bool, **kwargs: Any) -> int:
        name = click.get_current_context().command.name or ""
        try:
            with waiting(_DOING[name]) if name in _DOING else nullcontext():
                report = command(*args, **kwargs)
        except Failure as failure:
            tree = kwargs.get("tree")
            report = Failed.of(failure, tree=tree and str(tree))
        return show(report, name if as_object else "")

    quiet_option(click.option("--json", "as_object", is_flag=True, help="Print one JSON object.")(run))
    parameters: list[click.Parameter] = vars(run)["__click_params__"]
    parameters[:0] = parameters[-2:]  # click lists the first one last
    del parameters[-2:]
    return run


def unwinding() -> None:
    """Let SIGTERM end the run as SIGINT does, so that containers and temporary files are removed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def name_option(told: str, **more: Any) -> Callable[[Command], Command]:
    """Add `--name`, the id of an overlay."""

    def checked(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
        if name is not None and marked_by(mark(name)) != [name]:
            raise click.BadParameter(f"{name!r}: use words in lower case, joined by hyphens, as in my-fix")
        return name

    return click.option("--name", metavar="NAME", callback=checked, help=told, **more)


force_option = click.option("--force", is_flag=True, help="Replace the file if it exists.")


def check_outfile(path: Path, *, force: bool) -> None:
    """Check that a file can be written, before the work is done. A device or a pipe may exist.

    Raises:
        click.UsageError: it is -, which stands for standard output elsewhere.
        Failure: it exists and `force` is not set, or it cannot be written.
    """
    refuse_dash(path)
    _refuse_to_overwrite(path, force=force)
    with naming("cannot write", str(path)):
        if _is_special(path):
            path.open("a").close()
        else:
            trial = _beside(path)
            trial.touch()
            trial.unlink()


def refuse_dash(path: Path) -> None:
    """Refuse - as the name of what is written: other programs take it for standard output, and no file is called so.

    Raises:
        click.UsageError: it is -.
    """
    if str(path) == "-":
        raise click.UsageError("- is no name of what to write: /dev/stdout is standard output")


def write_outfile(path: Path, text: str, *, force: bool) -> None:
    """Write a file, so that a reader finds all of it or what was there before.

    Raises:
        Failure: as `check_outfile`.
    """
    _refuse_to_overwrite(path, force=force)
    with naming("cannot write", str(path)):
        if _is_special(path):
            path.write_text(text, "utf-8")
            return
        new = _beside(path)
        try:
            new.write_text(text, "utf-8")
            new.replace(os.path.realpath(path))
        finally:
            new.unlink(missing_ok=True)


def _refuse_to_overwrite(path: Path, *, force: bool) -> None:
    if path.is_file() and not force:
        raise Failure(Problem("exists already", str(path), "it is not overwritten", hint="--force replaces it"))


def _is_special(path: Path) -> bool:
    """Whether something stands there that is no file: a device, a pipe, a folder."""
    return path.exists() and not path.is_file()


def _beside(path: Path) -> Path:
    real = Path(os.path.realpath(path))
    return real.with_name(f".{real.name}.{os.urandom(4).hex()}")

"""The command that runs another one with overlays, without a write to vLLM's files."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click

from vpatch.cli.options import (
    PathType,
    examples,
    overlay_option,
    project,
    quiet_option,
    refuse_dash,
    selected,
    source_words,
    with_option,
    with_project,
    without_option,
)
from vpatch.cli.output import Failed, TextReport, frame, show
from vpatch.cli.progress import waiting
from vpatch.cli.wording import counted, listed, options
from vpatch.core.catalogue import Selection
from vpatch.errors import Failure, Problem, cause, did_you_mean, shell
from vpatch.guest.vpatch_receipt import DIGEST
from vpatch.run.absence import watch
from vpatch.run.command import Missing, understood
from vpatch.run.content import Content, Misfits
from vpatch.run.export import export as export_farm
from vpatch.run.export import export_tree
from vpatch.run.launch import Launch, NoVllm, prepare
from vpatch.run.upkeep import FARMS
from vpatch.settings import cache_folder
from vpatch.tree.environment import Environment, current, environments
from vpatch.tree.interpreter import interpreter
from vpatch.tree.locate import Tree
from vpatch.wrapping import from_here

_PREPARING = "computing and checking the changes"
_NO_COMMAND = 127  # a shell's exit status for a command that does not exist


def _refusing(command: Callable[..., int]) -> Callable[..., int]:
    """Let a command show its `Failure`, and return the exit code."""

    @functools.wraps(command)
    def run(**given: Any) -> int:
        try:
            return command(**given)
        except (Missing, NoVllm) as failure:
            (problem,) = failure.problems
            places = [] if given["export"] else environments() if isinstance(failure, Missing) else _looked_at()
            found = Failure(replace(problem, hint=did_you_mean(_elsewhere(given, places))))
            code = show(Failed.of(found, outcome=f"Nothing was {'exported' if given['export'] else 'started'}."))
            return _NO_COMMAND if isinstance(failure, Missing) else code
        except Failure as failure:
            done, verb = ("exported", "export") if given["export"] else ("started", "run")
            wrong = failure.overlays if isinstance(failure, Misfits) else ()
            rest = f" To {verb} the others: {_again(given, without=wrong)}." if wrong else ""
            return show(Failed.of(failure, outcome=f"Nothing was {done}.{rest}"))

    return run


def _looked_at() -> list[Environment]:
    """Return the environment whose vLLM other commands work on, if there is one."""
    try:
        found = current().environment
    except Failure:
        return []
    return [found] if found else []


def _elsewhere(given: Mapping[str, Any], places: Iterable[Environment]) -> list[str]:
    """Return the user's command with the program of the first of some environments that has it."""
    name = given["command"][0]
    programs = [] if "/" in name else [environment.folder / "bin" / name for environment in places]
    found = next((program for program in programs if program.is_file() and os.access(program, os.X_OK)), None)
    return [_again(given, program=from_here(found))] if found else []


def _again(given: Mapping[str, Any], *, without: Sequence[str] = (), program: str = "") -> str:
    """Return the user's command, to copy.

    Args:
        given: its arguments.
        without: overlays that it leaves out, and so the digest.
        program: what it runs in place of the command's program.
    """
    named = ("--overlay", "ids"), ("--with", "more"), ("--without", "fewer")
    words = [word for option, key in named for name in given[key] if name not in without for word in (option, name)]
    if not given["ids"]:
        words += options("--without", (name for name in without if name not in given["more"]))
    keys = ("python", "cache", "export", "tree") if without else ("python", "expect", "cache", "export", "tree")
    words += [word for key in keys if given[key] for word in (f"--{key}", str(given[key]))]
    command = (program, *given["command"][1:]) if program else given["command"]
    return shell("vpatch", "run", *source_words(), *words, *(("--", *command) if command else ()))


def _digits(_: click.Context, __: click.Parameter, given: str | None) -> str:
    """Refuse what is no beginning of a digest: an empty one, as of a variable that is not set, would fit any."""
    if given is not None and not re.fullmatch("[0-9a-f]{1,64}", given):
        raise click.BadParameter(f"{given!r} is not a digest, or the first digits of one")
    return given or ""


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "run -- vllm serve MODEL", "run --with turboquant-decode -- python serve.py", "run --export /run/vpatch"
    ),
)
@_refusing
@quiet_option
@overlay_option()
@with_option
@without_option
@with_project
@click.option("--python", type=PathType(), metavar="PY", help="The interpreter that COMMAND runs. Default: found out.")
@click.option(
    "--expect", metavar="DIGEST", callback=_digits, default=None, help="Start only if the overlays have this digest."
)
@click.option("--cache", type=PathType(), metavar="DIR", help="The folder for farms. Default: in your cache.")
@click.option("--export", type=PathType(), metavar="DIR", help="Write the farm into DIR, and start nothing.")
@click.option("--tree", type=PathType(), metavar="TREE", help="With --export: this vLLM, as `vpatch fetch` makes one.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
def run_command(
    *,
    ids: tuple[str, ...],
    more: tuple[str, ...],
    fewer: tuple[str, ...],
    python: Path | None,
    expect: str,
    cache: Path | None,
    export: Path | None,
    tree: Path | None,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND with overlays, and write nothing to vLLM's files.

    vpatch makes a folder that holds the changed files, and links to all others, and puts it first on PYTHONPATH.
    Processes that inherit COMMAND's environment import from it, too. If an overlay does not fit, nothing is started.
    The exit code and the signals are COMMAND's.

    With --export DIR instead of COMMAND, vpatch writes that folder to DIR, and prints its digest. Another container
    of the same image sets PYTHONPATH=DIR. With --tree, it needs no installed vLLM: the digest is that of every
    installation of this release, but the links in DIR lead to TREE.
    """
    selection = selected(ids, more, fewer)
    if export:
        if command or cache:
            raise click.UsageError(
                f"--export starts nothing and has no cache: leave out {'--cache' if cache else 'COMMAND'}"
            )
        refuse_dash(export)
        if tree and python:
            raise click.UsageError("--tree and --python name two vLLMs: leave one out")
        with waiting(_PREPARING):
            return _exported(export, selection, python, tree, expect)
    if tree:
        raise click.UsageError("--tree is for --export: COMMAND runs its own Python's vLLM")
    if not command:
        raise click.UsageError("Missing argument 'COMMAND...'")
    with waiting(_PREPARING):
        launch = _prepared(command, selection, python, expect, cache)
    _tell("Running", launch.tree, launch.content)
    try:
        _become(command, launch)
    except OSError as error:  # such as a script without a first line
        return show(Failed(problems=[Problem("cannot run", command[0], cause(error))]))


def _exported(to: Path, selection: Selection, python: Path | None, place: Path | None, expected: str) -> int:
    if place:
        tree, content = export_tree(selection, place, to, expected)
    else:
        tree, content = export_farm(selection, interpreter(python) if python else _with_vllm(), to, expected)
    _tell("Exported", tree, content)
    if place:
        digest = f"The digest is that of every installation of vLLM {tree.version or 'of these files'}"
        outcome = f"{digest}. The links in {to} lead to {tree.root}: run it only where that is."
    else:
        outcome = f"Set PYTHONPATH={to.resolve()} and {DIGEST}={content.digest[:12]}, and mount the folder read-only."
    return show(TextReport(lines=[content.digest], outcome=outcome))


def _with_vllm() -> Path:
    """Return the interpreter whose vLLM other commands take if the user names no tree.

    Raises:
        Failure: it may not be run.
    """
    found = current()
    asked, found = found.environment, found.importing()
    assert found.environment  # noqa: S101 - for mypy: `current` names one
    python, shown = found.environment.python, found.environment.shown
    if found.refusal:
        do = shell("vpatch", *sys.argv[1:], "--python", shown)
        raise Failure(Problem("not run", shown, found.refusal, hint=f"if you trust this environment: {do}"))
    if found.environment != asked:
        frame(f"vpatch runs {shown}, whose vLLM this is.")
    return python


def _tell(done: str, tree: Tree, content: Content) -> None:
    overlays = content.overlays
    named = project().file
    frame(f"vLLM {tree.version or 'of unknown version'} in {tree.root}{f' (project: {named})' if named else ''}")
    what = f"{counted(len(overlays), 'overlay')}: {listed(overlays)}" if overlays else "no overlay, since none applies"
    frame(f"{done} with {what} (digest {content.digest[:12]}).")


def _prepared(
    words: Sequence[str], selection: Selection, python: Path | None, expected: str, cache: Path | None
) -> Launch:
    command = understood(words)
    runner = interpreter(python) if python else command.python
    if runner is None:
        hint = "name the interpreter that it starts with --python"
        raise Failure(Problem("which Python?", str(command.program), "it is no Python program", hint=hint))
    store = cache or cache_folder("or name a folder with --cache") / FARMS
    return prepare(command, selection, runner, store, expected)


def _become(words: Sequence[str], launch: Launch) -> NoReturn:
    """Replace this process by the command."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a command would inherit that
        signal.signal(number, signal.SIG_DFL)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    watch(os.getpid())
    os.execvpe(words[0], list(words), dict(launch.environment))  # noqa: S606 - this is what it is for

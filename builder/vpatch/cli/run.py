"""The command that runs another one with overlays, without a write to vLLM's files."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from vpatch.cli.options import (
    PathType,
    examples,
    overlay_option,
    project,
    quiet_option,
    selected,
    with_option,
    with_project,
    without_option,
)
from vpatch.cli.output import Failed, TextReport, frame, show
from vpatch.cli.wording import counted, listed
from vpatch.core.catalogue import Selection
from vpatch.errors import Failure, Problem, cause, shell
from vpatch.guest.vpatch_receipt import DIGEST
from vpatch.run.absence import watch
from vpatch.run.command import Missing, understood
from vpatch.run.content import Content
from vpatch.run.export import export as export_farm
from vpatch.run.launch import Launch, prepare
from vpatch.run.upkeep import FARMS
from vpatch.settings import cache_folder
from vpatch.tree.environment import current
from vpatch.tree.interpreter import interpreter
from vpatch.tree.locate import Tree

_NO_COMMAND = 127  # a shell's exit status for a command that does not exist


def _refusing(command: Callable[..., int]) -> Callable[..., int]:
    """Let a command show its `Failure`, and return the exit code."""

    @functools.wraps(command)
    def run(**given: Any) -> int:
        try:
            return command(**given)
        except Failure as failure:
            code = show(Failed.of(failure, outcome=f"Nothing was {'exported' if given['export'] else 'started'}."))
            return _NO_COMMAND if isinstance(failure, Missing) else code

    return run


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
    command: tuple[str, ...],
) -> int:
    """Run COMMAND with overlays, and write nothing to vLLM's files.

    vpatch makes a folder that holds the changed files, and links to all others, and puts it first on PYTHONPATH.
    Processes that inherit COMMAND's environment import from it, too. If an overlay does not fit, nothing is started.
    The exit code and the signals are COMMAND's.

    With --export DIR instead of COMMAND, vpatch writes that folder to DIR, and prints its digest. Another container
    of the same image sets PYTHONPATH=DIR.
    """
    selection = selected(ids, more, fewer)
    if export:
        if command or cache:
            raise click.UsageError(
                f"--export starts nothing and has no cache: leave out {'--cache' if cache else 'COMMAND'}"
            )
        return _exported(export, selection, python, expect)
    if not command:
        raise click.UsageError("Missing argument 'COMMAND...'")
    launch = _prepared(command, selection, python, expect, cache)
    _tell("Running", launch.tree, launch.content)
    try:
        _become(command, launch)
    except OSError as error:  # such as a script without a first line
        return show(Failed(problems=[Problem("cannot run", command[0], cause(error))]))


def _exported(to: Path, selection: Selection, python: Path | None, expected: str) -> int:
    runner = interpreter(python) if python else _with_vllm()
    tree, content = export_farm(selection, runner, to, expected)
    _tell("Exported", tree, content)
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
    python = found.environment.python
    if found.refusal:
        do = shell("vpatch", "run", "--export", "DIR", "--python", python)
        raise Failure(Problem("not run", str(python), found.refusal, hint=f"if you trust this environment: {do}"))
    if found.environment != asked:
        frame(f"vpatch runs {python}, whose vLLM this is.")
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

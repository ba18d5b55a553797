"""What commands share: arguments, options, and the way from a report to the exit code."""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from vpatch.cli.output import Report, show, tell
from vpatch.core.catalogue import discover
from vpatch.errors import Failure, Problem, cause
from vpatch.tree.locate import Tree, locate

Command = TypeVar("Command", bound=Callable[..., Any])


def complete_overlay(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Complete an overlay id for the shell."""
    try:
        return [item.id for item in discover() if item.id.startswith(typed)]
    except Failure:
        return []


def overlay_option(default: str = "every one that is not opt-in") -> Callable[[Command], Command]:
    """Add `--overlay`; `default` describes the selection without it."""
    return click.option(
        "--overlay",
        "ids",
        multiple=True,
        metavar="ID",
        shell_complete=complete_overlay,
        help=f"Only this overlay (repeatable). Default: {default}.",
    )


def tree_options(command: Command) -> Command:
    """Add TREE, `--python` and `--overlay`."""
    path = click.Path(path_type=Path, readable=False)
    tree = click.argument("tree", required=False, type=path)
    python = click.option("--python", type=path, metavar="PY", help="The vLLM that this interpreter imports.")
    return overlay_option()(python(tree(command)))


def verbose_option(command: Command) -> Command:
    """Add `-v`: print what vpatch logs, such as the servers that get the user's credentials."""

    def listen(context: click.Context, _parameter: click.Parameter, verbose: bool) -> None:  # noqa: FBT001 - click's
        if verbose:
            context.with_resource(_logged())

    told = "Name the servers, besides the registry, that get your login."
    return click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=listen, help=told)(command)


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
    """Add `--json`; print the report that the command returns, or its `Failure`, and return the exit code."""

    @click.option("--json", "as_object", is_flag=True, help="Print one JSON object.")
    @functools.wraps(command)
    def run(*args: Any, as_object: bool, **kwargs: Any) -> int:
        try:
            report = command(*args, **kwargs)
        except Failure as failure:
            tree = kwargs.get("tree")
            report = Report(
                click.get_current_context().command.name or "", tree and str(tree), problems=failure.problems
            )
        try:
            show(report, as_object=as_object)
        except BrokenPipeError:
            raise  # click ends quietly: the reader is gone
        except OSError as error:
            if sys.stdout:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again at exit
            tell(str(Problem("cannot write", "standard output", cause(error))))
            return 1
        return report.exit_code

    return run


def unwinding() -> None:
    """Let SIGTERM end the run as SIGINT does, so that containers and temporary files are removed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def tree_of(tree: Path | None, python: Path | None) -> Tree:
    """Find the vLLM that TREE or `--python` names.

    Raises:
        click.UsageError: both are given.
    """
    if tree and python:
        raise click.UsageError("TREE and --python name two trees: leave one out")
    return locate(tree, python)

"""The program: its commands, and what becomes of an error."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import click

from vpatch.cli.hints import with_way
from vpatch.cli.options import examples
from vpatch.cli.output import tell
from vpatch.cli.wording import project_url
from vpatch.errors import closest

# In the order in which a user meets them.
_GROUPS = {
    "Your first day": {**dict.fromkeys(("status", "apply", "revert"), "tree"), "doctor": "doctor"},
    "Look closer": {
        "find": "find",
        "list": "overlays",
        "show": "show",
        **dict.fromkeys(("diff", "verify"), "tree"),
    },
    "Serve": {"run": "run", "ps": "ps", "plan": "plan"},
    "Upgrade vLLM": {"matrix": "releases", "fetch": "releases", "cache": "cache"},
    "Build images": {"build": "build", "test": "image", "inspect": "image", "tag": "image"},
    "Write overlays": {"new": "overlays", "import": "porting", "capture": "capture", "rebase": "rebase"},
}
_COMMANDS = {name: module for commands in _GROUPS.values() for name, module in commands.items()}


class _Program(click.Group):
    """Commands by name. A command is imported when it is called, since its imports would slow down the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        found = getattr(import_module(f"vpatch.cli.{_COMMANDS[cmd_name]}"), f"{cmd_name}_command")
        assert isinstance(found, click.Command)  # noqa: S101 - for mypy; a test calls each
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}: {closest(args[0], _COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _COMMANDS))
        for title, names in _GROUPS.items():
            with formatter.section(title):
                commands = ((name, self.get_command(ctx, name)) for name in names)
                rows = [(f"{name:<{width}}", found.get_short_help_str(70)) for name, found in commands if found]
                formatter.write_dl(rows)


@click.group(
    cls=_Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "status                      # which overlays this vLLM needs",
        "apply                       # all of them, or nothing if one misfits",
        "revert                      # every byte as it was",
        "doctor                      # why a server still does not work",
        "find 'CUDA out of memory'   # what helps against a line of a log",
        "apply --help                # all options of a command",
    ),
)
@click.version_option(None, "-V", "--version", package_name="vpatch", message="%(prog)s %(version)s")
def program() -> None:
    """Apply source overlays to an installed vLLM: idempotent, all or nothing, reversible.

    TREE is a site-packages folder, a virtual environment, an interpreter or a vLLM source checkout. Without TREE,
    vpatch works on the vLLM of the interpreter that runs it, else of the active environment, else of ./.venv or ./venv.

    Exit codes: 0 success, 1 needs your attention, 2 wrong usage, 3 a bug in vpatch, 130 interrupted.
    """


def main() -> NoReturn:
    """Run the program and exit with the contract's code."""
    gc.disable()  # a syntax tree is 100,000 objects and no garbage: looking for some is a tenth of a run's time
    try:
        code = program.main(prog_name="vpatch", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        _tell(f"{error.format_message()}\n")
        code = 2
    except click.ClickException as error:
        if isinstance(error, click.UsageError):
            error = click.UsageError(with_way(error), error.ctx)
        error.show(said := io.StringIO())
        _tell(said.getvalue())
        code = 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        code = 130
    except Exception:
        _tell(traceback.format_exc())
        where = project_url("Issues")
        click.echo(f"this is a bug in vpatch: please report it, with the lines above, at {where}", err=True)
        code = 3
    sys.exit(code)


def run() -> NoReturn:
    """Run the program as a process of its own.

    It ends without freeing its syntax trees one by one, which takes a tenth of a short run, and without waiting for
    threads: commands have waited for their own, and a package of overlays may have started others. If the output cannot
    be flushed, it ends as any other program.
    """
    try:
        main()
    except SystemExit as end:
        atexit._run_exitfuncs()
        with suppress(OSError):
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            os._exit(int(end.code or 0))
        raise


def _tell(text: str) -> None:
    for line in text.removesuffix("\n").split("\n"):
        tell(line)

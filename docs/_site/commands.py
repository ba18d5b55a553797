"""A hook of the site: the reference of the command line, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from vpatch.cli.main import program

MARKUP = str.maketrans({"*": r"\*", "[": r"\[", "_": r"\_", "<": "&lt;"})


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the page."""
    files.append(File.generated(config, "command-line.md", content="\n".join(page())))
    return files


def page() -> Iterator[str]:
    """Yield the lines of the reference."""
    top = click.Context(program, info_name="vpatch", **program.context_settings)
    yield from ("# Command line", "", *described(program, top))
    for name in program.list_commands(top):
        command = program.get_command(top, name)
        if command and not command.hidden:
            context = click.Context(command, info_name=name, parent=top, **top.command.context_settings)
            yield from (f"## vpatch {name}", "", *described(command, context))


def described(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the usage, the help and the options of a command."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from ("```text", usage, "```", "", *prose(command.help), *prose(command.epilog))
    records = filter(None, (one.get_help_record(context) for one in command.get_params(context)))
    options = (f"| `{names}` | {cell(told)} |" for names, told in records if told)  # an argument may have no help
    yield from ("| option | meaning |", "|---|---|", *options, "")


def prose(text: str | None) -> Iterator[str]:
    """Yield the paragraphs of a help text; click keeps the lines of one that begins with a backspace."""
    for paragraph in inspect.cleandoc(text or "").partition("\f")[0].split("\n\n"):
        kept = paragraph.startswith("\b\n")
        yield from ("```text", paragraph.removeprefix("\b\n"), "```", "") if kept else (escaped(paragraph), "")


def cell(text: str) -> str:
    """Format a help text for a cell of a table."""
    return " ".join(escaped(text).split()).replace("|", r"\|")


def escaped(text: str) -> str:
    """Escape what Markdown would read as markup in a help text, except for code in backticks."""
    pieces = text.split("`")
    pieces[::2] = [piece.translate(MARKUP) for piece in pieces[::2]]
    return "`".join(pieces)

"""The help of the commands on images: a first sentence that is short, and examples that parse."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from vpatch.cli.main import program

COMMANDS = ("build", "test", "inspect", "tag")


def command(name: str) -> click.Command:
    found = program.get_command(click.Context(program), name)
    assert found
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_the_first_sentence_is_the_short_help(name: str) -> None:
    first = str(command(name).help).partition("\n\n")[0]

    assert len(first) <= 60
    assert command(name).get_short_help_str(60) == first


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_parse(name: str) -> None:
    examples = re.findall(r"^  vpatch (.*)$", str(command(name).epilog), re.MULTILINE)

    assert examples
    for example in examples:
        called, *arguments = shlex.split(example.partition(" |")[0])
        assert called == name
        program_context = click.Context(program, **program.context_settings)  # a command keeps its first one's `-h`
        with command(name).make_context(name, arguments, parent=program_context) as context:
            assert not context.args

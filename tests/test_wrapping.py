"""Lines that fit a terminal: broken between words, and commands that can be copied."""

from __future__ import annotations

import shlex

import pytest
from vpatch.cli.wording import command
from vpatch.errors import shell
from vpatch.wrapping import wrapped

TAGS = [f"registry.example/me/vllm:v0.20.{number}" for number in range(5)]
ODD = ["a b", "it's", 'say "no"', "*"]


def copied(lines: list[str]) -> list[str]:
    """Return the words of the command in backticks, as a shell reads what was copied."""
    _, text, _ = "\n".join(lines).split("`")
    return shlex.split(text.replace("\\\n", ""))  # as a shell does before it splits


@pytest.mark.parametrize("width", [40, 60, 80, 120, None])
@pytest.mark.parametrize("words", [TAGS, ODD])
def test_a_broken_command_is_the_same_command(words: list[str], width: int | None) -> None:
    arguments = ["build", *(word for tag in words for word in ("--tag", tag)), "--push"]
    lines = wrapped(f"Some words: {command(*arguments)}. And more of them.", width, hanging="  ")

    assert copied(lines) == ["vpatch", *arguments]
    if width:
        longest = max(len(f"    --tag {shlex.quote(word)} \\") for word in words)
        assert max(map(len, lines)) <= max(width, longest)


def test_an_option_stays_with_its_value() -> None:
    lines = wrapped(shell("docker", "run", "--gpus", "all", "-p", "80:80", "image", "MODEL"), 30, hanging="  ")

    assert lines == ["`docker run --gpus all \\", "    -p 80:80 image MODEL`"]


def test_long_code_that_is_no_command_is_broken_between_words() -> None:
    assert wrapped("has `first(argument, other)` there", 20) == ["has `first(argument,", "other)` there"]


def test_no_text_can_break_a_line_by_itself() -> None:
    assert wrapped("a\0b\1c " + "d" * 10, 12) == ["a\\x00b\\x01c", "d" * 10]

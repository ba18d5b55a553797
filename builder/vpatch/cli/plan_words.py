"""The words that follow `plan`: MODEL, or a pasted `vllm serve` command, alone or in a `docker run`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import click
from packaging.version import Version

from vpatch.cli.wording import command
from vpatch.errors import Failure
from vpatch.plan.container import PROGRAMS, release
from vpatch.plan.pasted import Pasted, read

_COMMAND = re.compile(r"(^|[\s/])(vllm\s+serve\w*|vllm\.entrypoints\.\S+|(docker|podman)\s+(container\s+)?run)\s")
_OPERATORS = "();<>|&"
# What a shell would replace. A variable that is passed on under its own name is one that docker can read itself.
_REPLACED = re.compile(r"\$[A-Za-z_{(]|`")
_PASSED = re.compile(r"(\w+)=\$(?:\1|\{\1\})")


class PlanCommand(click.Command):
    """`plan`, which knows a pasted command whose options are taken for its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; raise `UsageError` with the right command if one was pasted without `--`."""
        before = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            start = next((at for at, word in enumerate(before) if PurePath(word).name in ("vllm", *PROGRAMS)), None)
            if start is None or "--" in before:
                raise
            whole = command("plan", *before[:start], "--", *before[start:])
            raise click.UsageError(
                f"{error.option_name} is no option of plan; a pasted command follows --: {whole}"
            ) from error


def pasted_in(words: Sequence[str], *, alone: bool, compose: bool) -> Pasted | None:
    """Return the pasted command, None without one.

    Args:
        words: the words that follow `plan`; a command may be one of them.
        alone: whether no command is allowed beside the other options.
        compose: whether a compose file is to be written.

    Raises:
        UsageError: it is no `vllm serve` with a model, or is not allowed.
    """
    words = _divided(words)
    if len(words) < 2:
        return None
    if alone:
        raise click.UsageError("a pasted command has its own options: leave out --preset and --log")
    try:
        pasted = read(words)
    except Failure as failure:
        raise click.UsageError(str(failure)) from failure
    if compose and pasted.container:
        raise click.UsageError("--compose has no room for docker's options: paste the `vllm serve` alone")
    return pasted


def _divided(words: Sequence[str]) -> Sequence[str]:
    """Divide a command that is one word as a shell does; return other words as they are."""
    text = re.sub(r"\\\r?\n", "", words[0]) if len(words) == 1 else ""
    if not _COMMAND.search(text) or Path(words[0]).exists():
        return words
    parser = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    parser.whitespace_split, parser.commenters = True, ""
    try:
        found = [os.path.expanduser(os.path.expandvars(word)) for word in parser]  # noqa: PTH111 "./" stays
    except ValueError as error:
        raise click.UsageError(f"the quoted command is incomplete: {str(error).lower()}") from error
    for word in found:
        if not word.strip(_OPERATORS) and word:
            raise click.UsageError(f"{word} is for a shell: leave it out of the quoted command")
        if _REPLACED.search(word) and not _PASSED.fullmatch(word):
            raise click.UsageError(f"{word[:80]} is for a shell: write its value, or paste the command behind --")
    return found


def named_model(words: Sequence[str], option: str | None, pasted: Pasted | None) -> str | None:
    """Return MODEL, by its option or as the only word; raise `UsageError` if they differ."""
    if pasted:
        return option or pasted.model
    if words and option not in (None, words[0]):
        raise click.UsageError(f"MODEL is {words[0]} and --model is {option}: give one")
    return words[0] if words else option


def options_of(pasted: Pasted | None) -> Mapping[str, Any]:
    """Return what a command gives, by the names of `plan`'s parameters, as these convert it; raise as they do."""
    if pasted is None:
        return {}
    context = click.get_current_context()
    parameters = {parameter.name: parameter for parameter in context.command.params}
    texts: dict[str, Any] = {name.replace("-", "_"): text for name, text in pasted.options.items()}
    if pasted.drafts is not None:
        texts["speculative_tokens"] = pasted.drafts
    values = {name: parameters[name].type_cast_value(context, text) for name, text in texts.items()}
    values |= {"environment": pasted.environment, "extra": pasted.extra}
    number, cuda = release(pasted.container.image) if pasted.container else ("", "")
    return {**values, "cuda": cuda, **({"vllm": Version(number)} if number else {})}

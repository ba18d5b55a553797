"""Text for people: counts, lists of names, and commands to copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vpatch.errors import shell


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 overlay", "4 overlays"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def is_are(number: int) -> str:
    """Return the verb for a number of things."""
    return "is" if number == 1 else "are"


def counted_are(number: int, noun: str) -> str:
    """Return a number with its noun and verb: "1 overlay is", "4 overlays are"."""
    return f"{counted(number, noun)} {is_are(number)}"


def do_not_fit(overlays: Sequence[str], vllm: str) -> str:
    """Return a clause: "a does not fit this vLLM", "a and b do not fit this vLLM"."""
    return f"{listed(overlays)} {'does' if len(overlays) == 1 else 'do'} not fit {vllm}"


def listed(names: Sequence[str]) -> str:
    """Return names as in a sentence: "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def command(*words: object) -> str:
    """Return a command of vpatch to copy, quoted for a shell."""
    return shell("vpatch", *words)


def options(name: str, values: Iterable[str]) -> list[str]:
    """Return an option once for each value."""
    return [word for value in values for word in (name, value)]

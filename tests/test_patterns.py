"""Regular expressions of the code take a time that grows with a text's length, not with its square.

Most run on text of others: logs, headers, RECORD, names of files. Each expression is taken apart; before and inside
each of its repeats, texts are built that reach the repeat and then fail late. Expressions that are put together where
they are used are not seen.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from re import _compiler as compiler  # type: ignore[attr-defined]
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from tests.paths import ROOT

LENGTHS, SECONDS = (20, 250, 2_000, 8_000), 0.05  # the square of the last takes longer, also where it is cheap
AGAIN = 4  # times: on a busy machine, the processor's caches are another program's
FUNCTIONS = {"search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split", "compile"}
ANCHORED = {"match", "fullmatch"}

SOURCES = sorted((ROOT / "builder/vpatch").rglob("*.py"))


def module_of(path: Path) -> str:
    return path.relative_to(ROOT / "builder").with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


@cache
def text() -> str:
    return "\n".join(path.read_text() for path in SOURCES)


def expressions() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    """Yield each expression with the module's name, and whether it is only matched from a text's beginning."""
    for path in SOURCES:
        name = module_of(path)
        for node in ast.walk(ast.parse(path.read_bytes())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re"), attr=function), args=[ast.Constant(value=given), *_]
                ) if function in FUNCTIONS - {"compile"} and isinstance(given, str | bytes):
                    flags = re.MULTILINE if "MULTILINE" in ast.dump(node) else 0
                    yield name, re.compile(given, flags), function in ANCHORED
        if "guest" in path.parts or path.name == "__main__.py":
            continue
        for variable, value in vars(import_module(name)).items():
            for one in value.values() if isinstance(value, dict) else [value]:
                if isinstance(one, re.Pattern):
                    users = path.read_text() if variable.startswith("_") else text()
                    used = set(re.findall(rf"\b{variable}\.(\w+)", users))
                    yield name, one, bool(used) and used <= ANCHORED


def example(items: Sequence[Any]) -> str:
    """Return a text that the items match, without what is optional."""
    return "".join(_one(code, value) for code, value in items)


def _one(code: Any, value: Any) -> str:
    if code is c.LITERAL:
        return chr(value)
    if code is c.NOT_LITERAL:
        return "x" if value != ord("x") else "y"
    if code is c.IN:
        return _member(value)
    if code is c.ANY:
        return "x"
    if code is c.BRANCH:
        return example(value[1][0])
    if code is c.SUBPATTERN:
        return example(value[-1])
    if code is getattr(c, "ATOMIC_GROUP", None):
        return example(value)
    if code in REPEATS:
        least, _, inside = value
        return str(example(inside) * least)
    return ""  # positions and lookarounds


REPEATS = {c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT}
CANDIDATES = "x1 a-._/:'\"<(\n,"


def _member(items: Any) -> str:
    """Return a character of a set."""
    pattern = compiler.compile(parser.SubPattern(parser.State(), [(c.IN, items)]))
    return next(filter(pattern.match, CANDIDATES + "".join(map(chr, range(33, 127)))), "x")


def pumps(items: Sequence[Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield, for each repeat, a text that leads to it and what it repeats."""
    for code, value in items:
        if code in REPEATS:
            _, most, inside = value
            if most is c.MAXREPEAT or most > 1000:
                yield before, example(inside) or "x"
                if [code for code, _ in inside] == [c.IN]:
                    yield from ((before, other) for other in CANDIDATES)
            yield from pumps(inside, before)
        elif code is c.SUBPATTERN:
            yield from pumps(value[-1], before)
        elif code is c.BRANCH:
            for branch in value[1]:
                yield from pumps(branch, before)
        before += _one(code, value)


def attacks(pattern: re.Pattern[Any], length: int) -> Iterator[str]:
    parsed = parser.parse(
        pattern.pattern, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
    )
    for before, piece in {*pumps(parsed)}:
        for end in ("", "\0", "\n\0"):
            yield before + piece * (length // max(1, len(piece))) + end
        for separator in ("", " ", "\n"):
            unit = before + piece + separator
            yield unit * (length // max(1, len(unit))) + "\0"
            yield (before + separator) * (length // max(1, len(before))) + "\0"


def is_quick(pattern: re.Pattern[Any], *, anchored: bool) -> bool:
    texts = (text for length in LENGTHS for text in dict.fromkeys(attacks(pattern, length)))
    return all(any(seconds(pattern, text, anchored=anchored) < SECONDS for _ in range(AGAIN)) for text in texts)


def seconds(pattern: re.Pattern[Any], text: str, *, anchored: bool) -> float:
    """Return the processor's time that it takes to look for an expression in a text."""
    given: Any = text.encode("utf-8", "replace") if isinstance(pattern.pattern, bytes) else text
    began = time.process_time()
    if anchored:
        pattern.match(given)
        pattern.fullmatch(given)
    else:
        for _ in pattern.finditer(given):
            pass
    return time.process_time() - began


@pytest.mark.deep
def test_an_expression_takes_a_time_that_grows_with_the_text() -> None:
    found = [*expressions()]

    assert found
    assert [(name, one.pattern) for name, one, anchored in found if not is_quick(one, anchored=anchored)] == []


@pytest.mark.deep
@pytest.mark.parametrize("old", [r"-?\d+(?:\.\d+)? GiB", r"version (\d+\.\d+\.\d+\S*)\s*$"])
def test_one_that_tries_again_is_found(old: str) -> None:
    assert not is_quick(re.compile(old), anchored=False)

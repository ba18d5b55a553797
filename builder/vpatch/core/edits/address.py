"""Split a text into hunks, each below its address, and make edits of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vpatch.core import nesting
from vpatch.core.edits.definitions import AddFunction
from vpatch.core.edits.hunk import shown
from vpatch.core.edits.imports import GUARD, EnsureImport
from vpatch.core.edits.patch import Patch
from vpatch.core.edits.reading import filled, read, substituted
from vpatch.core.matching import META
from vpatch.core.parse import end_line
from vpatch.core.select import header_node
from vpatch.core.syntax import DEFINITIONS

if TYPE_CHECKING:
    from vpatch.core.overlay import Edit

# The slash before a header; a division has no such word behind it.
_STEP = re.compile(r" / (?=(?:if|elif|else|for|async|while|with|try|except|finally|match|case)\b)")
_NAME = re.compile(r"(?:[^\W\d]\w*(?:\.[^\W\d]\w*)*)?")
# A decorator or a definition, with comments above it.
_DEFINES = re.compile(r"(?:[ \t]*+(?:#.*+)?\n)*+(?:@|def |class |async def )")


class Malformed(ValueError):
    """A hunk that cannot be read; `line` is the index of its address among the lines of the text."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def hunks(
    file: str,
    scope: str,
    headers: tuple[str, ...],
    text: str,
    count: int = 1,
    uses: tuple[str, ...] = (),
    names: tuple[tuple[str, str], ...] = (),
) -> Iterator[Edit]:
    """Yield the edits of a text of hunks.

    Args:
        file: the module that they change.
        scope: the qualified name of the code that addresses begin at; "" is the module.
        headers: the headers that lead from there to the block that they begin at.
        text: one hunk, or several, each below a line `@@ NAME / HEADER`, in which name and headers may be missing.
        count: how often the code of each stands there.
        uses: the attributes, written `self.name`, that the new code relies on.
        names: the code of metavariables.

    Raises:
        Malformed: a hunk cannot be read; the message names its address and says why.
    """
    patches: list[Patch] = []
    defined: set[tuple[str, str]] = set()
    for line, address, body in _sections(text):
        name, *within = (filled(substituted(word.strip(), {}), dict(names)) for word in _STEP.split(f" {address}"))
        place = ".".join(filter(None, (scope, name)))
        try:
            _check(name, within)
            coming = _coming(body)
            if name == "import":
                yield from _imports(file, coming, within)
            elif coming and _DEFINES.match(coming):
                if headers or within:
                    raise ValueError(
                        "a definition goes to the end of a class, a function or the module, not of a block"
                    )
                for one, code in _definitions(filled(substituted(coming, {}), dict(names))):
                    if (place, one) in defined:
                        raise ValueError(f"{one!r} is defined twice")
                    defined.add((place, one))
                    yield AddFunction(file, place, code, uses)
            else:
                read(body, names)
                patches.append(Patch(file, place, body, names, within=(*headers, *within), count=count, uses=uses))
        except ValueError as error:
            raise Malformed(f"{file}{f' ({place})' if place else ''}: {error}", line) from error
    coming_of = {patch: tuple(ast.dump(item.new) for item in patch.hunk.every if item.old is None) for patch in patches}
    for patch in patches:
        others = tuple(
            one for other in patches if other is not patch and other.scope == patch.scope for one in coming_of[other]
        )
        yield replace(patch, beside=others)


def _sections(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the address of each hunk, with the index of its line, and the lines of the hunk."""
    line = 0
    begun = re.split(r"^@@", f"\n{text}", flags=re.MULTILINE)
    for number, section in enumerate(begun):
        address, _, body = section.partition("\n")
        if number or body.strip("\n") or len(begun) == 1:  # nothing need stand above the first address
            yield max(line - 1, 0), address.strip(), body.strip("\n")
        line += section.count("\n")


def _check(name: str, headers: Iterable[str]) -> None:
    if not _NAME.fullmatch(name) or META in name:
        raise ValueError(f"`{shown(name)}` is no qualified name of a function or class")
    for header in headers:
        try:
            header_node(header)
        except (SyntaxError, nesting.Unparsable) as error:
            raise ValueError(f"`{shown(header)}` is no header of a statement") from error


def _coming(body: str) -> str:
    """Return the code of a hunk whose lines all come; "" of any other."""
    lines = body.split("\n")
    comes = all(line.startswith("+") or not line.strip() for line in lines)
    return "\n".join(line[1:] for line in lines) if comes else ""


def _imports(file: str, code: str, within: Sequence[str]) -> Iterator[EnsureImport]:
    if within not in ([], [GUARD]):
        raise ValueError(f"imports go to the top of the module, or below `{GUARD}`")
    found = list(_statements(code))
    if not found:
        raise ValueError("below `@@ import`, lines begin with + and are imports")
    for node, statement in found:
        if not isinstance(node, ast.Import | ast.ImportFrom) or len(_parsed(statement)) > 1:
            raise ValueError(f"`{shown(statement)}` is no import, or several")
        if statement.lstrip().startswith("#"):
            raise ValueError(f"a comment cannot come with an import: `{statement.splitlines()[0]}`")
        yield EnsureImport(file, statement, typing_only=bool(within))


def _definitions(code: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the code of each definition, with the comments above it."""
    for node, text in _statements(code):
        if not isinstance(node, DEFINITIONS):
            raise ValueError(f"`{shown(ast.unparse(node).splitlines()[0])}` comes beside a definition, without context")
        if META in text:
            raise ValueError(f"nothing binds `${text.partition(META)[2].partition(' ')[0]}`")
        yield node.name, text


def _statements(code: str) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the statements of a module, with the comments above each."""
    lines, begin = code.split("\n"), 0
    for node in _parsed(code):
        yield node, "\n".join(lines[begin : end_line(node)]).strip("\n")
        begin = end_line(node)
    if rest := "\n".join(lines[begin:]).strip():
        raise ValueError(f"a comment alone cannot come: `{rest.splitlines()[0]}`")


def _parsed(code: str) -> list[ast.stmt]:
    try:
        return nesting.parse(code).body
    except nesting.Unparsable as error:
        raise ValueError(str(error)) from error
    except SyntaxError as error:
        raise ValueError(f"not valid Python: {error.msg}: `{shown((error.text or '').strip())}`") from error

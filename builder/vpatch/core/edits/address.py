"""Split a text into hunks, each below its address, and make edits of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from vpatch.core.edits.definitions import AddFunction
from vpatch.core.edits.imports import EnsureImport
from vpatch.core.edits.patch import Patch
from vpatch.core.edits.reading import filled, read, substituted

if TYPE_CHECKING:
    from vpatch.core.overlay import Edit

# The slash before a header; a division has no such word behind it.
_STEP = re.compile(r" / (?=(?:if|elif|else|for|async|while|with|try|except|finally|match|case)\b)")
_DEFINES = re.compile(r"(?:@|def |class |async def )")


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
        ValueError: a hunk cannot be read; the message names its address and says why.
    """
    patches: list[Patch] = []
    for address, body in _sections(text):
        name, *within = (filled(substituted(word.strip(), {}), dict(names)) for word in _STEP.split(f" {address}"))
        added = [line for line in body.split("\n") if line.strip()]
        only = all(line.startswith("+") for line in added)
        new = "\n".join(line[1:] for line in body.split("\n"))
        if name == "import" and only:
            yield from (EnsureImport(file, line) for line in new.strip().split("\n"))
            continue
        place = ".".join(filter(None, (scope, name)))
        if only and _DEFINES.match(new):
            yield AddFunction(file, place, filled(substituted(new, {}), dict(names)), uses)
            continue
        try:
            read(body, names)
        except ValueError as error:
            raise ValueError(f"{file}{f' ({place})' if place else ''}: {error}") from error
        patches.append(Patch(file, place, body, names, within=(*headers, *within), count=count, uses=uses))
    coming = {patch: tuple(ast.dump(item.new) for item in patch.hunk.every if item.old is None) for patch in patches}
    for patch in patches:
        others = tuple(
            one for other in patches if other is not patch and other.scope == patch.scope for one in coming[other]
        )
        yield replace(patch, beside=others)


def _sections(text: str) -> Iterator[tuple[str, str]]:
    for section in re.split(r"^@@", f"\n{text}", flags=re.MULTILINE):
        address, _, body = section.partition("\n")
        if body.strip("\n"):
            yield address.strip(), body.strip("\n")

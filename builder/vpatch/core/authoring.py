"""Shorthands for authors of overlays: files, blocks in them, companion modules and probe scripts.

They build the frozen edits and predicates of `vpatch.core.edits` and `vpatch.core.predicates`, and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files as resources

from vpatch.core.edits.address import hunks
from vpatch.core.edits.definitions import AddFile, AddFunction
from vpatch.core.edits.forms import after, before, replaced, signed, with_keyword
from vpatch.core.edits.imports import EnsureImport
from vpatch.core.edits.patch import Patch
from vpatch.core.overlay import COMPANIONS, Edit, Probe
from vpatch.core.predicates import Contains, Defines, HasFile, HasFolder, Imports, Lists, Sets, Takes

Uses = tuple[str, ...]


@dataclass(frozen=True)
class File:
    """A module of vLLM.

    Attributes:
        path: POSIX, relative to the folder that holds `vllm/`: "vllm/engine/arg_utils.py".
    """

    path: str

    def function(self, name: str) -> Block:
        """Return the body of the function or method with this qualified `name`, as "C.f"."""
        return Block(self.path, name)

    def patch(self, text: str, *, count: int = 1, uses: Uses = (), **names: str) -> tuple[Edit, ...]:
        """Change the module by hunks, each below a line `@@ ADDRESS` in `text`.

        `count`, `uses`, `names` and errors are as of `Block.patch`.
        """
        return Block(self.path, "").patch(text, count=count, uses=uses, **names)

    def class_(self, name: str) -> Block:
        """Return the body of the class with this qualified `name`."""
        return Block(self.path, name)

    def ensure_import(self, statement: str, *, typing_only: bool = False) -> EnsureImport:
        """Import something at module level; `statement` and `typing_only` are as of `EnsureImport`."""
        return EnsureImport(self.path, statement, typing_only=typing_only)

    def defer_annotations(self) -> EnsureImport:
        """Begin the module with `from __future__ import annotations`."""
        return EnsureImport(self.path, "from __future__ import annotations")

    def add_function(self, new: str) -> AddFunction:
        """Define `new`, the source of a function or class, at the end of the module."""
        return AddFunction(self.path, "", new)

    def contains(self, code: str) -> Contains:
        """Whether `code` stands anywhere in the module."""
        return Contains(self.path, "", code)

    def defines(self, name: str) -> Defines:
        """Whether the module defines the function or class with this qualified `name`."""
        return Defines(self.path, name)

    def imports(self, name: str) -> Imports:
        """Whether `from ... import` of `name`, without `as`, is in force in the module."""
        return Imports(self.path, name)

    def lists(self, name: str, entry: str) -> Lists:
        """Whether the value assigned to `name` holds a string that matches the glob `entry`."""
        return Lists(self.path, name, entry)

    def sets(self, owner: str, *attributes: str) -> Sets:
        """Whether the class `owner` sets all of these `attributes` of its instances."""
        return Sets(self.path, owner, attributes)


@dataclass(frozen=True)
class Folder:
    """A folder of vLLM, for what no Python file shows.

    Trees that `vpatch fetch` makes have only Python files, and a source checkout lacks what the build adds to the
    wheel.

    Attributes:
        path: POSIX, relative to the folder that holds `vllm/`, without a slash at its end.
    """

    path: str

    @property
    def exists(self) -> HasFolder:
        """Whether the tree has the folder."""
        return HasFolder(f"{self.path}/")

    def has(self, name: str) -> HasFile:
        """Whether a name in the folder matches the glob `name`; unknown if the tree does not have the folder."""
        return HasFile(f"{self.path}/", name)


@dataclass(frozen=True)
class Block:
    """The body of a function or class, or blocks in it: where edits look.

    All that edits take is source code, matched by its syntax: spaces, line breaks, quotes and comments do not matter.
    An edit that finds neither its old nor its new code makes its part drifted. Of an edit, `count` is how often the
    code must occur, and `uses` are the attributes, written `self.name`, that the new code relies on and its class must
    set.

    Attributes:
        path: that of the module, as in `File`.
        scope: the qualified name of the function or class; "" is the module.
        headers: the headers, without colon, of the blocks that lead from the body to this one, as "if x is None".
    """

    path: str
    scope: str
    headers: tuple[str, ...] = ()

    def within(self, *headers: str) -> Block:
        """Return the block in this one that `headers` lead to, written without colon: "if x is None"."""
        return replace(self, headers=(*self.headers, *headers))

    def patch(self, text: str, *, count: int = 1, uses: Uses = (), **names: str) -> tuple[Edit, ...]:
        """Change the block by hunks.

        A hunk is a diff: a line begins with a space if it stays, with - if it goes, with + if it comes. `...` is
        anything, and `$NAME` one expression, the same one throughout.

        Args:
            text: one hunk, or several, each below a line `@@ NAME / HEADER`.
            count: how often the code of a hunk must occur.
            uses: the attributes, written `self.name`, that the new code relies on.
            names: the code that `$NAME` stands for, by name.

        Raises:
            ValueError: a hunk cannot be read; the message names the line and the reason.
        """
        return tuple(hunks(self.path, self.scope, self.headers, text, count, uses, tuple(sorted(names.items()))))

    def replace_expression(self, old: str, new: str, *, count: int = 1, uses: Uses = ()) -> Patch:
        """Replace the expression `old` by `new`, which gets parentheses where it needs them."""
        return self._patch(replaced(old, new), count, uses)

    def replace_statements(self, old: str, new: str, *, count: int = 1, uses: Uses = ()) -> Patch:
        """Replace the consecutive statements `old` by `new`."""
        return self._patch(replaced(old, new), count, uses)

    def insert_before(self, anchor: str, new: str, *, count: int = 1, uses: Uses = ()) -> Patch:
        """Insert `new` before the statements that match `anchor`."""
        return self._patch(before(anchor, new), count, uses)

    def insert_after(self, anchor: str, new: str, *, count: int = 1, uses: Uses = ()) -> Patch:
        """Insert `new` after the statements that match `anchor`."""
        return self._patch(after(anchor, new), count, uses)

    def delete(self, old: str, *, count: int = 1) -> Patch:
        """Delete the consecutive statements `old`. Without neighbours, only `merged` knows that upstream did."""
        return self._patch(signed("-", old), count)

    def add_keyword(self, call: str, keyword: str, *, count: int = 1, uses: Uses = ()) -> Patch:
        """Add `keyword`, written `name=value`, to the calls that match `call`, behind the others, before any `**`."""
        return self._patch(with_keyword(call, keyword), count, uses)

    def _patch(self, text: str, count: int, uses: Uses = ()) -> Patch:
        (edit,) = hunks(self.path, self.scope, self.headers, text, count, uses)
        assert isinstance(edit, Patch)  # noqa: S101 - the forms have no lines that come alone
        return edit

    def add_function(self, new: str, *, uses: Uses = ()) -> AddFunction:
        """Define `new`, the source of a function or class, at the end of this body."""
        return AddFunction(self.path, self.scope, new, uses)

    def ensure_import(self, statement: str) -> EnsureImport:
        """Import something in this function; `statement` is as of `EnsureImport`."""
        return EnsureImport(self.path, statement, self.scope)

    def contains(self, code: str) -> Contains:
        """Whether `code` (an expression, or statements in one block; `...` is free) stands anywhere in the block."""
        return Contains(self.path, self.scope, code)

    def imports(self, name: str) -> Imports:
        """Whether `from ... import` of `name`, without `as`, stands anywhere in the function or class."""
        return Imports(self.path, name, self.scope)

    def takes(self, parameter: str) -> Takes:
        """Whether the function takes a `parameter` of this name."""
        return Takes(self.path, self.scope, parameter)

    def takes_first(self, parameter: str) -> Takes:
        """Whether this `parameter` is the function's first one, `self` and `cls` not counted."""
        return Takes(self.path, self.scope, parameter, first=True)


@dataclass(frozen=True)
class Companion:
    """A module of an overlay's package that vpatch adds to vLLM as `vllm/_vpatch/<name>.py`.

    Attributes:
        module: its dotted name in the overlay's package.
        along: the names of modules beside it that it imports, so that vpatch adds them, too.
    """

    module: str
    along: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[AddFile, ...]:
        """The edits that add the module and the modules along with it."""
        package, _, name = self.module.rpartition(".")
        names = dict.fromkeys((*self.along, name))
        return tuple(AddFile(f"{COMPANIONS}{one}.py", _text(package, one)) for one in names)

    def import_into(self, file: File, *names: str) -> tuple[Edit, ...]:
        """Import from the companion in a module of vLLM, and add the companion's files.

        Each of `names` ("a", "a, b" or "a as b") makes one statement at the top of `file`.
        """
        module = f"vllm._vpatch.{self.module.rpartition('.')[2]}"
        return (*(EnsureImport(file.path, f"from {module} import {one}") for one in names), *self.files)


_CARRIED = """
module = sys.modules[{name!r}] = types.ModuleType({name!r})
exec(compile({text!r}, {file!r}, "exec"), vars(module))
"""
_RUN = """
exec(compile({text!r}, {file!r}, "exec"), {{"__name__": "__main__"}})
"""


def probe(package: str, name: str, *, gpu: bool = False) -> Probe:
    """Build the probe that runs a module as `__main__`; see `Probe`.

    Neither vpatch nor the overlay's package is installed beside the patched vLLM. So the script contains the module,
    and those modules of the package that it imports by a line that begins with `from package.other import`.

    Args:
        package: the dotted name of a package.
        name: the module in it, and the probe's name.
        gpu: whether the probe needs a CUDA device.

    Raises:
        ModuleNotFoundError: there is no such package.
        FileNotFoundError: the package has no such module.
    """
    parts = ("import sys, types", *_dependencies(package, name, {}).values(), _script(_RUN, package, name))
    return Probe(name, "\n".join(parts), gpu)


def _dependencies(package: str, name: str, found: dict[str, str]) -> dict[str, str]:
    """Add the scripts of the modules that a module imports, in the order in which they must run."""
    for other in re.findall(rf"^from {re.escape(package)}\.(\w+) import ", _text(package, name), re.MULTILINE):
        if other not in found:
            _dependencies(package, other, found)
            found[other] = _script(_CARRIED, package, other)
    return found


def _script(form: str, package: str, name: str) -> str:
    return form.format(name=f"{package}.{name}", text=_text(package, name), file=f"{name}.py").strip()


@cache
def _text(package: str, name: str) -> str:
    return (resources(package) / f"{name}.py").read_text("utf-8")

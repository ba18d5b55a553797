"""What an overlay asks of a tree beyond what its edits find. All predicates are frozen dataclasses."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from vpatch.core.matching import matches_run
from vpatch.core.overlay import Predicate
from vpatch.core.parse import Lost
from vpatch.core.select import block, expression, expressions, headline, names, scopes
from vpatch.core.syntax import BLOCKS, Spot, walk
from vpatch.core.verdict import Answer

if TYPE_CHECKING:
    from vpatch.core.workspace import Workspace


class _Combinable:
    """The operators of predicates: `a & b`, `a | b` and `~a`."""

    def __and__(self: Predicate, other: Predicate) -> All:
        return All((self, other))

    def __or__(self: Predicate, other: Predicate) -> AnyOf:
        return AnyOf((self, other))

    def __invert__(self: Predicate) -> Not:
        return Not(self)

    def means(self: Predicate, words: str) -> Meaning:
        """Add the words that users see if the predicate holds: "this vLLM has no TurboQuant"."""
        return Meaning(self, words)


class _OfModule(_Combinable, ABC):
    """A predicate on one module."""

    file: str

    @property
    def files(self) -> tuple[str, ...]:
        """The module."""
        return (self.file,)

    def ask(self, files: Workspace) -> Answer:
        """Answer from the module's code, once for equal bytes; unknown if the module or its scope cannot be read."""
        known = files.known(self.file).answers
        answer = known.get(self)
        if answer is None:
            try:
                answer = self._answer(files)
            except Lost as lost:
                answer = Answer(None, str(lost), file=self.file)
            known[self] = answer
        return answer

    @abstractmethod
    def _answer(self, files: Workspace) -> Answer: ...


@dataclass(frozen=True)
class Defines(_OfModule):
    """Whether the module `file` defines the function or class with the qualified name `name`, as "C.f"."""

    file: str
    name: str

    def _answer(self, files: Workspace) -> Answer:
        root = Spot((), files.source(self.file).tree)
        known = any(name == self.name for name, _ in names(root))
        return Answer(known, f"{self.file} {'defines' if known else 'does not define'} {self.name}")


@dataclass(frozen=True)
class Takes(_OfModule):
    """Whether `function`, a qualified name in the module `file`, takes a parameter named `parameter`.

    With `first`: as its first one, `self` and `cls` not counted. Unknown unless the module has exactly one such
    function.
    """

    file: str
    function: str
    parameter: str
    first: bool = False

    def _answer(self, files: Workspace) -> Answer:
        try:
            spot, *more = scopes(files.source(self.file), self.function)
            if more:
                raise Lost(f"is defined {len(more) + 1} times")
            if not isinstance(spot.node, ast.FunctionDef | ast.AsyncFunctionDef):
                raise Lost("is not a function")
        except Lost as lost:
            return Answer(None, f"{self.function}: {lost}", file=self.file)
        a = spot.node.args
        given = [argument.arg for argument in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
        given = [name for name in given if name not in {"self", "cls"}]
        holds = self.parameter in (given[:1] if self.first else given)
        return Answer(holds, f"{self.function} {'takes' if holds else 'does not take'} {self.parameter}")


@dataclass(frozen=True)
class Sets(_OfModule):
    """Whether the class `owner` of the module `file` sets all of `attributes`, names without `self.`, of its instances.

    For what inserted code relies on in a base class from another module; an edit's `uses` covers its own module.
    Unknown unless the module has exactly one such class.
    """

    file: str
    owner: str
    attributes: tuple[str, ...]

    def _answer(self, files: Workspace) -> Answer:
        try:
            module = files.analyzed(self.file)
            (owner,) = (s for s in module.scope.binders(self.owner) if isinstance(s, ast.ClassDef))
        except (SyntaxError, ValueError, LookupError) as error:
            raise Lost(f"there is not one class {self.owner!r}") from error
        missing = sorted(set(self.attributes) - set(module.attributes(module.scope.inner(owner))))
        outcome = f"does not set `self.{missing[0]}`" if missing else "sets what the new code relies on"
        return Answer(not missing, f"{self.owner} {outcome}", file=self.file)


@dataclass(frozen=True)
class Contains(_OfModule):
    """Whether `code` stands anywhere in `scope`, a qualified name in the module `file`; "" is the module.

    The code is an expression, or statements that stand in one block; `...` in it stands for anything.
    """

    file: str
    scope: str
    code: str

    def _answer(self, files: Workspace) -> Answer:
        source = files.source(self.file)
        owners = scopes(source, self.scope)
        if _is_expression(self.code):
            holds = any(expressions(source, owner, expression(self.code), exactly=False) for owner in owners)
        else:
            holds = _has_statements(owners, self.code)
        where = self.scope or self.file
        return Answer(holds, f"{where} {'has' if holds else 'has no'} `{headline(self.code)}`")


@cache
def _is_expression(code: str) -> bool:
    try:
        expression(code)
    except SyntaxError:
        return False
    return True


def _has_statements(owners: list[Spot], code: str) -> bool:
    gap = ast.Expr(ast.Constant(...))
    wanted = [gap, *block(code), gap]
    owning = (spot.node for owner in owners for spot in walk(owner, BLOCKS))  # no expression holds statements
    bodies = (getattr(node, name, None) for node in owning for name in ("body", "orelse", "finalbody"))
    return any(matches_run(wanted, body) for body in bodies if body)


@dataclass(frozen=True)
class Lists(_OfModule):
    """Whether the value that the module `file` assigns to `name` has a string in it that matches the glob `entry`.

    Unknown unless the module assigns `name` exactly once.
    """

    file: str
    name: str
    entry: str

    def _answer(self, files: Workspace) -> Answer:
        values = [value for node in files.source(self.file).tree.body if (value := _assigned(node, self.name))]
        if len(values) != 1:
            return Answer(None, f"{self.file} assigns {self.name} {len(values)} times")
        texts = [node.value for node in ast.walk(values[0]) if isinstance(node, ast.Constant)]
        holds = any(isinstance(text, str) and fnmatchcase(text, self.entry) for text in texts)
        return Answer(holds, f"{self.name} in {self.file} {'lists' if holds else 'lists no'} {self.entry}")


def _assigned(statement: ast.stmt, name: str) -> ast.expr | None:
    match statement:
        case ast.Assign(targets=[ast.Name(found)], value=value) | ast.AnnAssign(target=ast.Name(found), value=value):
            return value if found == name else None
    return None


@dataclass(frozen=True)
class Imports(_OfModule):
    """Whether `from ... import` of `name`, without `as`, is in force in the module `file`.

    With `scope`, the qualified name of a function: whether it stands anywhere in this function.
    """

    file: str
    name: str
    scope: str = ""

    def _answer(self, files: Workspace) -> Answer:
        owners = scopes(files.source(self.file), self.scope)
        nodes = (spot.node for owner in owners for spot in walk(owner)) if self.scope else owners[0].node.body
        holds = any(
            alias.name == self.name and alias.asname is None
            for node in nodes
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        )
        where = self.scope or self.file
        return Answer(holds, f"{where} {'imports' if holds else 'does not import'} {self.name}")


@dataclass(frozen=True)
class _OfFolder(_Combinable):
    """A predicate on a folder, given by a path that ends with a slash."""

    folder: str

    @property
    def files(self) -> tuple[str, ...]:
        """The folder."""
        return (self.folder,)


@dataclass(frozen=True)
class HasFolder(_OfFolder):
    """Whether the tree has `folder`, a path that ends with a slash.

    Unlike other predicates it is never unknown: a tree of Python files alone lacks folders that vLLM's wheel has, so
    that this shows what a tree can tell, not what a vLLM is.
    """

    def ask(self, files: Workspace) -> Answer:
        """Answer from the listing."""
        holds = files.names(self.folder) is not None
        return Answer(holds, f"the tree {'has' if holds else 'does not have'} the folder {self.folder}")


@dataclass(frozen=True)
class HasFile(_OfFolder):
    """Whether a name in `folder`, whose path ends with a slash, matches the glob `name`; unknown without the folder."""

    name: str

    def ask(self, files: Workspace) -> Answer:
        """Answer from the listing."""
        names = files.names(self.folder)
        if names is None:
            return Answer(None, f"{self.folder}: no such folder")
        found = [one for one in names if fnmatchcase(one, self.name)]
        return Answer(bool(found), f"{self.folder} has {found[0] if found else f'no {self.name}'}")


@dataclass(frozen=True)
class _OfOne(_Combinable, ABC):
    """A predicate that changes the answer of another."""

    predicate: Predicate

    @property
    def files(self) -> tuple[str, ...]:
        """The predicate's."""
        return self.predicate.files

    def ask(self, files: Workspace) -> Answer:
        """Ask the predicate."""
        return self._changed(self.predicate.ask(files))

    @abstractmethod
    def _changed(self, answer: Answer) -> Answer: ...


@dataclass(frozen=True)
class Not(_OfOne):
    """The opposite of a `predicate`, also written `~predicate`; unknown stays unknown."""

    def _changed(self, answer: Answer) -> Answer:
        return replace(answer, holds=None if answer.holds is None else not answer.holds, meaning="")


@dataclass(frozen=True)
class Unclear(_OfOne):
    """Unknown if a `predicate` holds, with its reason: as for another fix in `merged`, which is not stacked upon."""

    def _changed(self, answer: Answer) -> Answer:
        return replace(answer, holds=None) if answer.holds else answer


@dataclass(frozen=True)
class Meaning(_OfOne):
    """A predicate, with what it means to users if it holds."""

    words: str

    def _changed(self, answer: Answer) -> Answer:
        if not answer.holds:
            return answer
        return replace(answer, because=f"{self.words}: {answer.reason}", meaning=self.words, file="")


@dataclass(frozen=True)
class _Several(_Combinable):
    predicates: tuple[Predicate, ...]

    _decisive: ClassVar[bool]

    @property
    def files(self) -> tuple[str, ...]:
        """The predicates'."""
        return tuple(file for predicate in self.predicates for file in predicate.files)

    def ask(self, files: Workspace) -> Answer:
        """Ask each until one answer decides."""
        answers = []
        for predicate in self.predicates:
            answers.append(answer := predicate.ask(files))
            if answer.holds is self._decisive:
                return answer
        unknown = [answer for answer in answers if answer.holds is None]
        return unknown[0] if unknown else Answer(not self._decisive, ", ".join(a.reason for a in answers))


@dataclass(frozen=True)
class All(_Several):
    """Whether all `predicates` hold, also written `a & b`; unknown if none fails and one is unknown."""

    _decisive = False


@dataclass(frozen=True)
class AnyOf(_Several):
    """Whether one of `predicates` holds, also written `a | b`; unknown if none holds and one is unknown."""

    _decisive = True

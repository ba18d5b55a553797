"""What an overlay asks of a tree beyond what its edits find. All predicates are frozen dataclasses."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from vpatch.core import cst
from vpatch.core.overlay import Predicate
from vpatch.core.parse import Lost
from vpatch.core.select import block, expression, expressions, headline, lines, names, scopes
from vpatch.core.syntax import BLOCKS, Spot, matches, statements, steps, walk
from vpatch.core.verdict import Answer

if TYPE_CHECKING:
    from vpatch.core.overlay import Reach
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
    def reach(self) -> Reach:
        """The scope that it reads."""
        return ((self.file, self._reads()),)

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

    def _reads(self) -> str | None:
        return None  # the code outside functions

    @abstractmethod
    def _answer(self, files: Workspace) -> Answer: ...


@dataclass(frozen=True)
class Defines(_OfModule):
    """Whether a module defines the function or class with this qualified name."""

    file: str
    name: str

    def _reads(self) -> str | None:
        return self.name if "." in self.name else None

    def _answer(self, files: Workspace) -> Answer:
        root = Spot((), files.source(self.file).module)
        known = any(name == self.name for name, _ in names(root))
        return Answer(known, f"{self.file} {'defines' if known else 'does not define'} {self.name}")


@dataclass(frozen=True)
class Takes(_OfModule):
    """Whether a function takes a parameter of this name; `first`: as its first one, `self` and `cls` not counted.

    Unknown unless the module has exactly one such function.
    """

    file: str
    function: str
    parameter: str
    first: bool = False

    def _reads(self) -> str | None:
        return self.function if "." in self.function else None

    def _answer(self, files: Workspace) -> Answer:
        try:
            spot, *more = scopes(files.source(self.file), self.function)
            if more:
                raise Lost(f"is defined {len(more) + 1} times")
            if not isinstance(spot.node, cst.FunctionDef):
                raise Lost("is not a function")
        except Lost as lost:
            return Answer(None, f"{self.function}: {lost}", file=self.file)
        p = spot.node.params
        given = [param.name.value for param in (*p.posonly_params, *p.params, *p.kwonly_params)]
        given = [name for name in given if name not in {"self", "cls"}]
        holds = self.parameter in (given[:1] if self.first else given)
        return Answer(holds, f"{self.function} {'takes' if holds else 'does not take'} {self.parameter}")


@dataclass(frozen=True)
class Sets(_OfModule):
    """Whether a class of the module sets every one of these attributes of its instances.

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
    """Whether `code` (an expression, or statements in one block; `...` is free) stands anywhere in a scope."""

    file: str
    scope: str
    code: str

    def _reads(self) -> str | None:
        return self.scope

    def _answer(self, files: Workspace) -> Answer:
        source = files.source(self.file)
        owners = scopes(source, self.scope)
        try:
            pattern = expression(self.code)
            holds = any(expressions(source, owner, pattern, exactly=False) for owner in owners)
        except cst.ParserSyntaxError:
            holds = self._has_statements(owners)
        where = self.scope or self.file
        return Answer(holds, f"{where} {'has' if holds else 'has no'} `{headline(self.code)}`")

    def _has_statements(self, owners: list[Spot]) -> bool:
        gap, kinds = cst.Expr(cst.Ellipsis()), (cst.Module, cst.BaseSuite)
        wanted = [gap, *statements(cst.IndentedBlock(block(self.code))), gap]
        below = partial(steps, names=BLOCKS)  # no expression holds statements
        owning = (s.node for o in owners for s in walk(o, below))
        bodies = (node if isinstance(node, cst.Module) else getattr(node, "body", None) for node in owning)
        return any(matches(wanted, statements(body)) for body in bodies if isinstance(body, kinds))


@dataclass(frozen=True)
class Lists(_OfModule):
    """Whether the value that a module assigns to `name` has a string in it that matches the glob `entry`.

    Unknown unless the module assigns `name` exactly once.
    """

    file: str
    name: str
    entry: str

    def _answer(self, files: Workspace) -> Answer:
        root = Spot((), files.source(self.file).module)
        values = [value for spot in lines(root) if (value := _assigned(spot.node, self.name))]
        if len(values) != 1:
            return Answer(None, f"{self.file} assigns {self.name} {len(values)} times")
        texts = [s.node.evaluated_value for s in walk(Spot((), values[0])) if isinstance(s.node, cst.SimpleString)]
        holds = any(isinstance(text, str) and fnmatchcase(text, self.entry) for text in texts)
        return Answer(holds, f"{self.name} in {self.file} {'lists' if holds else 'lists no'} {self.entry}")


def _assigned(statement: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    match statement:
        case cst.SimpleStatementLine(
            body=[
                cst.Assign(targets=[cst.AssignTarget(target=cst.Name(found))], value=value)
                | cst.AnnAssign(target=cst.Name(found), value=value)
            ]
        ):
            return value if found == name else None
    return None


@dataclass(frozen=True)
class Imports(_OfModule):
    """Whether `from ... import name`, without `as`, is in force in a module, or stands anywhere in a function."""

    file: str
    name: str
    scope: str = ""

    def _reads(self) -> str | None:
        return self.scope or None

    def _answer(self, files: Workspace) -> Answer:
        owners = scopes(files.source(self.file), self.scope)
        nodes = (s.node for o in owners for s in walk(o)) if self.scope else statements(owners[0].node)
        holds = any(
            alias.evaluated_name == self.name and alias.evaluated_alias is None
            for node in nodes
            if isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar)
            for alias in node.names
        )
        where = self.scope or self.file
        return Answer(holds, f"{where} {'imports' if holds else 'does not import'} {self.name}")


@dataclass(frozen=True)
class _OfFolder(_Combinable):
    """A predicate on a folder, given by a path that ends with a slash."""

    folder: str

    @property
    def reach(self) -> Reach:
        """The folder."""
        return ((self.folder, None),)


@dataclass(frozen=True)
class HasFolder(_OfFolder):
    """Whether the tree has a folder.

    Unlike other predicates it is never unknown: a tree of Python files alone lacks folders that vLLM's wheel has, so
    that this shows what a tree can tell, not what a vLLM is.
    """

    def ask(self, files: Workspace) -> Answer:
        """Answer from the listing."""
        holds = files.names(self.folder) is not None
        return Answer(holds, f"the tree {'has' if holds else 'does not have'} the folder {self.folder}")


@dataclass(frozen=True)
class HasFile(_OfFolder):
    """Whether a name in a folder matches the glob `name`; unknown if the tree does not have the folder."""

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
    def reach(self) -> Reach:
        """The predicate's."""
        return self.predicate.reach

    def ask(self, files: Workspace) -> Answer:
        """Ask the predicate."""
        return self._changed(self.predicate.ask(files))

    @abstractmethod
    def _changed(self, answer: Answer) -> Answer: ...


@dataclass(frozen=True)
class Not(_OfOne):
    """The opposite of a predicate; unknown stays unknown."""

    def _changed(self, answer: Answer) -> Answer:
        return replace(answer, holds=None if answer.holds is None else not answer.holds, meaning="")


@dataclass(frozen=True)
class Unclear(_OfOne):
    """Unknown if a predicate holds, with its reason: as for another fix in `merged`, which is not stacked upon."""

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
    def reach(self) -> Reach:
        """The predicates'."""
        return tuple(where for predicate in self.predicates for where in predicate.reach)

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
    """Whether every one of some predicates holds; unknown if none fails and one is unknown."""

    _decisive = False


@dataclass(frozen=True)
class AnyOf(_Several):
    """Whether at least one of some predicates holds; unknown if none holds and one is unknown."""

    _decisive = True

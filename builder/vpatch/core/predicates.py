"""Questions that an overlay asks of a tree, beyond what its edits find. All are frozen dataclasses."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from vpatch.core import cst
from vpatch.core.overlay import Predicate
from vpatch.core.parse import Lost
from vpatch.core.select import block, expression, expressions, headline, lines, names, scopes
from vpatch.core.syntax import Spot, matches, statements, walk
from vpatch.core.verdict import Answer

if TYPE_CHECKING:
    from vpatch.core.overlay import Reach
    from vpatch.core.workspace import Workspace


def _home(name: str) -> str | None:
    """Give what must be looked into to see whether a name is defined: for one of the module's own, no function."""
    return name if "." in name else None


class _Combinable:
    """The operators of predicates: `a & b`, `a | b` and `~a`."""

    def __and__(self: Predicate, other: Predicate) -> All:
        return All((self, other))

    def __or__(self: Predicate, other: Predicate) -> AnyOf:
        return AnyOf((self, other))

    def __invert__(self: Predicate) -> Not:
        return Not(self)


@dataclass(frozen=True)
class Defines(_Combinable):
    """Whether a module defines the function or class with this qualified name."""

    file: str
    name: str

    @property
    def reach(self) -> Reach:
        """What it is defined in."""
        return ((self.file, _home(self.name)),)

    def ask(self, files: Workspace) -> Answer:
        """Read the module; unknown if it cannot be read."""
        try:
            source = files.source(self.file)
        except Lost as lost:
            return Answer(None, f"{self.file}: {lost}")
        known = any(name == self.name for name, _ in names(Spot((), source.module)))
        return Answer(known, f"{self.file} {'defines' if known else 'does not define'} {self.name}")


@dataclass(frozen=True)
class Takes(_Combinable):
    """Whether a function takes a parameter of this name; `first`: as its first one, `self` and `cls` not counted."""

    file: str
    function: str
    parameter: str
    first: bool = False

    @property
    def reach(self) -> Reach:
        """What it is defined in."""
        return ((self.file, _home(self.function)),)

    def ask(self, files: Workspace) -> Answer:
        """Read the function's parameters; unknown if there is no such function, or several."""
        try:
            spot, *more = scopes(files.source(self.file), self.function)
        except Lost as lost:
            return Answer(None, f"{self.file}: {self.function}: {lost}")
        if more:
            return Answer(None, f"{self.file}: {self.function}: is defined {len(more) + 1} times")
        if not isinstance(spot.node, cst.FunctionDef):
            return Answer(None, f"{self.file}: {self.function}: is not a function")
        p = spot.node.params
        given = [param.name.value for param in (*p.posonly_params, *p.params, *p.kwonly_params)]
        given = [name for name in given if name not in {"self", "cls"}]
        holds = self.parameter in (given[:1] if self.first else given)
        return Answer(holds, f"{self.function} {'takes' if holds else 'does not take'} {self.parameter}")


@dataclass(frozen=True)
class Sets(_Combinable):
    """Whether a class of the module sets every one of these attributes of its instances.

    For what inserted code relies on in a base class from another module; an edit's `uses` looks into its own.
    """

    file: str
    owner: str
    attributes: tuple[str, ...]

    @property
    def reach(self) -> Reach:
        """Nothing that libcst parses."""
        return ((self.file, None),)

    def ask(self, files: Workspace) -> Answer:
        """Read the class; unknown if there is none, or the module cannot be read."""
        try:
            module = files.analyzed(self.file)
            (owner,) = (s for s in module.scope.binders(self.owner) if isinstance(s, ast.ClassDef))
        except Lost as lost:
            return Answer(None, f"{self.file}: {lost}")
        except (SyntaxError, ValueError, LookupError):
            return Answer(None, f"{self.file}: there is not one class {self.owner!r}")
        missing = sorted(set(self.attributes) - set(module.attributes(module.scope.inner(owner))))
        told = f"does not set `self.{missing[0]}`" if missing else "sets what the new code relies on"
        return Answer(not missing, f"{self.file}: {self.owner} {told}")


@dataclass(frozen=True)
class Contains(_Combinable):
    """Whether `code` (an expression, or statements in one block; `...` is free) stands anywhere in a scope."""

    file: str
    scope: str
    code: str

    @property
    def reach(self) -> Reach:
        """The scope."""
        return ((self.file, self.scope),)

    def ask(self, files: Workspace) -> Answer:
        """Look through the scope; unknown if there is no such scope."""
        try:
            owners = scopes(files.source(self.file), self.scope)
        except Lost as lost:
            return Answer(None, f"{self.file}: {lost}")
        try:
            pattern = expression(self.code)
            holds = any(expressions(owner, pattern, exactly=False) for owner in owners)
        except cst.ParserSyntaxError:
            gap = cst.Expr(cst.Ellipsis())
            wanted = [gap, *statements(cst.IndentedBlock(block(self.code))), gap]
            owning = (s.node for o in owners for s in walk(o))
            bodies = (node if isinstance(node, cst.Module) else getattr(node, "body", None) for node in owning)
            holds = any(matches(wanted, statements(body)) for body in bodies if isinstance(body, _bodies()))
        where = self.scope or self.file
        return Answer(holds, f"{where} {'has' if holds else 'has no'} `{headline(self.code)}`")


def _bodies() -> tuple[type[cst.CSTNode], ...]:
    return (cst.Module, cst.BaseSuite)


@dataclass(frozen=True)
class Lists(_Combinable):
    """Whether the value that a module assigns to `name` has a string in it that matches the glob `entry`."""

    file: str
    name: str
    entry: str

    @property
    def reach(self) -> Reach:
        """Nothing inside functions."""
        return ((self.file, None),)

    def ask(self, files: Workspace) -> Answer:
        """Read the assignment; unknown if there is none."""
        try:
            source = files.source(self.file)
        except Lost as lost:
            return Answer(None, f"{self.file}: {lost}")
        values = [value for spot in lines(Spot((), source.module)) if (value := _assigned(spot.node, self.name))]
        if len(values) != 1:
            return Answer(None, f"{self.file} assigns {self.name} {len(values)} times")
        texts = [s.node.evaluated_value for s in walk(Spot((), values[0])) if isinstance(s.node, cst.SimpleString)]
        holds = any(isinstance(text, str) and fnmatchcase(text, self.entry) for text in texts)
        return Answer(holds, f"{self.name} in {self.file} {'lists' if holds else 'lists no'} {self.entry}")


def _assigned(statement: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    match statement:
        case cst.SimpleStatementLine(
            body=[cst.Assign(targets=[cst.AssignTarget(target=cst.Name(found))], value=value)]
        ):
            return value if found == name else None
        case cst.SimpleStatementLine(body=[cst.AnnAssign(target=cst.Name(found), value=value)]):
            return value if found == name else None
    return None


@dataclass(frozen=True)
class Imports(_Combinable):
    """Whether `from ... import name`, without `as`, is in force in a module, or stands anywhere in a function."""

    file: str
    name: str
    scope: str = ""

    @property
    def reach(self) -> Reach:
        """The function; of the module only what stands outside functions."""
        return ((self.file, self.scope or None),)

    def ask(self, files: Workspace) -> Answer:
        """Look at the imports; unknown if there is no such function."""
        try:
            owners = scopes(files.source(self.file), self.scope)
        except Lost as lost:
            return Answer(None, f"{self.file}: {lost}")
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
class Not(_Combinable):
    """The opposite of a predicate."""

    predicate: Predicate

    @property
    def reach(self) -> Reach:
        """The predicate's."""
        return self.predicate.reach

    def ask(self, files: Workspace) -> Answer:
        """Ask it; unknown stays unknown."""
        answer = self.predicate.ask(files)
        return Answer(None if answer.holds is None else not answer.holds, answer.because)


@dataclass(frozen=True)
class All(_Combinable):
    """Whether every one of some predicates holds."""

    predicates: tuple[Predicate, ...]

    @property
    def reach(self) -> Reach:
        """The predicates'."""
        return tuple(where for predicate in self.predicates for where in predicate.reach)

    def ask(self, files: Workspace) -> Answer:
        """Ask each until one does not hold; unknown if none fails and one is unknown."""
        answers = []
        for predicate in self.predicates:
            answers.append(answer := predicate.ask(files))
            if answer.holds is False:
                return answer
        unknown = [answer for answer in answers if answer.holds is None]
        return unknown[0] if unknown else Answer(holds=True, because=", ".join(a.because for a in answers))


@dataclass(frozen=True)
class AnyOf(_Combinable):
    """Whether at least one of some predicates holds."""

    predicates: tuple[Predicate, ...]

    @property
    def reach(self) -> Reach:
        """The predicates'."""
        return tuple(where for predicate in self.predicates for where in predicate.reach)

    def ask(self, files: Workspace) -> Answer:
        """Ask each until one holds; unknown if none holds and one is unknown."""
        answers = []
        for predicate in self.predicates:
            answers.append(answer := predicate.ask(files))
            if answer.holds:
                return answer
        unknown = [answer for answer in answers if answer.holds is None]
        return unknown[0] if unknown else Answer(holds=False, because=", ".join(a.because for a in answers))

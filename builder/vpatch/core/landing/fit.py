"""Check that what an overlay's code takes from vLLM still fits: calls bind, results have their shape, names are there.

It compares with the list of `vpatch.core.calls`, and infers nothing: what the code takes, and where it was found, was
recorded on releases that prove it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, Signature
from typing import TypeAlias

from vpatch.core.calls import Call, Calls, Taken, inserted_by
from vpatch.core.landing.interfaces import Interface, arguments, parse_interface, signature
from vpatch.core.landing.lookup import Defined, Lookup
from vpatch.core.overlay import COMPANIONS, Edit
from vpatch.core.verdict import EditFinding
from vpatch.core.workspace import Workspace
from vpatch.errors import Problem, nearest

Findings: TypeAlias = Sequence[tuple[Edit, EditFinding]]
Rules: TypeAlias = "Callable[[Call, Interface, str], Iterator[str]]"

_BY_POSITION = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}


@dataclass(frozen=True)
class Checked:
    """What does not fit, notes on what may not, and the files that were read."""

    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    read: frozenset[str] = frozenset()


def fit(
    calls: Calls | None, part: str, shape: str, found: Findings, files: Workspace, *, proved: bool = False
) -> Checked:
    """Check what the code of one part takes from vLLM.

    Args:
        calls: the overlay's list; None without one.
        part: the part's name.
        shape: the name of its shape that is applied.
        found: the findings of its edits.
        files: the tree after the edits.
        proved: before the edits, all that the list names was as on a release that it was recorded on.
    """
    if calls is None:
        return Checked(notes=("nothing is recorded of what its code takes from vLLM, so that was not checked",))
    companions = [edit.file for edit, _ in found if edit.file.startswith(COMPANIONS)]
    lookup, problems, notes = Lookup(files), dict[Problem, None](), dict[str, None]()
    for key in dict.fromkeys((inserted_by(part, shape), *companions)):
        if (taken := calls.code.get(key)) is None:
            notes[f"nothing is recorded of what {key} takes from vLLM, so that was not checked"] = None
            continue
        if proved:
            continue
        by = key.rpartition("/")[2] if key in companions else "the new code"
        problems |= dict.fromkeys(_problems(taken, by, lookup))
        notes |= dict.fromkeys(_notes(taken, lookup))
    return Checked(tuple(problems), tuple(notes), frozenset(lookup.read))


def _problems(taken: Taken, by: str, lookup: Lookup) -> Iterator[Problem]:
    for key, call in taken.calls.items():
        yield from _of_definition(key, call, by, lookup, misfits)
    for key, call in taken.overrides.items():
        yield from _of_definition(key, call, by, lookup, _outgrown)
    for owner, attributes in taken.reads.items():
        file, _, name = owner.partition(" ")
        for attribute in lookup.unset(owner, attributes):
            yield _drifted(file, name, f"sets no `{attribute}`, which {by} reads")
    for path in taken.imports:
        module, _, name = path.rpartition(".")
        if not lookup.defines(module, name):
            yield Problem("drifted", f"{module.replace('.', '/')}.py", f"defines no `{name}`, which {by} imports")


def _drifted(file: str, name: str, cause: str) -> Problem:
    return Problem("drifted", file, cause, name)


def _of_definition(key: str, call: Call, by: str, lookup: Lookup, rules: Rules) -> Iterator[Problem]:
    file, _, name = key.partition(" ")
    definitions = found(key, call, lookup)
    if not definitions:
        if not call.optional:
            yield _drifted(file, name, f"is gone, and {by} calls it{_near(file, name, lookup)}")
        return
    for each in definitions:
        interface = lookup.interface(each)
        for cause in rules(call, interface, by) if interface else ():
            yield _drifted(each.file, each.name, f"line {each.stmt.lineno}: {cause}")


def found(key: str, call: Call, lookup: Lookup) -> list[Defined]:
    """Return the definitions that a call reaches, where a release that proves it has them."""
    return next(filter(None, map(lookup.find, (key, *call.at))), [])


def _near(file: str, name: str, lookup: Lookup) -> str:
    """Return the end of a message on a definition that is gone."""
    owner, _, last = name.rpartition(".")
    if not (names := lookup.names(f"{file} {owner}")):
        return f": there is no {owner or file}"
    close = nearest(last, sorted(names))
    return f"; nearest: {', '.join(f'`{each}`' for each in close)}" if close else ""


def misfits(call: Call, interface: Interface, by: str) -> Iterator[str]:
    """Yield why a call does not fit an interface of its callee."""
    if str(interface) in call.interfaces:
        return
    known = list(map(parse_interface, call.interfaces))
    if interface.kind not in {each.kind for each in known}:
        yield f"is a {interface.kind} now, and {by} takes it for a {known[0].kind}"
        return
    if new := interface.decorators - {name for each in known for name in each.decorators}:
        yield f"has the decorator `@{min(new)}`, which may replace it by something else"
    headers = {each.parameters for each in known}
    for given in call.given:
        if cause := _swapped(given, interface.parameters, headers, by) or _binds(
            given, interface.parameters, headers, by
        ):
            yield cause
            break
    if not call.ignored:
        yield from _returned(interface.returns, {shape for each in known for shape in each.returns}, by)


def _binds(given: str, parameters: str, known: Collection[str], by: str) -> str:
    """Return why a call does not bind to parameters; "" if it does.

    What a star hides is none of the parameters that no `known` interface has.
    """
    args, keywords = arguments(given).args, arguments(given).keywords
    hidden = any(isinstance(each, ast.Starred) for each in args) or any(each.arg is None for each in keywords)
    named = {each.arg: None for each in keywords if each.arg}
    taking = signature(parameters)
    try:
        bound = (taking.bind_partial if hidden else taking.bind)(
            *(each for each in args if not isinstance(each, ast.Starred)), **named
        )
    except TypeError as error:
        return f"does not take what {by} passes: {error}"
    old = {name for each in known for name in signature(each).parameters}
    for name, each in taking.parameters.items():
        if name not in bound.arguments and name not in old and _is_required(each):
            return f"does not take what {by} passes: missing a required argument: '{name}'"
    return ""


def _is_required(parameter: Parameter) -> bool:
    variable = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    return parameter.default is Parameter.empty and parameter.kind not in variable


def _swapped(given: str, parameters: str, known: Collection[str], by: str) -> str:
    """Return which argument that the code passes by position goes to a parameter of another name; "" if none."""
    now, before = _places(parameters)[: len(arguments(given).args)], [_places(each) for each in known]
    for place, name in enumerate(now):
        names = {each[place] for each in before if place < len(each)}
        if names and name not in names:
            return f"argument {place + 1} is `{name}`; {by} passes `{min(names)}` there"
    return ""


@cache
def _places(parameters: str) -> list[str]:
    taking = signature(parameters).parameters.values()
    return [each.name if each.kind in _BY_POSITION else "*" for each in taking if _is_positional(each)]


def _is_positional(parameter: Parameter) -> bool:
    return parameter.kind in _BY_POSITION or parameter.kind is Parameter.VAR_POSITIONAL


def _returned(now: Collection[str], known: Collection[str], by: str) -> Iterator[str]:
    new = sorted({*now} - {*known})
    if new:
        yield f"returns {' or '.join(new)}; {by} takes {' or '.join(sorted(known)) or 'nothing'}"
    elif now and {*now} == {"nothing"} != {*known}:
        yield f"returns nothing; {by} takes {' or '.join(sorted(known))}"


def _outgrown(call: Call, interface: Interface, by: str) -> Iterator[str]:
    """Yield what a method takes that the one which overrides it does not."""
    if str(interface) in call.interfaces:
        return
    kinds = sorted({parse_interface(text).kind for text in call.interfaces})
    if interface.kind not in kinds:
        yield f"is a {interface.kind} now, and {by} overrides a {kinds[0]}"
        return
    (given,) = call.given
    mine, theirs = signature(given), signature(interface.parameters)
    for cause in _not_accepted(mine, theirs):
        yield f"{cause} of {by}, which overrides it"


def _not_accepted(mine: Signature, theirs: Signature) -> Iterator[str]:
    open_kinds = {each.kind for each in mine.parameters.values()} & {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    places = [each.name for each in mine.parameters.values() if each.kind in _BY_POSITION]
    for place, each in enumerate(theirs.parameters.values()):
        if each.kind in _BY_POSITION and place < len(places) and places[place] != each.name:
            yield f"argument {place + 1} is `{each.name}`, and `{places[place]}` in the method"
        elif each.name not in mine.parameters and not {each.kind, Parameter.VAR_KEYWORD} & open_kinds:
            yield f"takes `{each.name}`, which is no parameter of the method"
    for name, each in mine.parameters.items():
        if _is_required(each) and name not in theirs.parameters:
            yield f"takes no `{name}`, which the method requires"


def _notes(taken: Taken, lookup: Lookup) -> Iterator[str]:
    """Yield the callees whose bodies are new."""
    for key, call in taken.calls.items():
        known = {digest for bodies in call.interfaces.values() for digest in bodies}
        for each in found(key, call, lookup) if known else ():
            if lookup.digest(each) not in {*known, ""}:
                yield f"`{each.name}` of {each.file}, which it calls, is not one that the overlay was proved with"

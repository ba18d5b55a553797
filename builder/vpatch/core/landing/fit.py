"""Check that what an overlay's code takes from vLLM still fits: calls bind, results have their shape, names are there.

It compares with the list of `vpatch.core.calls`, and infers nothing: what the code takes, and where it was found, was
recorded on releases that prove it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from inspect import Parameter, Signature
from typing import TypeAlias

from vpatch.core.calls import Call, Calls, Taken, inserted_by, module_files
from vpatch.core.landing.interfaces import Interface, arguments, parse_interface, signature
from vpatch.core.landing.lookup import Defined, Lookup
from vpatch.core.overlay import Edit
from vpatch.core.verdict import UNPROVED, UNRECORDED, EditFinding
from vpatch.core.workspace import Workspace
from vpatch.errors import Problem, nearest

Findings: TypeAlias = Sequence[tuple[Edit, EditFinding]]
Rules: TypeAlias = Callable[[Call, Interface, str], Iterator[str]]
Compared: TypeAlias = tuple[Sequence[Problem], Sequence[str]]
"""What does not fit, and notes."""
Compare: TypeAlias = Callable[[Lookup], Compared]

_BY_POSITION = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}


def fit(calls: Calls | None, parts: Mapping[str, tuple[str, Findings]], files: Workspace) -> Mapping[str, Compared]:
    """Check what the code of an overlay takes from vLLM.

    Args:
        calls: the overlay's list; None without one.
        parts: by name, the applied parts, each with the name of its shape and the findings of its edits.
        files: the tree after the edits.

    Returns:
        What was found, by part.
    """
    if calls is None:
        return dict.fromkeys(parts, ([], [f"{UNRECORDED} its code takes from vLLM, so that was not checked"]))
    lookup = Lookup(files)
    compared: dict[str, Compared] = {}  # parts share companions
    found: dict[str, Compared] = {}
    for part, (shape, findings) in parts.items():
        added = [edit.file for edit, finding in findings if finding.adds]
        keys = dict.fromkeys((inserted_by(part, shape), *added))
        for key in keys.keys() - compared.keys():
            compared[key] = _compared(key, calls, lookup)
        problems = dict.fromkeys(problem for key in keys for problem in compared[key][0])
        found[part] = [*problems], list(dict.fromkeys(note for key in keys for note in compared[key][1]))
    return found


def _compared(key: str, calls: Calls, lookup: Lookup) -> Compared:
    """Compare what one piece of code takes."""
    if (code := calls.code.get(key)) is None:
        return [], [f"{UNRECORDED} {key} takes from vLLM, so that was not checked"]
    by = key.rpartition("/")[2] if key.startswith("vllm/") else "the new code"
    questioned = [compare for taken, compare in questions(code, by) if not calls.proved(taken, lookup.files.digest)]
    answers = [compare(lookup) for compare in questioned]
    return [one for problems, _ in answers for one in problems], [one for _, notes in answers for one in notes]


def questions(code: Taken, by: str) -> Iterator[tuple[str, Compare]]:
    """Yield what a piece of code takes, a place or an import, each with the function that compares it with a tree."""
    for place, call in code.calls.items():
        yield place, partial(_definition, place, call, by, misfits)
    for place, call in code.overrides.items():
        yield place, partial(_definition, place, call, by, _outgrown)
    for place, attributes in code.reads.items():
        yield place, partial(_attributes, place, attributes, by)
    for path in code.imports:
        yield path, partial(_import, path, by)


def _attributes(owner: str, attributes: Sequence[str], by: str, lookup: Lookup) -> Compared:
    file, _, name = owner.partition(" ")
    return [_drifted(file, name, f"sets no `{each}`, which {by} reads") for each in lookup.unset(owner, attributes)], []


def _import(path: str, by: str, lookup: Lookup) -> Compared:
    module, _, name = path.rpartition(".")
    if lookup.defines(module, name):
        return [], []
    return [_drifted(module_files(module)[0], "", f"defines no `{name}`, which {by} imports")], []


def _drifted(file: str, name: str, cause: str) -> Problem:
    return Problem("drifted", file, cause, name)


def _definition(place: str, call: Call, by: str, rules: Rules, lookup: Lookup) -> Compared:
    definitions = found(place, call, lookup)
    file, _, name = place.partition(" ")
    if not definitions and not call.optional:
        return [_drifted(file, name, f"is gone, and {by} calls it{_near(file, name, lookup)}")], []
    known = {digest for bodies in call.interfaces.values() for digest in bodies}
    problems, notes = list[Problem](), list[str]()
    for each in definitions:
        interface = lookup.interface(each)
        causes = rules(call, interface, by) if interface else ()
        problems += [_drifted(each.file, each.name, f"line {each.stmt.lineno}: {cause}") for cause in causes]
        if known and lookup.digest(each) not in {*known, ""}:
            notes.append(f"`{each.name}` of {each.file}, which it calls, {UNPROVED}")
    return problems, notes


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

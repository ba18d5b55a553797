"""Mutants of what overlays call in vLLM: each must be refused, or do no harm.

    python -m tests.overlays.called > docs/call-mutants.md

Each mutant changes one definition that `_calls/` lists: its parameters, its kind, what it returns, a field, a name.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from textwrap import indent

from vpatch.core.calls import Call, Calls
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine, Read
from vpatch.core.landing.fit import found
from vpatch.core.landing.interfaces import parse_interface, signature
from vpatch.core.landing.lookup import Defined, Lookup
from vpatch.core.overlay import COMPANIONS, Catalogued
from vpatch.core.verdict import State
from vpatch.core.workspace import Workspace
from vpatch.tree.locate import Tree, locate

from tests.overlays.call_changes import OF_CLASSES, OF_FUNCTIONS, Function
from tests.releases import tree_of

RELEASES = ("0.20.2", "0.26.0", "0.33.0")


@dataclass(frozen=True)
class Mutant:
    """One change of one definition that an overlay's code uses.

    Attributes:
        overlay: the overlay's id.
        release: the release that is changed.
        kind: what is changed.
        place: the definition, by file and name.
        detail: the parameter, field or attribute.
        file: the changed module.
        text: its new source.
        harmless: why the code is right all the same; "" if it is not.
    """

    overlay: str
    release: str
    kind: str
    place: str
    detail: str
    file: str
    text: str
    harmless: str = ""

    def __str__(self) -> str:
        return f"{self.release} {self.overlay} {self.kind} {self.place} {self.detail}".strip()


def mutants(release: str, item: Catalogued) -> Iterator[Mutant]:
    """Yield all mutants of a release for an overlay, which is pending there."""
    tree = locate(tree_of(release))
    lookup = Lookup(Workspace(tree.read))
    applied = _applied(item, release)
    seen = set()
    for taken in (taken for key, taken in item.calls.code.items() if key in applied) if item.calls else ():
        # vLLM calls a method that overrides one by the header of that one, by position or by name.
        overridden = {place.rpartition(".")[2] for place in taken.overrides}
        for place, call in taken.calls.items():
            for one in found(place, call, lookup):
                for mutant in _of_callee(release, item.id, place, call, one, lookup):
                    if str(mutant) not in seen:
                        seen.add(str(mutant))
                        yield replace(mutant, harmless="") if place.rpartition(".")[2] in overridden else mutant
        for place, attributes in taken.reads.items():
            for attribute in attributes:
                yield from _renamed_attribute(release, item.id, place, attribute, lookup)


def _applied(item: Catalogued, release: str) -> set[str]:
    """Return the keys of the code that an overlay has on a release."""
    return _keys(Engine([item]), locate(tree_of(release)).read)


def _keys(engine: Engine, read: Read) -> set[str]:
    _, landed = engine.landed(read)
    keys = {f"{part} {shape}" for _, part, shape in landed}
    return keys | {
        edit.file for findings in landed.values() for edit, _ in findings if edit.file.startswith(COMPANIONS)
    }


def _of_callee(release: str, overlay: str, place: str, call: Call, one: Defined, lookup: Lookup) -> Iterator[Mutant]:
    if not isinstance(one.stmt, Function | ast.ClassDef):
        return
    source = (lookup.files.read(one.file) or b"").decode()
    kinds = OF_CLASSES if isinstance(one.stmt, ast.ClassDef) else OF_FUNCTIONS
    for kind, change in kinds.items():
        for detail, new, harmless in change(one.stmt, call):  # type: ignore[arg-type]
            text = _with(source, one.stmt, new)
            if text != source:
                yield Mutant(overlay, release, kind, place, detail, one.file, text, harmless)


def _with(source: str, old: ast.stmt, new: ast.stmt | None) -> str:
    """Return a module with one definition replaced, or removed."""
    lines = source.split("\n")
    first = min([old.lineno, *(each.lineno for each in getattr(old, "decorator_list", ()))]) - 1
    text = ast.unparse(new) if new is not None else "pass"
    lines[first : old.end_lineno] = indent(text, " " * old.col_offset).split("\n")
    return "\n".join(lines)


def _renamed_attribute(release: str, overlay: str, place: str, attribute: str, lookup: Lookup) -> Iterator[Mutant]:
    """Rename an attribute wherever the module of its class sets or declares it, and all reads of it there."""
    for each in lookup.find(place):
        source = (lookup.files.read(each.file) or b"").decode()
        new = re.sub(
            rf"(\bself\.|^ {{4}}(?:def )?){attribute}\b", rf"\1{attribute}_renamed", source, flags=re.MULTILINE
        )
        sets = re.search(rf"\bself\.{attribute}\s*[:=][^=]|^ {{4}}{attribute}\s*[:=]", source, re.MULTILINE)
        if isinstance(each.stmt, ast.ClassDef) and sets:
            yield Mutant(overlay, release, "attribute-renamed", place, attribute, each.file, new)


def by_position(item: Catalogued) -> Catalogued:
    """Return an overlay whose list says that its code passes arguments by position, where it can."""
    if item.calls is None:
        return item
    code = {
        key: replace(taken, calls={place: _positional(call) for place, call in taken.calls.items()})
        for key, taken in item.calls.code.items()
    }
    return replace(item, calls=replace(item.calls, code=code))


def _positional(call: Call) -> Call:
    """Turn the first named arguments of a call into positional ones, as far as all interfaces have one order."""
    headers = [list(signature(parse_interface(text).parameters).parameters.values()) for text in call.interfaces]
    places = [names.pop() for each in zip(*headers, strict=False) if len(names := {p.name for p in each}) == 1]
    by_place = {
        parameter.name for each in headers for parameter in each if parameter.kind == parameter.POSITIONAL_OR_KEYWORD
    }
    given = []
    for text in call.given:
        node = ast.parse(f"f{text}", mode="eval").body
        assert isinstance(node, ast.Call)
        named = {each.arg: each for each in node.keywords}
        for name in places[len(node.args) :]:
            if name not in named or name not in by_place or any(isinstance(each, ast.Starred) for each in node.args):
                break
            node.args.append(ast.Name("_"))
            node.keywords.remove(named[name])
        given.append(ast.unparse(node)[1:])
    return replace(call, given=tuple(given))


@dataclass(frozen=True)
class Outcome:
    """The states of an overlay on a mutant, without its list and with it."""

    mutant: Mutant
    before: State
    after: State
    why: str

    @property
    def wrong(self) -> bool:
        """Whether the overlay is applied, though its code is wrong there."""
        return self.after is State.PENDING and not self.mutant.harmless


def judged(mutants: Sequence[Mutant], calls: Calls | None) -> list[Outcome]:
    """Judge mutants by the overlay that they concern, without its list and with `calls`."""
    (item,) = select(discover(), {mutant.overlay for mutant in mutants})
    engines = [Engine([replace(item, calls=each)]) for each in (None, calls)]
    found = []
    for mutant in mutants:
        tree = locate(tree_of(mutant.release))

        def read(file: str, mutant: Mutant = mutant, tree: Tree = tree) -> bytes | None:
            return mutant.text.encode() if file == mutant.file else tree.read(file)

        before, after = (engine.status(read)[0] for engine in engines)
        if after.state is State.PENDING and not mutant.harmless:
            mutant = replace(mutant, harmless=_unreached(mutant, engines[1], read, tree.read))  # noqa: PLW2901
        found.append(Outcome(mutant, before.state, after.state, after.because))
    return found


def _unreached(mutant: Mutant, engine: Engine, read: Read, original: Read) -> str:
    """Return why the code that was inserted does not reach what the mutant changed; "" if it does."""
    if _keys(engine, read) != _keys(engine, original):
        return "another layout of the overlay fits, whose call is right"
    patched, known = (engine.plan(each).files.get(mutant.file) for each in (read, original))
    return "the overlay replaces it" if patched and patched == known else ""


HEADER = """# Mutants of what overlays call

Does vpatch notice a change of a function that an overlay's code calls? In each mutant of vLLM, one definition is other
than in the list of what the overlay takes (`_calls/` beside the overlays): its parameters, its kind, what it returns, a
field, or a name.

*Before* is without the lists. With a *harmless* mutant the code is right all the same: it passes the arguments that
change places by name, ignores the result, or replaces the function, or another layout of the overlay fits. The others
must be refused; those that are not are below the table.

No static check sees that a function returns another value of the same shape (`returns-other-value`, or a pair in place
of a pair): `vpatch status -v` has a note for each callee whose body is new. A method that a subclass overrides is
checked in the class that the code knows. Of a function that each platform has for itself, one may be gone unseen; so
may an attribute that a base class sets, too. To count again:

    {command}
"""


def main() -> None:
    """Draw mutants, judge them without and with the lists, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="*", default=RELEASES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=600)
    options = parser.parse_args()
    print(HEADER.format(command=" ".join(["python -m tests.overlays.called", *sys.argv[1:]])))
    print("## As the code calls\n")
    count(options.seed, options.count, options.releases, discover())
    print("\n## As if it passed its arguments by position\n")
    count(options.seed, options.count // 2, options.releases, tuple(map(by_position, discover())))


def count(seed: int, number: int, releases: Sequence[str], overlays: Sequence[Catalogued]) -> None:
    """Draw mutants, judge them, and print a table by kind, and each that is applied though it does harm."""
    pending = [
        (release, item)
        for release in releases
        for item in overlays
        if Engine([item]).status(locate(tree_of(release)).read)[0].state is State.PENDING
    ]
    every = [mutant for release, item in pending for mutant in mutants(release, item)]
    drawn = random.Random(seed).sample(every, min(number, len(every)))  # noqa: S311 - no secret
    by_overlay: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in sorted(drawn, key=str):
        by_overlay[mutant.overlay].append(mutant)
    items = {item.id: item for item in overlays}
    with ProcessPoolExecutor() as pool:
        jobs = [
            pool.submit(judged, chunk, items[name].calls)
            for name, found in by_overlay.items()
            for chunk in _chunks(found)
        ]
        print_table([outcome for job in jobs for outcome in job.result()])
    print(f"\nSeed {seed}: {len(drawn)} of {len(every)} mutants, vLLM {', '.join(releases)}.")


def _chunks(found: list[Mutant]) -> Iterator[list[Mutant]]:
    yield from (found[start : start + 10] for start in range(0, len(found), 10))


def print_table(outcomes: Sequence[Outcome]) -> None:
    """Print a table by kind, and each mutant that is applied though it does harm."""
    kinds: dict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        kinds[one.mutant.kind].append(one)
    titles = ("mutation", "mutants", "harmless", "refused before", "refused now", "applied wrongly")
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for kind, of_kind in [*sorted(kinds.items()), ("all", outcomes)]:
        numbers = (
            len(of_kind),
            sum(bool(one.mutant.harmless) for one in of_kind),
            sum(one.before is not State.PENDING for one in of_kind),
            sum(one.after is not State.PENDING for one in of_kind),
            sum(one.wrong for one in of_kind),
        )
        print(f"| {kind} | {' | '.join(map(str, numbers))} |")
    print()
    for one in outcomes:
        if one.wrong:
            print(f"- applied wrongly: {one.mutant}")
        if one.after is not State.PENDING and one.before is State.PENDING and one.mutant.harmless:
            print(f"- refused, though {one.mutant.harmless}: {one.mutant}: {one.why}")


if __name__ == "__main__":
    main()

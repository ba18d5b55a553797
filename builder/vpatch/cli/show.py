"""The command show: one overlay in full, with what each part of it changes in one vLLM."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from vpatch import api
from vpatch.cli.options import (
    PathType,
    complete_overlay,
    examples,
    introduce_project,
    project,
    reported,
    source_words,
    verbose_option,
    with_project,
)
from vpatch.cli.output import Report, fitted
from vpatch.cli.overlays import log_lines, summary, title
from vpatch.cli.target import Target, is_here
from vpatch.cli.wording import Line, command, counted, diff_line, listed, table
from vpatch.core.catalogue import Selection, discover, has_mark, select
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued, declared
from vpatch.core.verdict import PartChange, State, Verdict
from vpatch.errors import Failure
from vpatch.installation import before_fetching
from vpatch.tree.locate import Reads, Tree
from vpatch.tree.unified import headed, unified


@dataclass(frozen=True)
class Shown:
    """What the parts of an overlay change in one vLLM.

    `tree` is its folder, None for a release on the index. `marked`: it has marks of the overlay.
    """

    vllm: str | None
    parts: tuple[PartChange, ...]
    tree: str | None = None
    marked: bool = False

    @property
    def state(self) -> State:
        """The state of the overlay."""
        return Verdict("", tuple(part.verdict for part in self.parts)).state


@dataclass(frozen=True, kw_only=True)
class ShowReport(Report):
    """An overlay, and what it changes; None if no vLLM was found."""

    item: Catalogued
    found: Shown | None
    verbose: bool

    def fields(self) -> Mapping[str, Any]:
        """Return the vLLM, and the overlay with its parts."""
        changes = self.found.parts if self.found else ()
        made = {one.verdict.name: one for one in changes}
        links = _links(self.item)
        about = {"why": self.item.why, "links": links, "releases": dict(self.item.overlay.releases)}
        parts = [
            {
                "name": part.name,
                "shapes": [{"name": s.name, "files": sorted(s.files)} for s in part.shapes],
                "state": made[part.name].verdict.state if made else None,
                "because": made[part.name].verdict.because if made else None,
                "changes": list(map(_as_object, diffs(made[part.name]).items())) if made else [],
            }
            for part in self.item.overlay.parts
        ]
        where = {"tree": self.found.tree, "vllm": self.found.vllm} if self.found else {}
        return {**where, "overlays": [summary(self.item) | about | {"parts": parts}]}

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield the explanation, and the changes or, without a vLLM, the files of each part."""
        item = self.item
        why = item.why.split("\n")
        if width is not None:  # one line a paragraph or bullet, so that it fits any width
            why = [" ".join(block.split()) for block in re.split(r"\n(?=\n|[-*] |\d+\. )|(?<=\n)\n", item.why)]
        releases = (f"vLLM {releases}: {what}" for releases, what in item.overlay.releases.items())
        lines = [
            title(item),
            f"From {item.origin}{f' (sha256:{item.sha256})' if item.sha256 else ''}.",
            *_section("You see", item.overlay.symptoms),
            *_section("A log has", log_lines(item)),
            *_section("Why", why if item.why else ()),
            *_section("Releases", releases),
            *_section("Upstream", _links(item)),
            *([] if self.found else _section("Changes", _files(item))),
        ]
        yield from fitted(lines, width)
        if self.found:
            vllm = f"vLLM {self.found.vllm}" if self.found.vllm else "this vLLM"
            yield from (Line(""), Line(f"Changes in {vllm}"))
            yield from _changes(self.found.parts, width, verbose=self.verbose)


def _section(title: str, lines: Iterable[str]) -> list[str]:
    """Return an empty line, the title and the indented lines; nothing if there are no lines."""
    body = [f"  {line}" if line else "" for line in lines]
    return ["", title, *body] if body else []


def _links(item: Catalogued) -> list[str]:
    return [f"https://github.com/{link.replace('#', '/pull/')}" for link in item.overlay.upstream]


def _files(item: Catalogued) -> Iterator[str]:
    for part in item.overlay.parts:
        names: dict[str, list[str]] = {}
        for shape in reversed(part.shapes):  # the oldest first
            names.setdefault(", ".join(sorted(shape.files)), []).append(shape.name)
        for files, (first, *others) in names.items():
            more = f", in other forms from {listed(others)}" if others else ""
            yield f"{part.name}, from vLLM {first}{more}: {files}"


def diffs(part: PartChange) -> dict[str, list[str]]:
    """Return the diff of each file that a part changes or adds, as lines."""
    return {
        file: headed(unified(file, old, new), old, new) if old and file.endswith(".py") else unified(file, old, new)
        for file, (old, new) in part.files.items()
    }


def added(part: PartChange) -> dict[str, str]:
    """Return the files that a part adds, each with its number of lines in words."""
    added = {file: new for file, (old, new) in part.files.items() if old is None}
    return {file: counted(len(new.splitlines()), "line") for file, new in added.items()}


def _as_object(pair: tuple[str, list[str]]) -> dict[str, str]:
    return {"file": pair[0], "diff": "".join(f"{line}\n" for line in pair[1])}


def _changes(parts: Iterable[PartChange], width: int | None, *, verbose: bool) -> Iterator[Line]:
    """Yield the state of each part with its diff; `verbose`: also the modules that it adds, each once."""
    printed = set[str]()
    for part in parts:
        yield Line("")
        yield from table([(f"  {part.verdict.name}", part.verdict.state, part.verdict.because)], width)
        made, new = diffs(part), added(part)
        for file in (file for file in made if file not in new):
            yield from map(diff_line, made[file])
        for file, size in new.items():
            yield from fitted([f"  adds {file}, {size}"], width)
            yield from map(diff_line, made[file] if verbose and file not in printed else ())
            printed.add(file)


@click.command(
    "show", epilog=examples("show turboquant-hybrid", "show turboquant-hybrid .venv", "show receipt --vllm 0.33.0 -v")
)
@click.argument("overlay", shell_complete=complete_overlay)
@reported
@click.argument("tree", metavar="[TREE]", required=False, type=PathType())
@click.option("--python", type=PathType(), metavar="PY", help="The vLLM that this interpreter imports.")
@click.option("--vllm", "release", metavar="V", help="This release, read from the package index.")
@with_project
@verbose_option("Also print the modules that the overlay adds.")
def show_command(overlay: str, tree: Path | None, python: Path | None, release: str | None, *, verbose: bool) -> Report:
    """Explain one overlay, and show what each part of it changes.

    A part's diff is against the unmodified code, also where the overlay is applied already. It is of TREE, or of a
    release. Writes nothing.
    """
    if sum(place is not None for place in (tree, python, release)) > 1:
        raise click.UsageError("TREE, --python and --vllm each name a vLLM: leave out all but one")
    (item,) = select(discover(), (overlay,))
    target = Target(tree, python, Selection(()), verbose, (), source_words(), project().file)
    if release is not None:
        introduce_project()
        found, notes = _of_release(release, item)
        return ShowReport(item=item, found=found, verbose=verbose, notes=notes, outcome=_outcome(item, found, target))
    try:
        place = target.find()
    except Failure:
        if tree or python:
            raise
        return ShowReport(item=item, found=None, verbose=verbose, outcome=_outcome(item, None, target))
    found, notes = _of_tree(place, item)
    return ShowReport(item=item, found=found, verbose=verbose, notes=notes, outcome=_outcome(item, found, target))


def _of_release(version: str, item: Catalogued) -> tuple[Shown, list[str]]:
    """Compute the changes in a release, with notes on where it was read."""
    from vpatch.cli.releases import shortened
    from vpatch.matrix.reading import ReleaseReads

    engine = Engine([item])
    reads = ReleaseReads.opened(version, engine.files)
    parts = engine.parts(reads.read, item)
    return Shown(reads.release.name, parts), [*shortened([version]), *reads.notes]


def _of_tree(tree: Tree, item: Catalogued) -> tuple[Shown, list[str]]:
    """Compute the changes in a tree, with a note if the unmodified code of what is applied is not known."""
    read, originals = Reads(tree).read, dict[str, bytes | None]()
    if marked := has_mark(item, read):
        with suppress(Failure):  # `verify` reports it
            originals |= api.open_tree(tree).originals
    parts = Engine([item]).parts(read, item, originals)
    lost = [one.verdict.name for one in parts if one.verdict.state is State.APPLIED and not one.files]
    note = f"vpatch has no original of the code that {', '.join(lost)} changed, so there is no diff of it"
    return Shown(tree.version, parts, str(tree.root), marked), [note] if lost else []


def _newest_pending(item: Catalogued) -> str:
    """Return the newest release in which an overlay is pending by its own table; the newest of all without a table."""
    from vpatch.plan.deployment import RELEASES

    table = tuple(item.overlay.releases.items())
    pending = (one for one in RELEASES if declared(table, str(one))[0] is State.PENDING)
    return str(max(pending, default=RELEASES[-1]))


def _outcome(item: Catalogued, found: Shown | None, target: Target) -> str:
    """Return what to do next."""
    option = "--with" if item.overlay.opt_in else "--overlay"
    if found is None:
        release = command("show", item.id, "--vllm", _newest_pending(item))
        return f"No vLLM is here: {release} shows the changes in a release{before_fetching()}."
    vllm = "this vLLM" if found.tree else f"vLLM {found.vllm}"
    match found.state:
        case State.PENDING if found.vllm and not (found.tree or is_here()):
            sources = replace(target, path=Path(f"vllm-{found.vllm}"))
            fetch, apply = command("fetch", found.vllm, sources.path), sources.command("apply", option, item.id)
            return f"It fits {vllm}. To apply it to its sources: {fetch}, then {apply}."
        case State.PENDING:
            return f"Apply it with {target.command('apply', option, item.id)}."
        case State.APPLIED:
            return f"It is applied. Undo it with {target.command('revert', '--overlay', item.id)}."
        case State.MERGED | State.NOT_APPLICABLE:
            return f"It has nothing to change in {vllm}."
        case _ if found.marked:
            return f"Its code in {vllm} is not what this version makes: see the parts above."
        case _:
            return f"It does not fit {vllm}."

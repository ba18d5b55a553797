"""The vLLM and the overlays that a command was called for."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from vpatch.cli.options import (
    PathType,
    known_overlays,
    overlay_option,
    project,
    retyped,
    selected,
    source_words,
    with_option,
    with_project,
    without_option,
)
from vpatch.cli.output import Report, frame
from vpatch.cli.wording import MODEL, command, listed, options
from vpatch.core.catalogue import Selection, discover
from vpatch.errors import Failure, UnknownName, nearest
from vpatch.installation import before_fetching
from vpatch.project import opened
from vpatch.tree import sites
from vpatch.tree.copies import known_in
from vpatch.tree.environment import Located, current, imported, named
from vpatch.tree.interpreter import interpreter
from vpatch.tree.locate import Tree, is_checkout
from vpatch.wrapping import from_here


@dataclass(frozen=True)
class Target:
    """What the arguments and options of a command name.

    Attributes:
        path: TREE.
        python: `--python`.
        selection: the overlays; `only=()` of a command that takes none.
        verbose: whether the user wants parts, reasons and files.
        typed: the options that select overlays, as the user typed them.
        sources: the options that say where overlays come from.
        project: the project's file; "" without one.
    """

    path: Path | None
    python: Path | None
    selection: Selection
    verbose: bool
    typed: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    project: str = ""

    def find(self) -> Tree:
        """Find the vLLM, and print which one it is; raises what `locate` raises."""
        return self.locate().tree

    def locate(self, *, imports: bool = False) -> Located:
        """Find the vLLM and how it was found, and print which one it is.

        Args:
            imports: whether the command has to import from this vLLM's environment.

        Raises:
            UnknownName: there is no such overlay, folder or interpreter.
            Failure: there is no vLLM.
        """
        installed = discover() if self.selection.named or self.selection.without else ()
        try:
            found = self._found()
        except Failure:
            self.selection.among(installed)  # a misspelt overlay is reported in place of what was searched for it
            raise
        if installed:
            self.selection.among(known_in(found.tree, found.tree.read, installed))
        asked = found.environment
        found = found.importing() if imports else found
        frame(self._introduced(found, runs=found.environment != asked))
        return found

    def _found(self) -> Located:
        if self.path is not None:
            return self._at(self.path)
        return current() if self.python is None else imported(self.python)

    def _at(self, path: Path) -> Located:
        """Find the vLLM at a path. A failure names the overlays that the user may have meant."""
        python = interpreter(self.python) if self.python else None
        try:
            return named(path, python)
        except UnknownName as error:
            (problem,) = error.problems
            if re.fullmatch(r"v?\d+\.\d[\w.]*", str(path)):
                do = f"{command('matrix', '--vllm', path)}, or on its sources, {command('fetch', path, f'vllm-{path}')}"
                raise UnknownName(replace(problem, hint=f"for a release: {do}")) from error
            ids = [item.id for item in discover()]
            if self.selection.only == () or not (meant := nearest(str(path), ids)):
                raise
            option = "--with" if "--with" in self.typed else "--overlay"
            again = " or ".join(retyped(dict.fromkeys((str(path), f"{path}/"), (option, one))) for one in meant)
            what = "an overlay, not a folder" if str(path) in ids else problem.cause
            raise UnknownName(replace(problem, cause=what, hint=f"to name an overlay: {again}")) from error

    def command(self, name: str, *arguments: str) -> str:
        """Return another command for the same vLLM, to copy; `revert` and `capture` find what is applied in TREE."""
        words = (*(() if name in {"revert", "capture"} else self.sources), *arguments)
        if self.path:
            return command(name, *words, self.path)
        return command(name, *words, *(("--python", self.python) if self.python else ()))

    def again(self, name: str, *arguments: str) -> str:
        """Return another command for the same vLLM and the same selection, to copy."""
        return self.command(name, *self.typed, *arguments)

    def instead(self) -> str:
        """Return the command that runs vLLM with the same selection, and writes nothing to its files, to copy."""
        pairs = zip(self.typed[::2], self.typed[1::2], strict=True)
        words = [word for pair in pairs if pair[1] != "receipt" for word in pair]  # a farm has one of its own
        python = self.python or (self.path and sites.program_of(self.path))
        program = python.with_name("vllm") if python else Path("vllm")
        return command("run", *self.sources, *words, "--", program, "serve", MODEL)

    def _introduced(self, found: Located, *, runs: bool) -> str:
        kind = "source checkout" if is_checkout(found.tree) else "of unknown version"
        line = f"vLLM {found.tree.version or kind} in {from_here(found.tree.root)}"
        others = ", ".join(f"{other.name} has another: --python {other.shown}" for other in found.others)
        ran = f"runs {found.environment.shown}" if found.environment and runs else ""
        about = [*found.passed_over, *filter(None, [others, ran])]
        named = [f"project: {self.project}"] if self.project else []
        told = [*named, *filter(None, [found.how, *about] if about else [])]
        return f"{line} ({'; '.join(told)})" if told else line


def next_steps(place: Path, ids: Iterable[str], named: str | None) -> str:
    """Return what to do with patch files of these ids in a folder, as commands to copy.

    Where no vLLM is, `apply` takes what the user `named` for them, if that is a folder and no release.
    """
    tree = "" if is_here() else named if named and Path(named).is_dir() else None
    apply = "" if tree is None else command("apply", *adding(ids), "--patches", place, *filter(None, [tree])) + ", "
    return apply + command("matrix", "--patches", place) + before_fetching()


def adding(ids: Iterable[str]) -> list[str]:
    """Return the options that select overlays of patch files here, also where the project's file selects others."""
    usual = Selection()
    with suppress(Failure):  # the command itself reports what is wrong with the project's file
        usual = opened(()).selection
    return options("--with", (one for one in ids if not usual.selects(one)))


def is_here() -> bool:
    """Whether a command that names no vLLM finds one."""
    with suppress(Failure):
        return bool(current())
    return False


def _one(context: click.Context, _parameter: click.Parameter, places: tuple[Path, ...]) -> Path | None:
    """Return TREE, if it is given. Overlays are often typed there, as other programs take what they work on."""
    if len(places) > 1:
        words = [str(place) for place in places]
        overlays = {word: ("--overlay", word) for word in words if word in known_overlays(context)}
        hint = f"; to name an overlay: {retyped(overlays)}" if overlays else ""
        raise click.UsageError(f"TREE is one place, not {listed(words)}{hint}")
    return places[0] if places else None


def on_tree(*, also: bool = True, both: bool = False) -> Callable[[Callable[..., Report]], Callable[..., Report]]:
    """Add TREE and the options that commands on a tree share; the command gets a `Target` as its first argument.

    Args:
        also: whether `--with` and `--without` are among the options.
        both: whether TREE and `--python` may be given together.
    """

    def decorate(function: Callable[..., Report]) -> Callable[..., Report]:
        @functools.wraps(function)
        def run(
            *,
            tree: Path | None,
            python: Path | None,
            ids: tuple[str, ...],
            more: tuple[str, ...] = (),
            fewer: tuple[str, ...] = (),
            receipt: bool = False,
            verbose: bool,
            **others: Any,
        ) -> Report:
            if tree and python and not both:
                raise click.UsageError("TREE and --python name two trees: leave one out")
            selection = selected(ids, more, fewer, receipt=receipt)
            added = (*more, "receipt") if receipt else more
            words = (("--overlay", (*ids, "receipt") if receipt else ids),) if ids else (("--with", added),)
            typed = tuple(word for pair in (*words, ("--without", fewer)) for word in options(*pair))
            about = (typed, source_words(), project().file)
            return function(Target(tree, python, selection, verbose, *about), **others)

        added = [
            click.argument("tree", nargs=-1, metavar="[TREE]", type=PathType(), callback=_one),
            click.option("--python", type=PathType(), metavar="PY", help="The vLLM that this interpreter imports."),
            overlay_option("each that is not opt-in, and each that is applied" if also else "each that is applied"),
            *([with_option, without_option] if also else []),
            with_project,
            click.option("-v", "--verbose", is_flag=True, help="Show parts, reasons and files."),
        ]
        for add in reversed(added):
            run = add(run)
        return run

    return decorate

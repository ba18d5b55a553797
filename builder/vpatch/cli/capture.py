"""The command capture: a patch file of what was done to an installed vLLM."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from packaging.version import InvalidVersion, Version

from vpatch.cli.options import (
    PathType,
    check_outfile,
    examples,
    force_option,
    name_option,
    refuse_dash,
    reported,
    write_outfile,
)
from vpatch.cli.output import Failed, Report, fitted
from vpatch.cli.porting import counted_files
from vpatch.cli.target import Target, adding
from vpatch.cli.wording import Line, command, listed, options, table
from vpatch.core.catalogue import Selection
from vpatch.core.patch_file import SUFFIX, PatchFile
from vpatch.errors import Failure, Problem, naming
from vpatch.porting.capture import Capture, capture
from vpatch.porting.captured import Captured, captured
from vpatch.porting.originals import FAILED, ByFolder, ByRecord, Originals, installed
from vpatch.tree import backup
from vpatch.tree.locate import Tree, is_checkout, locate

_REFUSED = "Nothing was written."
_PRISTINE = "name the folder that `vpatch fetch` wrote of that release with --pristine"
_SAID = {"unchanged": "the same program: comments, docstrings, layout, order, or imports that went"}


@dataclass(frozen=True, kw_only=True)
class CaptureReport(Report):
    """What was done to a vLLM, and the patch file that does it again; None if it was not made."""

    tree: Tree
    found: Capture
    made: Captured
    written: Path | None = None

    @property
    def modules(self) -> Mapping[str, Sequence[str]]:
        """The modules and data files, by what happened to them."""
        found, unchanged = self.found, self.made.unchanged
        changed = [one.path for one in found.changes if one.before is not None and one.path not in unchanged]
        return {"changed": changed, "added": found.added, "missing": found.missing, "unchanged": unchanged}

    def fields(self) -> Mapping[str, Any]:
        """Return the vLLM, the patch file, the modules and the data files."""
        about = {"tree": str(self.tree.root), "vllm": self.tree.version, "written": self.written and str(self.written)}
        return about | {name: [*paths] for name, paths in self.modules.items()}

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield a line for each module or data file, and the path of the patch file."""
        rows = sorted(
            (f"  {path}", name, _SAID.get(name, "")) for name, paths in self.modules.items() for path in paths
        )
        yield from table(rows, width)
        yield from fitted([str(self.written)] if self.written else [], width)


def _checked_subject(_context: click.Context, _parameter: click.Parameter, subject: str | None) -> str | None:
    if subject is not None and not (subject.strip() and subject.isprintable()):
        raise click.BadParameter("use one line of text")
    return subject and subject.strip()


@click.command(
    "capture",
    epilog=examples("capture", "capture --name our-fixes .venv", "capture --pristine vllm-0.20.2 .venv"),
)
@reported
@click.argument("tree", metavar="[TREE]", required=False, type=PathType())
@click.option("--python", type=PathType(), metavar="PY", help="The vLLM that this interpreter imports.")
@click.option(
    "--pristine",
    metavar="DIR",
    type=PathType(),
    help="The original vLLM, as `vpatch fetch` writes it. Default: RECORD and the package index.",
)
@click.option(
    "-o",
    "folder",
    metavar="DIR",
    default="patches",
    show_default=True,
    type=PathType(file_okay=False),
    help="Where to write.",
)
@name_option("Its id.", default="captured", show_default=True)
@click.option("--subject", metavar="TEXT", callback=_checked_subject, help="What it is for, in one line.")
@force_option
def capture_command(
    tree: Path | None,
    python: Path | None,
    pristine: Path | None,
    folder: Path,
    name: str,
    subject: str | None,
    *,
    force: bool,
) -> Report:
    """Make a patch file of what was done to an installed vLLM.

    It does not matter how it was done: by a script, by sed, by copying modules, or by hand. vpatch compares TREE with
    the hashes in RECORD, and reads the originals of the modules that changed from what it keeps beside TREE, else from
    the package index: these files alone. What vpatch applied to TREE is not captured again; edits on top of it are,
    except those of lines that an overlay inserted: vpatch says how to keep these, and writes nothing.

    RECORD knows nothing of changes that were made before the wheel was built, as in a fork. Compare with the release:
    `vpatch fetch V DIR` and --pristine DIR. It needs no network, either.

    vpatch writes DIR/NAME.vpatch only after a proof: on the originals, the patch file makes the same program. New
    modules are in it, too, and data files, such as JSON. A patch file cannot remove modules: if TREE lacks some, vpatch
    writes nothing and exits with 1. TREE itself does not change.
    """
    if tree and python:
        raise click.UsageError("TREE and --python name two trees: leave one out")
    target, file = Target(tree, python, Selection(()), verbose=False), folder / f"{name}{SUFFIX}"
    if folder.is_dir():
        check_outfile(file, force=force)
    place = target.find()
    original = None if pristine is None else locate(pristine)
    try:
        found, notes = _found(place, original, target)
        base = _base(place, original) if found.changes else ""
        head = {"Subject": subject or f"What was done to an installed vLLM {base}", "Base": base}
        made = captured(found, place, name, head)
    except Failure as failure:
        return Failed.of(failure, tree=str(place.root), outcome=_REFUSED)
    report = CaptureReport(tree=place, found=found, made=made, problems=made.problems, notes=[*notes, *made.notes])
    if made.problems:
        return replace(report, outcome=_REFUSED)
    if made.patch is None:
        done = "what changed is the same program" if found.changes else "every module is as it was installed"
        offer = "" if original else f"To compare with a release that RECORD does not list, as of a fork: {_PRISTINE}"
        return replace(report, offer=offer, outcome=f"Nothing to capture: {done}.")
    refuse_dash(folder)
    with naming("cannot write", str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    write_outfile(file, str(made.patch), force=force)
    next_ = _next(found, made, made.patch, target, file, base)
    return replace(report, written=file, outcome=f"Wrote {file}: {counted_files(made.patch)}. {next_}.")


def _next(found: Capture, made: Captured, patch: PatchFile, target: Target, file: Path, base: str) -> str:
    """Return how the patch file is applied in place of the edits that it was made of."""
    if not {change.path for change in patch.changes} <= {*found.undone}:
        new = adding([file.name.removesuffix(SUFFIX)])
        return f"Once vLLM {base} is reinstalled: {target.command('apply', *new, '--patches', str(file))}"
    names = [name for name in made.reverting if name not in made.without]
    revert = target.command("revert", "--force", *options("--overlay", made.reverting))
    theirs = [f"{item.id}{SUFFIX}" for item in found.beneath if item.patch is not None and item.id in names]
    beside = [name for name in theirs if (file.parent / name).exists()]
    others = [name for name in theirs if name not in beside]
    rest = f" (with --patches for {listed(others)}, too, if no project's file names that)" if others else ""
    chosen = options("--overlay", [*names, file.name.removesuffix(SUFFIX)])
    apply = target.command("apply", *chosen, "--patches", str(file.parent if beside else file))
    alone = f", without {listed(made.without)}" if made.without else ""
    without = " ".join(options("--without", made.without))
    later = f"; from then on, apply the others with {without}" if without else ""
    # Left to the reader: vpatch keeps a copy of the patch file, and not where it was read from.
    return f"To apply it in place of the edit{alone}: {revert}, then {apply}{rest}{later}"


def _found(tree: Tree, original: Tree | None, target: Target) -> tuple[Capture, list[str]]:
    """Find what was done to a vLLM, with notes; raises what `capture` raises."""
    notes: list[str] = []
    originals: Originals
    if is_checkout(tree):
        cause = "a source checkout, of which git knows what was done"
        raise Failure(Problem(FAILED, str(tree.root), cause, hint=f"`git -C {tree.root} diff`"))
    if original is not None:
        notes += _other_version(tree, original)
        originals = ByFolder(original)
    elif (rows := installed(tree)) is not None:
        originals = ByRecord(rows, lambda paths: _fetched(tree, paths, notes, target))
    else:
        hint = _PRISTINE
        raise Failure(Problem(FAILED, str(tree.root), "it has no RECORD, as an editable install", hint=hint))
    found = capture(tree, originals)
    why = "it changed, and is not captured: it is no text that a patch file can have, or its original is not at hand"
    left_out = (f"{path}: {why}" for path in found.data)
    return found, [*notes, *found.notes, *left_out]


def _other_version(tree: Tree, original: Tree) -> Iterator[str]:
    """Yield a note if two vLLMs have different versions; raises `Failure` if the second one is not as it was."""
    if backup.read(original).anything:
        cause = "not the original vLLM: vpatch changed it"
        raise Failure(Problem(FAILED, str(original.root), cause, hint="name a folder that `vpatch fetch` wrote"))
    one, other = ((place.version or "").partition("+")[0] for place in (tree, original))
    if one and other and one != other:
        yield f"{original.root} has vLLM {other}, and {tree.root} has {one}"


def _fetched(tree: Tree, paths: Collection[str], notes: list[str], target: Target) -> Mapping[str, bytes]:
    """Read files of the release that a tree is of: by its exact version, else without its local part."""
    from vpatch.matrix.reading import ReleaseReads

    version = tree.version or ""
    public = version.partition("+")[0]
    try:
        try:
            reads = ReleaseReads.opened(version, paths)
        except Failure:  # offline, a remembered index may lack it, too
            if public == version:
                raise
            reads = ReleaseReads.opened(public, paths)
            notes.append(f"the originals are those of vLLM {public}: {version} is not on the package index")
    except Failure as failure:
        first, *others = failure.problems
        folder = f"vllm-{public}"
        fetch, again = command("fetch", public, folder), target.command("capture", "--pristine", folder)
        hint = f"where there is a network, {fetch}; with that folder here, {again}"
        raise Failure(replace(first, hint=hint), *others) from failure
    notes += reads.notes
    return {path: data for path in paths if (data := reads.read(path)) is not None}


def _base(tree: Tree, original: Tree | None) -> str:
    version = (original and original.version) or tree.version or ""
    try:
        return Version(version).public
    except InvalidVersion as error:
        cause = f"its version, {version!r}, is not that of a release" if version else "its version is not known"
        hint = _PRISTINE
        raise Failure(Problem(FAILED, str(tree.root), cause, hint=hint)) from error

"""The command import: patch files of the changes that people already carry."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from vpatch.cli.options import (
    PathType,
    check_outfile,
    examples,
    force_option,
    name_option,
    refuse_dash,
    reported,
    unwinding,
    write_outfile,
)
from vpatch.cli.output import Report, fitted
from vpatch.cli.progress import bar
from vpatch.cli.spans import rows
from vpatch.cli.target import next_steps
from vpatch.cli.wording import Line, counted, table
from vpatch.core.catalogue import loaded
from vpatch.core.engine import Engine
from vpatch.core.patch_file import SUFFIX, PatchFile
from vpatch.core.verdict import Verdict
from vpatch.errors import Failure, Problem, collecting, naming, raise_all, raise_unknown
from vpatch.foreign import is_nothing
from vpatch.porting.added import imports
from vpatch.porting.bases import PatchBase, base_in, base_named, later, releases
from vpatch.porting.diffs import Carried
from vpatch.porting.importing import Imported, imported, of_module
from vpatch.project import opened
from vpatch.tree.environment import current
from vpatch.tree.locate import Tree, locate


@dataclass(frozen=True)
class WrittenPatch:
    """A patch file that was written, with its verdict in each vLLM at hand, by what to call that."""

    made: Imported
    path: Path
    states: Mapping[str, Verdict]


@dataclass(frozen=True, kw_only=True)
class ImportReport(Report):
    """The patch files that were written."""

    written: Sequence[WrittenPatch]

    def fields(self) -> Mapping[str, Any]:
        """Return the patch files, with their states."""
        patches = [
            {
                "id": one.made.id,
                "path": str(one.path),
                "base": one.made.base.version,
                "files": [change.path for change in one.made.patch.changes],
                "added": [change.path for change in one.made.patch.changes if change.new],
                "imports": [{"file": file, "statement": code} for file, code in imports(one.made.patch)],
                "remarks": [*one.made.remarks],
                "accepted": [*one.made.patch.accepted],
                "states": [
                    {"vllm": name, "state": found.state, "because": found.because} for name, found in one.states.items()
                ],
            }
            for one in self.written
        ]
        return {"patches": patches, "changed": [str(one.path) for one in self.written]}

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield each patch file with its base, the modules that it adds, what to know of it, and its states."""
        for one in self.written:
            yield from fitted([f"{one.path}  {_size(one.made.patch)}, for {one.made.base.version}"], width)
            yield from fitted([f"  {told}" for told in (*_added(one.made.patch), *one.made.remarks)], width)
            yield from fitted([f"  accepted on its base: {remark}" for remark in one.made.patch.accepted], width)
            yield from table([*rows(one.states)], width)


def _added(patch: PatchFile) -> Iterator[str]:
    """Yield the files and the imports that a patch file adds: what runs in vLLM beside the changed code."""
    for one in (one for one in patch.changes if one.is_whole):
        lines = sum(row.startswith("+") for row in one.text.split("\n"))
        yield f"{'adds' if one.new else 'replaces'} {one.path}, {counted(lines, 'line')}"
    yield from (f"adds `{statement}` to {file}" for file, statement in imports(patch))


def _size(patch: PatchFile) -> str:
    hunks = sum(1 if change.is_whole else change.text.count("@@") for change in patch.changes)
    return f"{counted(hunks, 'change')} in {counted_files(patch)}"


def counted_files(patch: PatchFile) -> str:
    """Return how many files a patch file changes, in words: modules, if there are no others."""
    kind = "file" if any(change.is_data for change in patch.changes) else "module"
    return counted(len(patch.changes), kind)


@click.command(
    "import",
    epilog=examples(
        "import fix.patch",
        "import patches/ --base 0.31.0",
        "import - < fix.diff",
        "import scheduler.py --as vllm/v1/core/sched/scheduler.py",
        "import --pr 51234",
        "import --git ~/vllm v0.31.0..my-branch --squash",
        "import --run 'python \"$OLDPWD/patch_vllm.py\"'",
        "import --base 0.31.0 --name timeouts --run 'sed -i s/30/60/ vllm/envs.py'",
    ),
)
@click.argument("sources", metavar="[SOURCE]...", nargs=-1)
@reported
@click.option("--base", "named", metavar="V", help="The vLLM that it is for: a release, or a folder with one.")
@click.option("--as", "module", metavar="PATH", help="SOURCE is a whole module, which vLLM has at this path.")
@click.option(
    "--pr",
    "pull",
    metavar="N",
    type=click.IntRange(1, 10**9),
    help="Fetch pull request N of vLLM. VPATCH_PULLS is another address in place of "
    "https://github.com/vllm-project/vllm/pull.",
)
@click.option(
    "--git",
    "repository",
    metavar="REPO",
    type=PathType(),
    help="SOURCE is a range of commits, A..B, of the repository in this folder.",
)
@click.option("--run", "script", metavar="COMMAND", help="EXECUTE this shell command in a copy of vLLM.")
@name_option("Its id. Default: after the source.")
@click.option("--squash", is_flag=True, help="Make one patch file of all patches, such as the commits of a branch.")
@click.option("--python-only", is_flag=True, help="Leave out what is no Python, if no Python of the patch needs it.")
@click.option(
    "-o", "folder", metavar="DIR", type=PathType(), default="patches", show_default=True, help="Where to write."
)
@force_option
def import_command(sources: tuple[str, ...], folder: Path, *, force: bool, **given: Any) -> Report:
    """Make patch files of diffs, mails, commits or a pull request.

    --as takes a module that you changed, and --run the changes that a patcher of your own makes.

    SOURCE is a unified diff, a mail of `git format-patch`, a folder of these (in the order of its `series`, if it has
    one), or - for standard input. Without --base, vpatch takes the version that the patch names, else the installed
    vLLM, or the newest release that all of its hunks fit with the fewest lines of offset.

    Of a whole module (--as), what a later release has, too, is upstream's and is left out. A data file in vLLM, such as
    JSON, stands in the patch file as a whole, with the hash of the content that it replaces.

    --pr makes one patch file of all commits of a pull request.

    --git makes a patch file of each commit of a line of history. Its base is the commit where B leaves A; no release
    is needed. The newest tag gives the version; --base V names another.

    --run EXECUTES the command, by `sh -c`, with your rights. Its current folder is a copy of the installed vLLM, or of
    that of --base: the modules, files of up to 1 MiB, and the dist-info, without native code. The copy is
    VLLM_SITE_PACKAGES, and first in PYTHONPATH. OLDPWD is your folder. A script with a fixed path would change the
    vLLM at that path.

    A patch file is written only if vpatch has proven on the base that it makes the same program as the patch, that a
    second run changes nothing, that the patch's own result is recognized as merged, and that revert restores each byte.
    """
    unwinding()
    asked = Asked(sources, **given)
    asked.check()
    made = _made(asked)
    if asked.name and len(made) > 1:
        raise click.UsageError(f"--name is for one patch file, not {len(made)}: --squash makes one of all")
    return _written([replace(one, id=asked.name or one.id) for one in made], folder, asked.named, force=force)


_NAME_IT = "name the vLLM that it is for by --base V: a release, or a folder with one"
_WHOLE = {"--as": "a whole module", "--run": "all that the command changed"}


@dataclass(frozen=True)
class Asked:
    """What the user wants to import; the options have the names of the command's.

    Attributes:
        sources: the arguments.
        named: the base.
        module: where vLLM has the one source.
        pull: the number of a pull request.
        repository: the folder of a repository, of which the one source is a range.
        script: a command to run.
        name: the id of the overlay; None: of the source's name.
        squash: whether to make one patch file of all.
        python_only: whether to leave out all but modules.
    """

    sources: tuple[str, ...]
    named: str | None
    module: str | None
    pull: int | None
    repository: Path | None
    script: str | None
    name: str | None
    squash: bool
    python_only: bool

    def check(self) -> None:
        """Raise UsageError if arguments and options do not go together, UnknownName for sources that do not exist."""
        ways = {"--as": self.module, "--pr": self.pull, "--git": self.repository, "--run": self.script}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise click.UsageError(f"{given[0]} and {given[1]} are two sources: give one")
        way = given[0] if given else ""
        if way in ("--pr", "--run") and self.sources:
            raise click.UsageError(f"{way} takes no SOURCE")
        if way == "--as" and (len(self.sources) != 1 or self.sources[0] == "-"):
            raise click.UsageError("--as takes one file as SOURCE")
        if way == "--git" and len(self.sources) != 1:
            raise click.UsageError("--git takes one range as SOURCE, such as v0.31.0..my-branch")
        made = "--squash" if self.squash else "--python-only" if self.python_only and way == "--as" else ""
        if made and way in _WHOLE:
            raise click.UsageError(f"{way} makes one patch file of {_WHOLE[way]}: leave out {made}")
        if not way and not self.sources:
            raise click.UsageError("Missing argument 'SOURCE...'.")
        files = [self.repository] if self.repository else [one for one in self.sources if one != "-"]
        raise_unknown(Problem("cannot import", str(one), "no such file or folder") for one in files if is_nothing(one))


def _made(asked: Asked) -> Sequence[Imported]:
    """Make the patch files, by the way that the options name."""
    from vpatch.porting.commits import of_commits
    from vpatch.porting.pulls import pulled
    from vpatch.porting.running import of_command
    from vpatch.porting.sources import carried

    narrow = asked.python_only
    if asked.module is not None:
        base = _base(asked.named, files := [asked.module])
        return [of_module(Path(asked.sources[0]), asked.module, base, lambda: later(base, files))]
    if asked.script is not None:
        with _tree(asked.named) as tree:
            return [of_command(asked.script, tree, asked.name, python_only=narrow)]
    if asked.repository is not None:
        where, span = str(asked.repository), asked.sources[0]
        return of_commits(where, span, asked.named, squash=asked.squash, python_only=narrow)
    if asked.pull is not None:
        return _of_patches(pulled(asked.pull, python_only=narrow), asked.named, squash=True)
    return _of_patches(carried(asked.sources, sys.stdin.buffer, python_only=narrow), asked.named, squash=asked.squash)


def _of_patches(found: Sequence[Carried], named: str | None, *, squash: bool) -> Sequence[Imported]:
    patches = [one for one in found if one.changes]
    files = sorted({change.path for one in patches for change in one.changes})
    name = named or patches[0].base
    base = _base(name, files) if name else None
    return imported(patches, base, lambda: _candidates(files), squash=squash)


@contextmanager
def _tree(named: str | None) -> Iterator[Tree]:
    """Yield the vLLM of which a command gets a copy; a release is fetched for it."""
    if named is None or Path(named).exists():
        yield locate(Path(named)) if named else current(_NAME_IT).tree
        return
    from vpatch.release.fetch import fetch

    with TemporaryDirectory(prefix="vpatch-base-") as folder:
        with bar(f"vllm {named}") as progress:
            got = fetch(named, Path(folder), progress=progress)
        yield locate(got.tree)


def _base(name: str | None, files: Sequence[str]) -> PatchBase:
    """Return the vLLM of this name, or the installed one."""
    return base_named(name, files) if name else base_in(current(_NAME_IT).tree)


def _candidates(files: Sequence[str]) -> Iterator[PatchBase]:
    """Yield the vLLMs that a patch may be for: the installed one, and the releases, newest first."""
    yield from _installed()
    yield from releases(files)


def _installed() -> Iterator[PatchBase]:
    with suppress(Failure):  # there may be none, or one of unknown version
        yield base_in(current().tree)


def _written(made: Sequence[Imported], folder: Path, named: str | None, *, force: bool) -> Report:
    """Write patch files: all of them, or none."""
    paths = {one.id: folder / f"{one.id}{SUFFIX}" for one in made}
    problems: list[Problem] = []
    refuse_dash(folder)
    with naming("cannot write", str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    for path in paths.values():
        with collecting(problems):
            check_outfile(path, force=force)
    raise_all(problems)
    for one in made:
        write_outfile(paths[one.id], str(one.patch), force=force)
    states = dict[str, Mapping[str, Verdict]]()
    for one in made:
        with collecting(problems):  # a further shape of it that lies beside it may have a mistake
            states[one.id] = _states(paths[one.id])
    written = [WrittenPatch(one, paths[one.id], states.get(one.id, {})) for one in made]
    outcome = f"Wrote {counted(len(made), 'patch file')}. Next: {next_steps(folder, paths, named)}."
    return ImportReport(written=written, problems=problems, outcome=outcome)


def _states(path: Path) -> Mapping[str, Verdict]:
    """Judge the installed vLLM, and the releases of which the cache has what is asked for, by all shapes of a patch."""
    item = loaded(opened([path], ignored=True).sources.patches[0])
    states = {}
    with suppress(Failure):  # without an index there are fewer
        for base in chain(_installed(), releases(item.overlay.files, held=True)):
            with suppress(Failure):  # it may read more of a release than the cache has
                (states[base.name],) = Engine([item]).status(base.read)
    return states

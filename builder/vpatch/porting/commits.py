"""Make patch files of the commits of a repository; no release is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vpatch.errors import Failure, Problem, UnknownName, collecting, raise_all
from vpatch.matrix.commits import Commit, CommitRange, commits_of
from vpatch.matrix.verdicts import parsed_version
from vpatch.porting.bases import PatchBase
from vpatch.porting.diffs import Carried, parse
from vpatch.porting.importing import Imported, imported
from vpatch.porting.kept import FAILED
from vpatch.porting.letters import letter_of, text_of
from vpatch.porting.sources import BYTES, patch_of, told_apart, with_changes


def of_commits(
    address: str, span: str, version: str | None = None, *, squash: bool = False, python_only: bool = False
) -> tuple[Imported, ...]:
    """Make a patch file of each commit that changes modules, proven on the commit that all are based on.

    Args:
        address: the folder of a repository.
        span: the range of commits, as `git format-patch` takes it.
        version: the version of the base; by default that of its newest tag.
        squash: make one patch file of all of them.
        python_only: as for `kept`.

    Raises:
        UnknownName: `version` is none.
        Failure: there are no commits, or no patch file makes one of them.
    """
    if version and not parsed_version(version):
        raise UnknownName(Problem("not a version", version, "with --git, --base is a version, which reads like 0.31.0"))
    found, problems = commits_of(address, span), list[Problem]()
    base = _base(found, version, span)
    carried = list[Carried]()
    for commit in found.commits:
        with collecting(problems):
            carried += _carried(commit, python_only=python_only)
    raise_all(problems)
    changing = told_apart(with_changes(carried, span))
    return imported([*changing], base, lambda: iter(()), squash=squash)


def _base(found: CommitRange, named: str | None, span: str) -> PatchBase:
    version = named or found.version
    if not version:
        hint = "`--base V` names the release that it is closest to"
        raise Failure(Problem(FAILED, span, f"no tag of a version leads to {found.base[:12]}", hint=hint))
    return PatchBase(str(parsed_version(version)), f"{version} at {found.base[:12]}", found.read)


def _carried(commit: Commit, *, python_only: bool) -> Iterator[Carried]:
    """Yield the patch of a commit; none if it is empty."""
    where = f"commit {commit.id[:12]}"
    if len(commit.diff) > BYTES:
        raise Failure(Problem(FAILED, where, f"its diff has more than {BYTES:,} bytes"))
    try:
        letter = letter_of(commit.mail)
        # A message may hold a diff, too: the commit's own is read apart from it.
        letter = replace(letter, diff=text_of(commit.diff), commit=commit.id)
        files = parse(letter.diff)
    except ValueError as error:
        raise Failure(Problem(FAILED, where, str(error))) from error
    if files:
        yield patch_of(letter, files, where, otherwise=f"commit-{commit.id[:12]}", python_only=python_only)

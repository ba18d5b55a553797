"""Whether this user could apply overlays to the tree. Nothing is written to find out."""

from __future__ import annotations

from collections.abc import Iterator

from vpatch.core.overlay import COMPANIONS
from vpatch.core.verdict import State
from vpatch.doctor.findings import Finding, Level
from vpatch.doctor.subject import Subject
from vpatch.errors import Failure, Problem, cause
from vpatch.tree import guard
from vpatch.tree.disk import Folders


def findings(subject: Subject) -> Iterator[Finding]:
    """Yield whether every file that overlays change, and RECORD, could be replaced."""
    refusals = _refusals(subject)
    if not refusals:
        yield Finding("permission", Level.OK, "this user can change the files")
        return
    reasons = "; ".join(dict.fromkeys(problem.cause for problem in refusals))
    pending = any(verdict.state is State.PENDING for verdict in subject.verified.overlays)
    what = f"this user cannot change the files, so `vpatch apply` and `vpatch revert` would fail: {reasons}"
    do = "run vpatch as the owner of these files" if pending else ""
    level = Level.WARNING if pending else Level.NOTE
    yield Finding("permission", level, what, tuple(problem.where for problem in refusals), do)


def _refusals(subject: Subject) -> list[Problem]:
    tree = subject.tree
    files = sorted(file for file in subject.overlay_files if not file.startswith(COMPANIONS))
    files = [file for file in files if (tree.root / file).exists()]
    # Companions go into a folder of vllm/; what is kept, into the dist-info.
    beside = ["vllm/__init__.py", *([tree.record] if tree.dist_info else [])]
    found: list[Problem] = []
    try:
        guard.refuse_links(tree, files)
    except Failure as failure:
        found += failure.problems
    with Folders(tree.root) as folders:
        for file in (*files, *beside):
            try:
                guard.check(folders, file, {})
            except OSError as error:
                found.append(Problem("cannot write", file, cause(error)))
    return list({problem.where: problem for problem in found}.values())

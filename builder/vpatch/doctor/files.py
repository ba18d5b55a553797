"""vLLM's files: those that differ from its wheel though no overlay changed them, and whether this user can change them.

RECORD has the hash of every file of the wheel, and vpatch keeps it true of what it writes. Nothing is written to find
out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vpatch.core.marks import marks_in
from vpatch.core.overlay import COMPANIONS
from vpatch.core.verdict import State
from vpatch.doctor.subject import Finding, Level, Subject
from vpatch.errors import Code, Failure, Problem, failing
from vpatch.tree import guard, record
from vpatch.tree.bytecode import refusal
from vpatch.tree.disk import Folders

# Comments that patchers leave in the files that they rewrite.
_PATCHERS = {
    "Genesis": re.compile(rb"\[Genesis wiring marker:|\[Genesis\b|\bGENESIS_|vllm[/.]_genesis"),
    "club-3090": re.compile(rb"club-3090|\[tolist_cudagraph_fix\]|LOCAL workspace lock disable"),
}


def edits(subject: Subject) -> Iterator[Finding]:
    """Yield the Python files of vLLM that differ from RECORD, that are missing, and that RECORD does not list."""
    tree = subject.tree
    if subject.is_checkout or (rows := record.present(tree, tree.read)) is None:
        return
    reported = {problem.where for problem in subject.verified.problems}
    modules = {row.path: row for row in rows.rows if row.path.startswith("vllm/") and row.path.endswith(".py")}
    by_author: dict[str, list[str]] = {}
    missing = []
    for path in modules.keys() - reported:
        if (content := tree.read(path)) is None:
            missing.append(path)
        elif not modules[path].is_true_of(content):
            by_author.setdefault(_author(content), []).append(path)
    for author, files in sorted(by_author.items()):
        yield _edited(subject, author, files)
    if missing:
        do = "reinstall vLLM: an upgrade or an uninstall was interrupted"
        yield Finding("missing-file", Level.WARNING, "files that RECORD lists are missing", tuple(sorted(missing)), do)
    there = {path.relative_to(tree.root).as_posix() for path in (tree.root / "vllm").rglob("*.py")}
    if added := sorted(path for path in there - modules.keys() - reported if not path.startswith(COMPANIONS)):
        what = "Python files in vllm/ that no package lists: another patcher may have added them"
        yield Finding("unlisted-file", Level.NOTE, what, tuple(added))
    if not by_author and not missing:
        yield Finding("edit", Level.OK, "every other Python file is the one that was installed")


def _author(content: bytes) -> str:
    """Return who changed a file, as far as its comments show; "" if they do not."""
    if marks_in(content):
        return "vpatch"
    return next((name for name, pattern in _PATCHERS.items() if pattern.search(content)), "")


def _edited(subject: Subject, author: str, files: list[str]) -> Finding:
    ours = [file for file in files if file in subject.overlay_files]
    if author == "vpatch":
        what = "files with vpatch's marks that RECORD does not describe: they were copied here, or patched by hand"
    elif author:
        what = f"files that {author}, another patcher, changed"
    else:
        what = "files that were edited, or changed by another patcher"
    if ours and author != "vpatch":
        what += "; overlays change some of them, too" if len(ours) < len(files) else "; overlays change them, too"
    # Beside an edit of what vpatch made, which is named apart, `capture` may refuse all.
    keep = author != "vpatch" and not subject.verified.edited
    keep = keep and not any(refusal(subject.tree.read(file) or b"", file) for file in files)
    kept = f"to keep these changes as a patch file: {subject.commands.command('capture')}; " if keep else ""
    do = f"{kept}if you do not want them, reinstall vLLM, then {subject.commands.again('apply')}"
    return Finding("edit", Level.WARNING, what, tuple(sorted(files, key=lambda file: (file not in ours, file))), do)


def permissions(subject: Subject) -> Iterator[Finding]:
    """Yield whether this user could replace every file that overlays change, and RECORD."""
    refusals = _refusals(subject)
    if not refusals:
        yield Finding("permission", Level.OK, "this user can change the files")
        return
    reasons = "; ".join(dict.fromkeys(problem.cause for problem in refusals))
    pending = any(verdict.state is State.PENDING for verdict in subject.verified.overlays)
    what = f"this user cannot change the files, so `vpatch apply` and `vpatch revert` would fail: {reasons}"
    instead = f"run vLLM with the overlays without a write to its files: {subject.commands.instead()}"
    read_only = all(problem.code is Code.READ_ONLY for problem in refusals)
    do = "" if not pending else instead if read_only else f"run vpatch as the owner of these files, or {instead}"
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
                found.append(failing("cannot write", file, error))
    return list({problem.where: problem for problem in found}.values())

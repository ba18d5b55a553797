"""Files of vLLM that are not as its wheel has them, although no overlay changed them: edits, and other patchers.

RECORD has the hash of every file of the wheel, and vpatch keeps it true of what it writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from vpatch.core.marks import marks_in
from vpatch.core.overlay import COMPANIONS
from vpatch.doctor.findings import Finding, Level
from vpatch.doctor.subject import Subject
from vpatch.guest.record import Record
from vpatch.tree import record

# Comments that patchers leave in the files that they rewrite.
_PATCHERS = {
    "Genesis": re.compile(rb"\[Genesis wiring marker:|\[Genesis\b|\bGENESIS_|vllm[/.]_genesis"),
    "club-3090": re.compile(rb"club-3090|\[tolist_cudagraph_fix\]|LOCAL workspace lock disable"),
}


def findings(subject: Subject) -> Iterator[Finding]:
    """Yield the Python files of vLLM that differ from RECORD, that are missing, and that RECORD does not list."""
    tree = subject.tree
    if subject.is_checkout or (rows := record.present(tree, tree.read)) is None:
        return
    reported = {problem.where for problem in subject.verified.problems}
    differing, missing, listed = _compared(subject, rows)
    by_author: dict[str, list[str]] = {}
    for path, content in differing.items():
        if path not in reported:
            by_author.setdefault(_author(content), []).append(path)
    for author, files in sorted(by_author.items()):
        yield _edited(subject, author, files)
    if lost := [path for path in missing if path not in reported]:
        do = "reinstall vLLM: an upgrade or an uninstall was interrupted"
        yield Finding("missing-file", Level.WARNING, "files that RECORD lists are missing", tuple(lost), do)
    if added := _unlisted(tree.root, listed):
        what = "Python files in vllm/ that no package lists: another patcher may have added them"
        yield Finding("unlisted-file", Level.NOTE, what, tuple(added))
    if not by_author and not lost:
        yield Finding("edit", Level.OK, "every other Python file is the one that was installed")


def _compared(subject: Subject, rows: Record) -> tuple[dict[str, bytes], list[str], set[str]]:
    """Return the modules that differ from RECORD, those that are missing, and all that it lists."""
    differing, missing, listed = {}, [], set()
    for row in rows.rows:
        if not (row.path.startswith("vllm/") and row.path.endswith(".py")):
            continue
        listed.add(row.path)
        content = subject.tree.read(row.path)
        if content is None:
            missing.append(row.path)
        elif not row.is_true_of(content):
            differing[row.path] = content
    return differing, missing, listed


def _author(content: bytes) -> str:
    """Return who changed a file, as far as its comments tell; "" if they do not."""
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
    do = "if you do not want these changes, reinstall vLLM, then " + subject.commands.again("apply")
    return Finding("edit", Level.WARNING, what, tuple(sorted(files, key=lambda file: (file not in ours, file))), do)


def _unlisted(root: Path, listed: set[str]) -> list[str]:
    found = (path.relative_to(root).as_posix() for path in (root / "vllm").rglob("*.py"))
    return sorted(path for path in found if path not in listed and not path.startswith(COMPANIONS))

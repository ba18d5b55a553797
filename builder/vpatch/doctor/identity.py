"""Which vLLM is examined, how it was found, and whether its Python can run it."""

from __future__ import annotations

from collections.abc import Iterator
from email.parser import HeaderParser

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from vpatch.doctor.subject import Finding, Level, Subject
from vpatch.errors import shell
from vpatch.tree.interpreter import Interpreter
from vpatch.tree.sites import editable_source

_LONGEST = 200  # characters
_NAME = "name the interpreter that runs this vLLM with --python"
_OLDEST = ">=3.10"  # what vLLM's wheels have required since 0.18, if this one's metadata is not there to read


def findings(subject: Subject) -> Iterator[Finding]:
    """Yield what identifies the vLLM and its interpreter."""
    yield _vllm(subject)
    if subject.unanswered:
        problem = subject.unanswered
        do = "name a working interpreter with --python"
        what = f"the interpreter does not answer: {problem.cause}"
        yield Finding("python", Level.PROBLEM, what, (problem.where,), do)
    elif subject.python is None:
        what = "no interpreter is known for this folder: its environment is not examined"
        yield Finding("python", Level.NOTE, what, do=_NAME)
    else:
        yield from _interpreter(subject, subject.python)
    for other in subject.located.others:
        do = f"if you mean that one: {shell('vpatch', 'doctor', '--python', other.shown)}"
        yield Finding("other-vllm", Level.NOTE, f"{other.name} has another vLLM", (str(other.folder),), do)


def _vllm(subject: Subject) -> Finding:
    tree = subject.tree
    # The first line of the command has the folder and how it was found; `--json` has no first line.
    found = f", found by {subject.located.how}" if subject.located.how else ""
    if subject.is_checkout:
        what = f"a source checkout of vLLM{found}: git keeps the originals"
    else:
        origin = tree.read(f"{tree.dist_info}/direct_url.json") if tree.dist_info else None
        kind = ", an editable install" if editable_source(origin) else ""
        what = f"vLLM {tree.version or 'of unknown version'}{kind}{found}"
    if tree.dist_info or subject.is_checkout:
        return Finding("vllm", Level.OK, what, (str(tree.root),))
    do = "reinstall vLLM: overlays are applied only where its `*.dist-info` can keep the originals"
    return Finding("vllm", Level.WARNING, f"{what}: it has no metadata", (str(tree.root),), do)


def _interpreter(subject: Subject, python: Interpreter) -> Iterator[Finding]:
    where, tree = (str(python.python),), subject.tree
    if python.root != tree.root:
        what = f"Python imports the vLLM in {python.root}, not this one" if python.root else "Python finds no vLLM"
        do = f"name the vLLM that you mean: {shell('vpatch', 'doctor', '--python', python.python)}"
        yield Finding("imported", Level.PROBLEM, what, where, do)
    text = tree.read(f"{tree.dist_info}/METADATA") if tree.dist_info else None
    named = HeaderParser().parsestr((text or b"").decode("utf-8", "replace"))["Requires-Python"]
    try:
        required = SpecifierSet(str(named or _OLDEST)[:_LONGEST])
    except InvalidSpecifier:
        required = SpecifierSet(_OLDEST)
    if not python.version:
        what = "the files of this environment do not show its Python's version, and vpatch did not run it"
        yield Finding("python", Level.NOTE, what, where, _NAME)
    elif required.contains(python.version, prereleases=True):
        yield Finding("python", Level.OK, f"Python {python.version}", where)
    else:
        do = f"make an environment with a Python {required}, and install vLLM there"
        yield Finding("python", Level.PROBLEM, f"Python {python.version}, and this vLLM requires {required}", where, do)

"""Read patches from where people keep them: files, mails, folders and pipes."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import BinaryIO

from vpatch.errors import Failure, Problem, cause, collecting, raise_all
from vpatch.foreign import read_regular
from vpatch.porting.diffs import Carried, FileDiff, parse
from vpatch.porting.kept import FAILED, kept
from vpatch.porting.letters import Letter, base_of, letter_of, letters, name_of, text_of, upstream_of

BYTES = 10 << 20
LINES = 200_000
LF = b"\n"
STDIN = "standard input"
_SUFFIXES = (".patch", ".diff")
_MODULE = "if it is a module of vLLM that you changed, --as names its path there, as in --as vllm/envs.py"
_OTHERS = {
    r"(?i)\A\s*(?:<!doctype html|<html|<\?xml)": "it is a page for browsers, not a diff; download the raw file",
    r"\AFormat: \d+\nSubject: ": "it is a patch file of vpatch already, which needs no import",
    r"(?m)^\*{3} .*\n--- .*\n\*{15}": "it is a context diff; make a unified one with `diff -u`",
    r"(?m)^\d+(?:,\d+)?[acd]\d+(?:,\d+)?\n[<>] ": "it is a diff without context; make a unified one with `diff -u`",
    r"(?m)^\d+(?:,\d+)?[acd]$": "it is a script for ed; make a unified diff with `diff -u`",
}


def carried(sources: Sequence[str], stdin: BinaryIO, *, python_only: bool = False) -> tuple[Carried, ...]:
    """Read the patches of all sources, in their order; each mail is a patch.

    Args:
        sources: paths of files and folders; `-` is `stdin`.
        stdin: the standard input, which is read only if a source is `-`.
        python_only: as for `kept`.

    Raises:
        Failure: with all problems of all sources.
    """
    found, problems = list[Carried](), list[Problem]()
    for source in sources:
        with collecting(problems):
            found += _of_source(source, stdin, python_only=python_only)
    raise_all(dict.fromkeys(problems))  # each file lacks a library that is not installed
    return tuple(told_apart(found))


def _of_source(source: str, stdin: BinaryIO, *, python_only: bool) -> list[Carried]:
    found, problems = list[Carried](), list[Problem]()
    for where in [source] if source == "-" or not Path(source).is_dir() else _files(Path(source)):
        with collecting(problems):
            data = stdin.read(BYTES + 1) if where == "-" else _content(where)
            found += patches(data, STDIN if where == "-" else where, python_only=python_only)
    raise_all(problems)
    first, *_ = with_changes(found, STDIN if source == "-" else source)
    if modules := _modules(source):
        told = replace(first, left_out=(*first.left_out, f"{', '.join(modules)}: no diff; {_MODULE}"))
        found[found.index(first)] = told
    return found


def _modules(source: str) -> list[str]:
    """Return the names of the modules in a folder without a `series`, which lists what counts."""
    if not Path(source).is_dir() or Path(source, "series").exists():
        return []
    return sorted(path.name for path in Path(source).glob("*.py"))


def with_changes(found: Sequence[Carried], where: str) -> list[Carried]:
    """Return the patches that change modules.

    Raises:
        Failure: none does.
    """
    if changing := [one for one in found if one.changes]:
        return changing
    left_out = "; ".join(dict.fromkeys(sentence for one in found for sentence in one.left_out))
    raise Failure(Problem(FAILED, where, f"it changes no module of vLLM: {left_out}"))


def _content(where: str) -> bytes:
    try:
        return read_regular(where, BYTES)
    except OSError as error:
        hint = "pipe it into `vpatch import -`" if Path(where).is_fifo() else ""
        raise Failure(Problem(FAILED, where, cause(error), hint=hint)) from error


def _files(folder: Path) -> list[str]:
    """Return the patches of a folder: as its `series` lists them for quilt, or all in the order of their names.

    Raises:
        Failure: the folder cannot be read, has none, or lists one that is not there.
    """
    where = str(folder / "series")
    try:
        if (folder / "series").is_file():
            return _series(folder, text_of(read_regular(where, BYTES)))
        names = sorted(path.name for path in folder.iterdir() if path.suffix in _SUFFIXES)
    except OSError as error:
        raise Failure(Problem(FAILED, str(folder), cause(error))) from error
    except ValueError as error:
        raise Failure(Problem(FAILED, where, str(error))) from error
    if found := [str(folder / name) for name in names if not name.startswith(".")]:
        return found
    none = "it has no .patch or .diff file; folders inside are not read"
    raise Failure(Problem(FAILED, str(folder), none, hint=_MODULE if _modules(str(folder)) else ""))


def _series(folder: Path, text: str) -> list[str]:
    found = list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        name, *options = re.sub(r"(?:^|\s)#.*", "", line).split() or [""]
        if not name:
            continue
        # The level of `-pN` is not needed: a path is found by its part `vllm/`.
        if odd := next((option for option in options if not re.fullmatch(r"-p\d*|\d+", option)), ""):
            raise ValueError(f"line {number}: vpatch does not know the option `{odd}`")
        if name.startswith("/") or ".." in Path(name).parts:
            raise ValueError(f"line {number}: `{name}` is not in the folder")
        if not (folder / name).exists():
            raise ValueError(f"line {number}: `{name}` does not exist")
        found.append(str(folder / name))
    if not found:
        raise ValueError("it lists no patch")
    return found


def patches(
    data: bytes, where: str, *, file: str | None = None, otherwise: str = "", python_only: bool = False
) -> list[Carried]:
    """Return the patches of a file.

    A mail without a diff, such as the cover letter of a series, is none.

    Args:
        data: its content.
        where: its path or `STDIN`, for messages.
        file: its name, which names the overlay; by default that in `where`.
        otherwise: the id of a patch whose name and subject have no words for one.
        python_only: as for `kept`.

    Raises:
        Failure: with each problem.
    """
    problems, diffs, found = list[Problem](), list[tuple[Letter, Sequence[FileDiff]]](), list[Carried]()
    try:
        data = _with_line_feeds(data)
        for above, mail in letters(data):
            letter = letter_of(mail, above)
            if files := parse(letter.diff, letter.above):
                diffs.append((letter, files))
    except ValueError as error:
        raise Failure(Problem(FAILED, where, str(error))) from error
    if not diffs:
        hint = _MODULE if where.endswith(".py") else ""
        raise Failure(Problem(FAILED, where, _not_a_diff(data), hint=hint))
    if file is None:
        file = Path(where).name if where != STDIN else ""
    file = file if len(diffs) == 1 else ""  # a mailbox has no name of a patch
    for letter, changed in diffs:
        with collecting(problems):
            found.append(patch_of(letter, changed, where, file=file, otherwise=otherwise, python_only=python_only))
    raise_all(problems)
    return found


def patch_of(
    letter: Letter, files: Sequence[FileDiff], where: str, *, file: str = "", otherwise: str = "", python_only: bool
) -> Carried:
    """Return the patch that a mail has, whose diff changes these files; arguments as for `patches`.

    Raises:
        Failure: no overlay can have it, or nothing names it.
    """
    changes, left_out = kept(files, where, python_only=python_only)
    if not (name := name_of(file, letter.subject) or otherwise):
        hint = "put it into a file that words name, as in `fix-foo.patch`"
        raise Failure(Problem(FAILED, where, "neither its name nor a subject has words for an id", hint=hint))
    subject = letter.subject or name.replace("-", " ").capitalize()
    upstream, base = upstream_of(file, letter), base_of(letter)
    return Carried(name, subject, letter.description, upstream, base, letter.commit, changes, left_out)


def told_apart(found: Iterable[Carried]) -> Iterator[Carried]:
    """Yield patches with an id each: a number is added to one that an earlier patch has."""
    taken = set[str]()
    for one in found:
        names = (f"{one.name}-{number}" if number > 1 else one.name for number in count(1))
        name = next(name for name in names if name not in taken)
        taken.add(name)
        yield replace(one, name=name)


def _with_line_feeds(data: bytes) -> bytes:
    """Return the bytes of a text without a byte order mark; its lines end with LF if all of them end with CRLF.

    Raises:
        ValueError: it cannot be a diff; the message is one sentence, with the line where one can be named.
    """
    if len(data) > BYTES:
        raise ValueError(f"it has more than {BYTES:,} bytes")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError("it is UTF-16, as PowerShell writes by `>`; save it as UTF-8")
    data = data.removeprefix(codecs.BOM_UTF8)
    if (lines := data.count(LF)) > LINES:
        raise ValueError(f"it has {lines:,} lines, more than {LINES:,}")
    if (null := data.find(b"\0")) >= 0:
        raise ValueError(f"line {data.count(LF, 0, null) + 1}: it has a null byte, and is no text")
    if not data.strip():
        raise ValueError("it is empty")
    if not data.endswith(LF):
        raise ValueError(f"line {lines + 1}: no newline at its end; it may be truncated")
    return data.replace(b"\r\n", LF) if data.count(b"\r\n") == lines else data


def _not_a_diff(data: bytes) -> str:
    text = data.decode(errors="replace")
    return next((other for form, other in _OTHERS.items() if re.search(form, text)), "it has no diff")

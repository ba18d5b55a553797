"""What can go wrong, reported as `what: where: cause`."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

_MOST = 8  # names that an answer to a part of a name lists


class Code(StrEnum):
    """The kinds of problems that code distinguishes, as `--json` names them. Texts are for people, and may change."""

    OTHER = ""
    DENIED = "permission-denied"  # by the system
    READ_ONLY = "read-only-file-system"
    NO_VLLM = "no-vllm"  # neither named nor found
    NOT_APPLIED = "not-applied"
    NOTHING_TO_VERIFY = "nothing-to-verify"
    RECORD_UNTRUE = "record-untrue"
    RECORD_UNLISTED = "record-unlisted"
    EDITED = "edited-after-vpatch"  # by hand or by another program, in a file that vpatch changed
    FILE_MISSING = "file-missing"
    NO_RECORD = "no-record"
    STALE_BYTECODE = "stale-bytecode"
    NO_PYTHON = "not-python"  # a module does not compile
    UNKNOWN_MARK = "unknown-mark"
    UNKNOWN_OVERLAY = "unknown-overlay"  # one is applied, and its package is not installed
    PROVENANCE = "provenance-unreadable"
    NOTHING_TO_BUILD = "nothing-to-build"
    GPU_UNSERVED = "gpu-not-served"
    CANNOT_KNOW = "cannot-know"
    DOES_NOT_FIT = "does-not-fit"
    OVERLAY_FAILED = "overlay-failed"
    NOT_TOGETHER = "not-together"  # overlays that fail only together
    NOT_IDEMPOTENT = "not-idempotent"
    NOT_REVERSIBLE = "not-reversible"


@dataclass(frozen=True)
class Problem:
    """One failure that needs attention.

    Attributes:
        what: the failure, in a few lower-case words.
        where: its file, folder or address.
        cause: the reason.
        scope: the qualified name inside the file, "" if none.
        code: the kind of problem; only this may decide what happens next.
        hint: what to do about it, "" if that is clear.
    """

    what: str
    where: str
    cause: str
    scope: str = ""
    code: Code = Code.OTHER
    hint: str = ""

    @property
    def remark(self) -> str:
        """Where the problem is and its cause, without the numbers of lines, which differ between releases."""
        where = f"{self.where} ({self.scope})" if self.scope else self.where
        return f"{where}: {re.sub(r'line [0-9]+(?:: |, )', '', self.cause)}"

    @property
    def reason(self) -> str:
        """The cause and the hint."""
        return f"{self.cause}; {self.hint}" if self.hint else self.cause

    def as_json(self) -> dict[str, str | None]:
        """Return the JSON object of the command line's contract."""
        about = {"code": self.code, "what": self.what, "file": self.where, "scope": self.scope or None}
        return {**about, "cause": self.cause, **({"hint": self.hint} if self.hint else {})}

    def __str__(self) -> str:
        where = f"{self.where} ({self.scope})" if self.scope else self.where
        return f"{self.what}: {where}: {self.reason}"


class Failure(Exception):
    """A run failed, with every problem at once, in `problems`. The command line exits with 1."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class UnknownName(Failure):
    """The user named an overlay, preset, GPU, release or folder that does not exist. The command line exits with 2."""


def nearest(name: str, known: Iterable[str], *, key: Callable[[str], str] = str.casefold) -> list[str]:
    """Return the known names that are closest to one that is not known; [] if none is close.

    Names are compared by `key`. One that is equal by it is the answer, then near ones, then all that contain it.
    """
    import difflib

    by_key = {key(one): one for one in dict.fromkeys(known)}
    typed = key(name)
    if typed in by_key:
        return [by_key[typed]]
    scores = {one: difflib.SequenceMatcher(None, one, typed).ratio() for one in by_key}
    best = max(scores.values(), default=0)
    if best < 0.9 and len(typed) > 2 and (whole := [one for text, one in by_key.items() if typed in text]):
        return sorted(whole, key=lambda one: -scores[key(one)])[:_MOST]
    return [by_key[one] for one, score in scores.items() if score > 0.7 and score > best - 0.05]


def closest(name: str, known: Iterable[str], *, key: Callable[[str], str] = str.casefold) -> str:
    """Return what to type instead of a name that is not known: the nearest names, or all of them."""
    names = list(dict.fromkeys(known))
    return did_you_mean(nearest(name, names, key=key)) or f"known: {', '.join(names)}"


def did_you_mean(names: Iterable[str], after: str = "") -> str:
    """Return the question for the names that may be meant, with `after` behind it; "" for none."""
    *others, last = [*names] or [""]
    meant = " or ".join(filter(None, [", ".join(others), last]))
    return f"did you mean {meant}?{after}" if meant else ""


def shell(*words: object) -> str:
    """Return a command to copy, in backticks and quoted for a shell; `vpatch` is named as the user has called it."""
    import shlex

    first, *rest = map(str, words)
    return f"`{shlex.join([_program() if first == 'vpatch' else first, *rest])}`"


def _program() -> str:
    """Return how a shell in this folder finds this vpatch: by its name on PATH, else by the path that was typed."""
    called = sys.argv[0] if sys.argv else ""
    if os.path.basename(called) != "vpatch" or os.sep not in called:  # noqa: PTH119 - every command to copy needs it
        return "vpatch"
    import shutil

    found = shutil.which("vpatch")
    return "vpatch" if found and os.path.realpath(found) == os.path.realpath(called) else called


def cause(error: OSError) -> str:
    """Return the reason of the operating system, in lower case."""
    return (error.strerror or str(error)).lower()


def failing(what: str, where: str, error: OSError, hint: str = "") -> Problem:
    """Return the problem that an error of the system is."""
    code = Code.DENIED if isinstance(error, PermissionError) else Code.OTHER
    code = Code.READ_ONLY if error.errno == errno.EROFS else code
    return Problem(what, where, cause(error), code=code, hint=hint)


def raise_all(problems: Iterable[Problem]) -> None:
    """Raise one failure of all problems, if there are any."""
    if found := tuple(problems):
        raise Failure(*found)


def raise_unknown(problems: Iterable[Problem]) -> None:
    """Raise one `UnknownName` of all problems, if there are any."""
    if found := tuple(problems):
        raise UnknownName(*found)


@contextmanager
def collecting(problems: list[Problem]) -> Iterator[None]:
    """Append the problems of a failure that the block raises, and go on."""
    try:
        yield
    except Failure as failure:
        problems += failure.problems


@contextmanager
def naming(what: str, where: str, hint: str = "") -> Iterator[None]:
    """Turn an OSError into a failure that names the file.

    Raises:
        Failure: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise Failure(failing(what, where, error, hint)) from error

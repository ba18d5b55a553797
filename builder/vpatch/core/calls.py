"""What an overlay's code takes from vLLM, as `python -m vpatch.calls` records it on releases that prove it.

The list lies beside the overlay's module, as `_calls/MODULE.json`. Its keys name definitions by file and qualified
name: `vllm/v1/worker/workspace.py WorkspaceManager.is_locked`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

FORMAT = 1


@dataclass(frozen=True)
class Call:
    """What is known of a function or class that the code calls.

    Attributes:
        given: how the code calls it, each way once: `(self, _, scale=_)` passes one argument by position and one by
            name; `*_` and `**_` stand for arguments that only run time knows.
        interfaces: the interfaces that the definition had, as `vpatch.core.landing.interfaces` writes them, each with
            the digests of its bodies.
        at: where other releases have it, places like the key.
        ignored: the code ignores what every call returns.
        optional: a release that proves the code lacks it.
    """

    given: tuple[str, ...]
    interfaces: Mapping[str, tuple[str, ...]]
    at: tuple[str, ...] = ()
    ignored: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Taken:
    """What one piece of code takes from vLLM.

    Attributes:
        digest: of the code, see `vpatch.testing.digests`.
        calls: what it calls, by definition.
        overrides: the methods that its own override, by definition; `given` is how these are called, the parameters
            of the own method.
        reads: attributes that it reads, by class.
        imports: what it imports, as `vllm.module.name`.
    """

    digest: str = ""
    calls: Mapping[str, Call] = field(default_factory=dict)
    overrides: Mapping[str, Call] = field(default_factory=dict)
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    imports: tuple[str, ...] = ()


@dataclass(frozen=True)
class Calls:
    """The list of one overlay.

    Attributes:
        releases: those on which it was recorded.
        through: by what is taken (a place, or an import), the modules that decide on it, if not the place's file alone:
            those of re-exports and base classes.
        known: by modules that decide on something, digests of their contents on the releases.
        code: what is taken, by the code that takes it: the path of a companion, or `PART SHAPE` for what the edits of
            a part insert.
    """

    releases: tuple[str, ...]
    through: Mapping[str, tuple[str, ...]]
    known: Mapping[tuple[str, ...], tuple[str, ...]]
    code: Mapping[str, Taken]

    @property
    def files(self) -> tuple[str, ...]:
        """The modules of vLLM in which the check looks."""
        return tuple(sorted({file for way in self.known for file in way}))

    def way(self, taken: str) -> tuple[str, ...]:
        """Return the modules that decide on something that is taken."""
        return self.through.get(taken) or (taken.partition(" ")[0],)

    def proved(self, taken: str, digest: Callable[[str], str]) -> bool:
        """Whether the modules that decide on something are as on a release, so that nothing need be compared.

        Args:
            taken: a place, or an import.
            digest: returns a digest of a file.
        """
        way = self.way(taken)
        return combined(way, digest) in self.known.get(way, ())


def combined(files: Iterable[str], digest: Callable[[str], str]) -> str:
    """Return one digest of several files."""
    return hashlib.sha256("".join(map(digest, files)).encode()).hexdigest()[:8]


def file_of(source: str) -> str:
    """Return the path of the list for an overlay's module or patch file, which has a path, too."""
    folder, slash, name = source.rpartition("/")
    return f"{folder}{slash}_calls/{name.rpartition('.')[0]}.json"


def inserted_by(part: str, shape: str) -> str:
    """Return the key of the code that the edits of a shape insert."""
    return f"{part} {shape}"


def module_files(module: str) -> tuple[str, str]:
    """Return the two files that a module may be."""
    path = module.replace(".", "/")
    return f"{path}.py", f"{path}/__init__.py"


def parse(data: bytes) -> Calls:
    """Read a list.

    Raises:
        ValueError: it is not one, or a newer vpatch wrote it.
    """
    try:
        document: Any = json.loads(data)
        if document["format"] == FORMAT:
            code = {key: _taken(each) for key, each in document["code"].items()}
            through = {taken: tuple(map(str, files)) for taken, files in document["through"].items()}
            known = {tuple(way.split()): tuple(map(str, each)) for way, each in document["known"].items()}
            return Calls(tuple(map(str, document["releases"])), through, known, code)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        cause = f"it is damaged ({type(error).__name__}: {error}): delete it, and run `python -m vpatch.calls`"
        raise ValueError(cause) from error
    raise ValueError(f"it has the format {document['format']!r}, and this vpatch reads {FORMAT}")


def _taken(document: Any) -> Taken:
    return Taken(
        str(document["digest"]),
        {key: _call(each) for key, each in document.get("calls", {}).items()},
        {key: _call(each) for key, each in document.get("overrides", {}).items()},
        {key: tuple(map(str, each)) for key, each in document.get("reads", {}).items()},
        tuple(map(str, document.get("imports", ()))),
    )


def _call(document: Any) -> Call:
    interfaces = {text: tuple(map(str, bodies)) for text, bodies in document["interfaces"].items()}
    given, at = tuple(map(str, document["given"])), tuple(map(str, document.get("at", ())))
    return Call(given, interfaces, at, bool(document.get("ignored")), bool(document.get("optional")))


def write(calls: Calls) -> bytes:
    """Return the bytes of a list, sorted, so that a change of it reads as a diff."""
    document = {
        "format": FORMAT,
        "releases": list(calls.releases),
        "through": {taken: list(files) for taken, files in sorted(calls.through.items())},
        "known": {" ".join(way): list(digests) for way, digests in sorted(calls.known.items())},
        "code": {key: _document(each) for key, each in sorted(calls.code.items())},
    }
    text = json.dumps(document, indent=1)
    # A list of texts stands on one line.
    return (re.sub(r"\[\n([^][{}]*+)\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n").encode()


def _document(taken: Taken) -> dict[str, object]:
    fields = {
        "calls": {key: _call_document(each) for key, each in sorted(taken.calls.items())},
        "overrides": {key: _call_document(each) for key, each in sorted(taken.overrides.items())},
        "reads": {key: sorted(each) for key, each in sorted(taken.reads.items())},
        "imports": sorted(taken.imports),
    }
    return {"digest": taken.digest} | {key: value for key, value in fields.items() if value}


def _call_document(call: Call) -> dict[str, object]:
    interfaces = {text: sorted(bodies) for text, bodies in sorted(call.interfaces.items())}
    document: dict[str, object] = {"given": sorted(call.given), "interfaces": interfaces}
    document |= {"at": list(call.at)} if call.at else {}
    return document | {name: True for name in ("ignored", "optional") if getattr(call, name)}

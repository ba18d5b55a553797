"""What an overlay is, as frozen values: parts, shapes, edits, predicates, probes and needs.

This module parses, reads and writes nothing. The edits are in `vpatch.core.edits`, the predicates in
`vpatch.core.predicates`, and what the engine finds in `vpatch.core.verdict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

    from vpatch.core.verdict import Answer, Finding
    from vpatch.core.workspace import Workspace

COMPANIONS = "vllm/_vpatch/"
"""The folder in which vpatch adds files. Upstream has no file there."""

Reach: TypeAlias = tuple[tuple[str, str | None], ...]
"""Pairs of a file and the qualified name of the code in it that is read.

"" means the whole file, None only what stands outside functions, their headers included.
"""


class Edit(Protocol):
    """One structural change of one file. Implementations are frozen, hashable dataclasses in `vpatch.core.edits`."""

    @property
    def file(self) -> str:
        """The file's path in the tree, POSIX, relative to the folder that holds `vllm/`."""
        ...

    @property
    def scope(self) -> str:
        """The qualified name that the edit works in; "" is the module."""
        ...

    @property
    def reach(self) -> Reach:
        """What it looks at inside functions: of every other function it sees the header only."""
        ...

    def state(self, files: Workspace, overlay: str) -> Finding:
        """Say what is there, from what is in `file` alone. Changes nothing.

        Raises:
            Lost: neither its precondition nor its postcondition.
        """
        ...

    def apply(self, files: Workspace, overlay: str) -> None:
        """Make the change in `files`. To be called only where `state` finds `BEFORE`."""
        ...


class Predicate(Protocol):
    """A question to a tree, answered from its bytes alone. Implementations are in `vpatch.core.predicates`."""

    @property
    def reach(self) -> Reach:
        """What it looks at inside functions, as of an edit."""
        ...

    def ask(self, files: Workspace) -> Answer:
        """Answer it. Never answers from the absence of a file: that is `holds=None`."""
        ...


Edits: TypeAlias = "Edit | Iterable[Edits]"
"""Edits, nested as it suits their author."""


@dataclass(frozen=True, init=False)
class Shape:
    """One known form of upstream's code, and the edits that start from it.

    Attributes:
        name: what users see; by custom the oldest release with this form. A part may set it.
        edits: the edits, flat and each once.
        when: tells this shape from others where the edits alone would not.
        note: what a user must know once the shape is applied; `vpatch apply` prints it.
    """

    name: str
    edits: tuple[Edit, ...]
    when: Predicate | None
    note: str

    def __init__(self, name: str = "", edits: Edits = (), when: Predicate | None = None, note: str = "") -> None:
        _set(self, name=name, edits=_once(_flat(edits)), when=when, note=note)


@dataclass(frozen=True, init=False)
class Part:
    """A group of edits that upstream could merge on its own; vpatch applies all of them or none.

    Attributes:
        name: the part's name, unique in its overlay.
        shapes: the known forms of upstream's code, newest first. Given as a mapping, its keys are the shapes' names,
            and a value may be just the edits.
        merged: holds where upstream has the change.
        absent: holds where the feature or the defect does not exist, shown positively.
        upstream: the pull requests that brought it, where they are not simply those of the overlay.
    """

    name: str
    shapes: tuple[Shape, ...]
    merged: Predicate | None
    absent: Predicate | None
    upstream: tuple[str, ...]

    def __init__(
        self,
        name: str,
        shapes: Mapping[str, Shape | Edits] | Iterable[Shape] = (),
        merged: Predicate | None = None,
        absent: Predicate | None = None,
        upstream: tuple[str, ...] = (),
    ) -> None:
        if isinstance(shapes, Mapping):
            shapes = [
                Shape(key, one.edits, one.when, one.note) if isinstance(one, Shape) else Shape(key, one)
                for key, one in shapes.items()
            ]
        _set(self, name=name, shapes=tuple(shapes), merged=merged, absent=absent, upstream=upstream)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it changes or adds, each once."""
        return tuple(dict.fromkeys(edit.file for shape in self.shapes for edit in shape.edits))


def _set(value: object, **fields: object) -> None:
    for name, content in fields.items():
        object.__setattr__(value, name, content)


def _once(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    found: list[Edit] = []  # not a set: an edit without a hash is its author's mistake, which the engine reports
    for edit in edits:
        if edit not in found:
            found.append(edit)
    return tuple(found)


def _flat(edits: Edits) -> Iterator[Edit]:
    if isinstance(edits, Iterable):
        for one in edits:
            yield from _flat(one)
    else:
        yield edits


@dataclass(frozen=True)
class Probe:
    """A script that shows, on a patched vLLM, that an overlay does what it is for.

    It is run by the interpreter of that vLLM as `python -c SCRIPT`, without network, in a folder that it may write to.
    It ends with 0 if all is right, and with an AssertionError, which says what was expected and found, if not. A
    `gpu` probe wants a CUDA device; others do with and without.
    """

    name: str
    script: str
    gpu: bool = False


@dataclass(frozen=True)
class Use:
    """What somebody is going to serve, as far as it decides which overlays that needs.

    `hybrid` models mix attention with layers that keep a state. `kv_cache_dtype` is vLLM's word for it. `head` is the
    scheme that the output projection is quantised by ("fp8-block", "fp8-channel", "fp8-tensor", ...) and `quantization`
    the method that the checkpoint names, each None where it is not. `longest` is the longest request and `chunk` what
    of it is prefilled at once, in tokens. `architecture` is the name of the model's class, None where it is not known.
    """

    hybrid: bool
    kv_cache_dtype: str
    longest: int
    chunk: int
    quantization: str | None = None
    head: str | None = None
    architecture: str | None = None

    @property
    def turboquant(self) -> bool:
        """Whether the KV cache is TurboQuant's."""
        return self.kv_cache_dtype.startswith("turboquant_")


@dataclass(frozen=True)
class Need:
    """Whether a use needs what an overlay brings, be it from the overlay or from upstream, and why or why not.

    `uncovered` says why not even a vLLM with the overlay serves this use; "" where it does.
    """

    needed: bool
    because: str
    uncovered: str = ""


@dataclass(frozen=True)
class Overlay:
    """One named set of source changes to vLLM. Its id is the name of its module, with hyphens.

    `upstream` are the pull requests and issues behind it (`owner/repository#number`). `releases` is for people: for
    ranges of releases (version specifiers, `>=0.20,<0.21`) the state that the overlay has there, a colon, and why. An
    `opt_in` overlay is applied only when named. `probes` hold where the overlay is applied, and where it is merged;
    where it is pending, they do not. `needed` says what the overlay is for: whether a use needs it, on a vLLM that
    lacks it.
    """

    summary: str
    parts: tuple[Part, ...]
    upstream: tuple[str, ...] = ()
    releases: Mapping[str, str] = field(default_factory=dict)
    opt_in: bool = False
    probes: tuple[Probe, ...] = ()
    needed: Callable[[Use], Need] | None = None


@dataclass(frozen=True)
class Catalogued:
    """An overlay as it was discovered: its id, its explanation, and the entry point that it comes from."""

    id: str
    overlay: Overlay
    why: str
    point: EntryPoint | None = None

    @property
    def origin(self) -> str:
        """The distribution that ships it, with its version."""
        dist = self.point.dist if self.point else None
        return f"{dist.name} {dist.version}" if dist else str(self.point and self.point.value)

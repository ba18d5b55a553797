"""What an overlay is, as frozen values: parts, shapes, edits, predicates, probes and needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeAlias

from vpatch.core.verdict import State
from vpatch.manifest import sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.metadata import EntryPoint

    from vpatch.core.calls import Calls
    from vpatch.core.verdict import Answer, EditFinding, Verdict
    from vpatch.core.workspace import Workspace

COMPANIONS = "vllm/_vpatch/"
"""The folder of companions; upstream has no file there."""
MODULE = re.compile(r"\Avllm/(?:\w[\w-]*/)*\w+\.py", re.ASCII)
"""The path of a module of vLLM."""
DATA = re.compile(
    r"\Avllm/(?!_vpatch/)(?:(?!__pycache__/)\w[\w.,=+@()\[\]-]*+/)*+\w[\w.,=+@()\[\]-]*+"
    r"(?<!\.py)(?<!\.py[cdo])(?<!\.so)(?<!\.vpatch-new)",
    re.ASCII,
)
"""The path of a file of vLLM that is no code, nor one that vpatch stages."""


class Edit(Protocol):
    """One structural change of one file. Implementations are frozen, hashable dataclasses, see `vpatch.core.edits`."""

    @property
    def file(self) -> str:
        """The file's path in the tree, POSIX, relative to the folder that holds `vllm/`."""

    @property
    def scope(self) -> str:
        """The qualified name of the code that it changes; "" is the module."""

    def state(self, files: Workspace, overlay: str) -> EditFinding:
        """Find the precondition or the postcondition, from `file` alone.

        Raises:
            Lost: neither holds.
        """

    def apply(self, files: Workspace, overlay: str) -> None:
        """Make the change in `files`, where `state` finds `BEFORE`."""


class Predicate(Protocol):
    """A question to a tree, answered from its bytes alone; see `vpatch.core.predicates`."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it reads; the path of a folder that it lists ends with a slash."""

    def ask(self, files: Workspace) -> Answer:
        """Answer. If a file is missing, the answer is unknown (`holds=None`)."""


Edits: TypeAlias = "Edit | Iterable[Edits]"
"""One edit, or edits in any nesting of lists and tuples."""


@dataclass(frozen=True, init=False)
class Shape:
    """One known form of upstream's code, and the edits that start from it.

    Attributes:
        name: by custom the oldest release with this form.
        edits: the edits, flat and each once.
        when: distinguishes this shape from others that have the same code where the edits look.
        note: what `vpatch apply` tells the user once the shape is applied.
    """

    name: str
    edits: tuple[Edit, ...]
    when: Predicate | None
    note: str

    def __init__(self, name: str = "", edits: Edits = (), when: Predicate | None = None, note: str = "") -> None:
        once: list[Edit] = []  # not a set: an edit without a hash is its author's mistake, which the engine reports
        for edit in _flat(edits):
            if edit not in once:
                once.append(edit)
        _set(self, name=name, edits=tuple(once), when=when, note=note)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it changes or adds, each once."""
        return tuple(dict.fromkeys(edit.file for edit in self.edits))


@dataclass(frozen=True, init=False)
class Part:
    """A group of edits that upstream could merge on its own; vpatch applies all of them or none.

    Attributes:
        name: unique in its overlay.
        shapes: the known forms of upstream's code, newest first. The keys of a mapping are the shapes' names; a value
            may be just the edits.
        merged: holds if upstream has the change.
        absent: holds if positive evidence shows that the feature or the defect does not exist.
        upstream: the pull requests with the change, if other than the overlay's.
        accepted: what the check of inserted code says of this part on the release that it was made for, as
            `Problem.remark` spells it; it does not make the part drifted.
        errors: lines of a log that this part ends, as `Overlay.errors` has them.
    """

    name: str
    shapes: tuple[Shape, ...]
    merged: Predicate | None
    absent: Predicate | None
    upstream: tuple[str, ...]
    accepted: tuple[str, ...]
    errors: tuple[str, ...]

    def __init__(
        self,
        name: str,
        shapes: Mapping[str, Shape | Edits] | Iterable[Shape] = (),
        merged: Predicate | None = None,
        absent: Predicate | None = None,
        upstream: tuple[str, ...] = (),
        accepted: tuple[str, ...] = (),
        errors: tuple[str, ...] = (),
    ) -> None:
        if isinstance(shapes, Mapping):
            shapes = [
                Shape(key, one.edits, one.when, one.note) if isinstance(one, Shape) else Shape(key, one)
                for key, one in shapes.items()
            ]
        known = {"upstream": upstream, "accepted": accepted, "errors": errors}
        _set(self, name=name, shapes=tuple(shapes), merged=merged, absent=absent, **known)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it changes or adds, each once."""
        return tuple(dict.fromkeys(file for shape in self.shapes for file in shape.files))


def _set(value: object, **fields: object) -> None:
    for name, content in fields.items():
        object.__setattr__(value, name, content)


def _flat(edits: Edits) -> Iterator[Edit]:
    if isinstance(edits, Iterable):
        for one in edits:
            yield from _flat(one)
    else:
        yield edits


@dataclass(frozen=True)
class Probe:
    """A script that shows, on a patched vLLM, that an overlay works.

    The interpreter of that vLLM runs it as `python -c SCRIPT`, without network, in a writable folder. The script exits
    with 0 on success, else with an AssertionError that shows what was expected and found.

    Attributes:
        name: unique in its overlay.
        script: the source of the program.
        gpu: whether it needs a CUDA device; others must run with and without one.
    """

    name: str
    script: str
    gpu: bool = False


@dataclass(frozen=True)
class Use:
    """A deployment, as far as it decides which overlays it needs.

    Attributes:
        hybrid: whether the model mixes attention with layers that keep a state.
        kv_cache_dtype: vLLM's option `--kv-cache-dtype`.
        longest: the longest request, in tokens.
        chunk: the part of it that is prefilled at once, in tokens.
        quantization: the checkpoint's method, None if not quantized.
        block_fp8: whether some weights are FP8 with block scales.
        head: the quantization scheme of the output projection ("fp8-block", "fp8-channel", "fp8-tensor", ...), None if
            not quantized.
        architecture: the name of the model's class, None if unknown.
        speculative_tokens: the draft tokens of a step, 0 without speculative decoding.
        prefix_caching: whether vLLM's prefix caching is on.
        capability: the GPU's compute capability, as (12, 0), None if unknown.
        outgrows: whether memory that vLLM does not count may be more than the card has beside vLLM's share.
        ranks: the number of GPUs that share each layer, by tensor parallelism.
    """

    hybrid: bool
    kv_cache_dtype: str
    longest: int
    chunk: int
    quantization: str | None = None
    block_fp8: bool = False
    head: str | None = None
    architecture: str | None = None
    speculative_tokens: int = 0
    prefix_caching: bool = False
    capability: tuple[int, int] | None = None
    outgrows: bool = False
    ranks: int = 1

    @property
    def turboquant(self) -> bool:
        """Whether the KV cache is TurboQuant's."""
        return self.kv_cache_dtype.startswith("turboquant_")


@dataclass(frozen=True)
class Need:
    """Whether a use needs an overlay's change, from the overlay or from upstream, and why.

    Attributes:
        needed: whether the use needs the change.
        because: the reason, for users.
        uncovered: why a vLLM with the overlay does not serve this use either; "" if it does.
        recommended: whether the use, which does not need the overlay, gains by it; of opt-in overlays.
    """

    needed: bool
    because: str
    uncovered: str = ""
    recommended: bool = False


@dataclass(frozen=True)
class Overlay:
    """One named set of source changes to vLLM. Its id is the name of its module, with hyphens.

    Attributes:
        summary: what it mends, in one line.
        parts: the changes that upstream could merge one by one.
        upstream: the pull requests and issues behind it, as `owner/repository#number`.
        releases: informs users. It maps version specifiers (`>=0.20,<0.21`) to the overlay's state there, a colon, and
            the reason.
        opt_in: whether it is applied only when named.
        probes: scripts that succeed if the overlay is applied or merged, and fail if it is pending.
        needed: decides whether a use needs the overlay on a vLLM that lacks it; None if nothing can be said.
        symptoms: what a user sees without the overlay: sentences, and error messages (`ValueError: ...`), in which
            `...` stands for text that varies. Words of a log in a sentence are in quotes.
        errors: more lines of a log, by which `vpatch find` and `vpatch doctor --log` know the overlay. Numbers and
            folders in them do not matter; what is in single quotes must be in the user's line.
        beside: where an error line has many causes, lines that a log has as well if the cause is the overlay's.
        not_beside: lines of which it has none.
    """

    summary: str
    parts: tuple[Part, ...]
    upstream: tuple[str, ...] = ()
    releases: Mapping[str, str] = field(default_factory=dict)
    opt_in: bool = False
    probes: tuple[Probe, ...] = ()
    needed: Callable[[Use], Need] | None = None
    symptoms: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    not_beside: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it changes or adds, each once."""
        return tuple(dict.fromkeys(file for part in self.parts for file in part.files))


@dataclass(frozen=True)
class Catalogued:
    """An overlay with its id, its explanation and its entry point, None of a patch file that no package ships.

    `source` is the path of its module or patch file. `calls` is what its code takes from vLLM, None if that was not
    recorded. `patch` has the bytes of a patch file, None of a module.
    """

    id: str
    overlay: Overlay
    why: str
    point: EntryPoint | None = None
    source: str = ""
    calls: Calls | None = None
    patch: bytes | None = field(default=None, repr=False)

    @property
    def origin(self) -> str:
        """The distribution that ships the overlay, with its version; of a patch file without one, its path."""
        if self.point is None:
            return self.source
        try:
            dist = self.point.dist
            return f"{dist.name} {dist.version}" if dist else self.point.value
        except (ValueError, TypeError, LookupError):  # damaged metadata
            return self.point.value

    @property
    def sha256(self) -> str | None:
        """The hash of a patch file; None of a module."""
        return None if self.patch is None else sha256(self.patch)


@cache
def declared(releases: tuple[tuple[str, str], ...], vllm: str) -> tuple[State | None, str]:
    """Return the state that an overlay declares for a release, and why."""
    from packaging.specifiers import SpecifierSet

    for span, text in releases:
        if SpecifierSet(span, prereleases=True).contains(vllm):
            word, _, why = text.partition(":")
            return State(word.strip()), why.strip()
    return None, ""


def notes_of(overlays: Sequence[Catalogued], verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Collect what users must know of the shapes that are applied, or about to be."""
    parts = {(item.id, part.name): part for item in overlays for part in item.overlay.parts}
    found = (
        f"{verdict.id}: {shape.note}"
        for verdict in verdicts
        for part in verdict.parts
        for shape in parts[verdict.id, part.name].shapes
        if shape.note and shape.name == part.shape and part.state in {State.APPLIED, State.PENDING}
    )
    return tuple(dict.fromkeys(found))

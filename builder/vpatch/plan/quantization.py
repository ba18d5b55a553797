"""How a checkpoint is quantized: the method, and the scheme of each module. `quantization_config` reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

HEAD_NAMES = ("lm_head", "language_model.lm_head")  # in a language model, and in a multimodal one
HEAD_CLASS, LINEAR_CLASS = "ParallelLMHead", "ParallelLinear"  # endings of the vLLM classes that targets name

COMPRESSED = "compressed-tensors"
# Modules that vLLM has as one, by the name of each part: configs name either.
_FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("q_a_proj", "kv_a_proj_with_mqa"), "fused_qkv_a_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
    **dict.fromkeys(("in_proj_qkv", "in_proj_z"), "in_proj_qkvz"),
    **dict.fromkeys(("in_proj_b", "in_proj_a"), "in_proj_ba"),
}


@dataclass(frozen=True)
class Scheme:
    """How a weight is stored: the format's name, and bytes per parameter, scales included."""

    name: str
    size: float


BF16 = Scheme("bfloat16", 2.0)


@dataclass(frozen=True)
class Quantization:
    """A method, and its targets in order, each with its scheme (None: not quantized).

    It skips modules that are named in `ignore`, have a part between dots in `within`, or match one of `patterns`.
    `named` has schemes of single modules, by the beginning or the end of their names. It quantizes an output head if
    `head`, or if that is None where it is named, as in compressed-tensors. `certain` is False if plan does not know
    the sizes of the method.
    """

    method: str
    targets: tuple[tuple[str, Scheme | None], ...] = ()
    ignore: frozenset[str] = field(default_factory=frozenset)
    within: frozenset[str] = field(default_factory=frozenset)
    patterns: tuple[re.Pattern[str], ...] = ()
    named: Mapping[str, Scheme | None] = field(default_factory=dict)
    head: bool | None = None
    certain: bool = True

    def has(self, scheme: str) -> bool:
        """Whether any target is of the scheme with this name."""
        found = (*self.named.values(), *(target for _, target in self.targets))
        return any(one is not None and one.name == scheme for one in found)

    def scheme(self, names: Iterable[str], kind: str = LINEAR_CLASS) -> Scheme | None:
        """Return the scheme of a module of class `kind` with any of `names`; None: not quantized.

        Ignoring wins over targeting, and a target by name over one by class, as in compressed-tensors.
        """
        names = tuple(one for name in names for one in _spellings(name))
        if self._skips(names):
            return None
        if (single := next((one for name in names for one in _ends(name) if one in self.named), None)) is not None:
            return self.named[single]
        by_name = (target for target in self.targets if any(_names(target[0], name) for name in names))
        by_class = (target for target in self.targets if _names(target[0], kind) or target[0].lower() in kind.lower())
        found = next(by_name, None) or next(by_class, None)
        return found[1] if found else None

    def _skips(self, names: Sequence[str]) -> bool:
        if any(name in self.ignore or any(pattern.match(name) for pattern in self.patterns) for name in names):
            return True
        return bool(self.within) and any(run in self.within for name in names for run in _runs(name))


def _spellings(name: str) -> Iterator[str]:
    """Yield a module's name, and that of the module which vLLM makes of it and others."""
    yield name
    parent, _, last = name.rpartition(".")
    if last in _FUSED:
        yield f"{parent}.{_FUSED[last]}"


def _ends(name: str) -> Iterator[str]:
    """Yield a name and the dotted parts that it begins or ends with, the longest first."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        yield from (".".join(parts[:count]), ".".join(parts[-count:]))


def _runs(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[first:last]) for first, last in combinations(range(len(parts) + 1), 2))


def _names(target: str, name: str) -> bool:
    return bool(re.match(target[3:], name)) if target.startswith("re:") else target == name


def head_scheme(quantization: Quantization | None, *, multimodal: bool = False) -> Scheme | None:
    """Return the scheme of the output head; None if it is not quantized."""
    if quantization is None or quantization.head is False:
        return None
    kind = LINEAR_CLASS if quantization.head else HEAD_CLASS
    own, other = reversed(HEAD_NAMES) if multimodal else HEAD_NAMES
    # compressed-tensors names the head by either spelling, and a target of the model's own wins over an expression
    # that ignores only the other one.
    by_own_name = quantization.method == COMPRESSED and other not in quantization.ignore
    return (by_own_name and quantization.scheme((own,), kind)) or quantization.scheme(HEAD_NAMES, kind)

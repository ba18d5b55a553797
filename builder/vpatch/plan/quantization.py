"""How a checkpoint is quantized, read from its config: the method, and the scheme of each module."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

from vpatch.plan.checkpoint_files import Fields

HEAD_NAMES = ("lm_head", "language_model.lm_head")  # in a language model, and in a multimodal one
HEAD_CLASS, LINEAR_CLASS = "ParallelLMHead", "ParallelLinear"  # endings of the vLLM classes that targets name

COMPRESSED = "compressed-tensors"
_FP8 = {"FP8": "fp8-tensor", "FP8_PER_CHANNEL_PER_TOKEN": "fp8-channel", "FP8_PB_WO": "fp8-block"}
_LONGEST, _PATTERNS = 4096, 1000


@dataclass(frozen=True)
class Scheme:
    """How a weight is stored: the format's name, and bytes per parameter, scales included."""

    name: str
    size: float


BF16 = Scheme("bfloat16", 2.0)


@dataclass(frozen=True)
class Quantization:
    """A method, and its targets in order, each with its scheme (None: not quantized).

    It skips modules that are named in `ignore`, have a part between dots in `within`, or match one of `patterns`. It
    quantizes an output head if `head`, or if that is None where a target names it, as in compressed-tensors. `certain`
    is False if the config does not determine sizes.
    """

    method: str
    targets: tuple[tuple[str, Scheme | None], ...] = ()
    ignore: frozenset[str] = field(default_factory=frozenset)
    within: frozenset[str] = field(default_factory=frozenset)
    patterns: tuple[re.Pattern[str], ...] = ()
    head: bool | None = None
    certain: bool = True

    def has(self, scheme: str) -> bool:
        """Whether any target is of the scheme with this name."""
        return any(found is not None and found.name == scheme for _, found in self.targets)

    def scheme(self, names: Iterable[str], kind: str = LINEAR_CLASS) -> Scheme | None:
        """Return the scheme of a module of class `kind` with any of `names`; None: not quantized.

        Ignoring wins over targeting, and a target by name over one by class, as in compressed-tensors.
        """
        names = tuple(names)
        if any(name in self.ignore or any(p.match(name) for p in self.patterns) for name in names):
            return None
        if self.within and any(run in self.within for name in names for run in _runs(name)):
            return None
        named = (target for target in self.targets if any(_names(target[0], name) for name in names))
        by_class = (target for target in self.targets if _names(target[0], kind) or target[0].lower() in kind.lower())
        found = next(named, None) or next(by_class, None)
        return found[1] if found else None


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


def kv_cache_of(config: Fields, modelopt: Fields | None = None) -> str | None:
    """Return what `--kv-cache-dtype auto` resolves to: FP8 if the checkpoint has scales for it, else None."""
    for place in _places(config, modelopt):
        scaled = place.inside("kv_cache_scheme").data or place.inside("quantization").inside("kv_cache_scheme").data
        algorithm = place.text("kv_cache_quant_algo") or place.inside("quantization").text("kv_cache_quant_algo")
        if scaled or algorithm.upper() == "FP8":
            return "fp8"
    return None


def quantization_of(config: Fields, modelopt: Fields | None = None) -> Quantization | None:
    """Read `quantization_config`, or `modelopt`, the hf_quant_config.json; return None if nothing is quantized."""
    found = next((place for place in _places(config, modelopt) if place.data), None)
    if found is None:
        return None
    method = found.text("quant_method").lower().replace("compressed_tensors", COMPRESSED)
    if "producer" in found.data or "quantization" in found.data or method.startswith("modelopt"):
        return _modelopt(found)
    if not method:
        found.wrong("quant_method", "is missing")
    if method == COMPRESSED:
        return _compressed(found)
    if method == "fp8":
        block = found.data.get("weight_block_size")
        ignore = found.texts("ignored_layers") or found.texts("modules_to_not_convert")
        # Fp8Config gives a method to linear layers, experts and attention, never to a head.
        return _everywhere(method, Scheme("fp8-block" if block else "fp8-tensor", 1.0), ignore, head=False)
    if method.startswith(("awq", "gptq")):
        bits = found.number("bits", "w_bit", default=4, most=16)
        group = found.number("group_size", "q_group_size", default=128, least=-1, most=1 << 16)
        size = bits / 8 + ((2 + bits / 8) / group if group > 0 else 0.0)
        ignore = found.texts("modules_to_not_convert")
        return _everywhere(method, Scheme(f"int{bits}", size), ignore, head=found.flag("lm_head", default=False))
    return Quantization(method, head=False, certain=False)


def _places(config: Fields, modelopt: Fields | None) -> list[Fields]:
    places = [config.inside(key) for key in ("quantization_config", "compression_config")]
    return [*places, config.inside("text_config").inside("quantization_config"), *([modelopt] if modelopt else [])]


def _everywhere(method: str, scheme: Scheme, ignore: Iterable[str], *, head: bool) -> Quantization:
    """Return a method for each linear layer that `ignore` does not name: whole, by a dotted part, or by wildcards."""
    stripped = [name.strip("*.") for name in dict.fromkeys(ignore)]
    wild = tuple(re.compile(fnmatch.translate(f"*{name}*")) for name in stripped if "*" in name)
    within = frozenset(name for name in stripped if name and "*" not in name)
    return Quantization(method, (("Linear", scheme),), within=within, patterns=wild[:_PATTERNS], head=head)


def _modelopt(found: Fields) -> Quantization:
    inner = found.inside("quantization") if "quantization" in found.data else found
    algorithm = inner.text("quant_algo").upper()
    ignore = inner.texts("exclude_modules") or found.texts("ignore")
    if algorithm == "NVFP4":
        group = inner.number("group_size", default=16, most=1 << 16)
        return _everywhere("modelopt_fp4", Scheme("nvfp4", 0.5 + 1 / group), ignore, head=True)
    if algorithm in _FP8:
        return _everywhere("modelopt", Scheme(_FP8[algorithm], 1.0), ignore, head=True)
    return Quantization("modelopt_mixed" if algorithm == "MIXED_PRECISION" else "modelopt", head=False, certain=False)


def _compressed(found: Fields) -> Quantization:
    targets: list[tuple[str, Scheme | None]] = []
    groups = found.inside("config_groups")
    for name in groups.data:
        group = groups.inside(name)
        named = group.texts("targets")
        if len(named) == 1 and named[0].endswith("Attention"):  # scales of a KV cache
            continue
        scheme = _scheme(group, found.text("format"))
        targets += [(target, scheme) for target in named if _expression(group, "targets", target)]
    ignore = [name for name in found.texts("ignore") if _expression(found, "ignore", name)]
    patterns = tuple(re.compile(name[3:]) for name in dict.fromkeys(ignore) if name.startswith("re:"))
    if len(patterns) > _PATTERNS:
        found.wrong("ignore", f"has {len(patterns):,} expressions")
    exact = frozenset(name for name in ignore if not name.startswith("re:"))
    return Quantization(COMPRESSED, tuple(targets), exact, patterns=patterns)


def _scheme(group: Fields, whole: str) -> Scheme | None:
    """Read the scheme of a group of compressed-tensors; `whole` is the format of the whole config."""
    weights = group.inside("weights")
    if not weights.data:
        return None
    bits = weights.number("num_bits", default=8, most=64)
    kind, strategy = weights.text("type", "int"), weights.text("strategy", "tensor")
    size = bits / 8
    if strategy in ("group", "tensor_group"):
        # FP4 has scales of one byte, integers of two.
        size += (1 if kind == "float" else 2) / weights.number("group_size", default=128, most=1 << 16)
    if kind == "float" and bits == 8:
        return Scheme(f"fp8-{strategy}", size)
    name = group.text("format", "" if whole == "mixed-precision" else whole)
    return Scheme(name or f"{kind}{bits}-{strategy}", size)


def _expression(fields: Fields, key: str, name: str) -> bool:
    """Return whether a name, or an expression after `re:`, can be matched; note it if not."""
    if not name.startswith("re:"):
        return True
    try:
        re.compile(name[3:])
    except (re.error, RecursionError, OverflowError) as error:
        fields.wrong(key, f"has an expression that cannot be read: {name[:80]}: {error}")
        return False
    # Nested or many repetitions may take years to match.
    if len(name) > _LONGEST or len(re.findall(r"(?<!\\)[*+{]", name)) > 6 or re.search(r"\)[*+{]", name):
        fields.wrong(key, f"has an expression that is too intricate: {name[:80]}")
        return False
    return True

"""How a checkpoint is quantized: the method, and the scheme of each module, from config.json and hf_quant_config.json.

A method that is not here is known by its name only, and plan then does not know how large the weights are.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from vpatch.plan.checkpoint_files import Fields

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
_LONGEST, _PATTERNS = 4096, 1000
_SPECIAL = re.compile(r"[*+?^$()\[\]{}|\\]")  # what makes a name of AutoRound's an expression
_FLOAT32, _BLOCK = 4, 64  # bytes, and weights to a scale: bitsandbytes in four bits, once vLLM has loaded it
_MX_GROUP = 32  # weights that share a scale of one byte in the MX formats

MXFP4, MXFP8 = Scheme("mxfp4", 0.5 + 1 / _MX_GROUP), Scheme("mxfp8", 1.0 + 1 / _MX_GROUP)
_MODELOPT = {
    "FP8": Scheme("fp8-tensor", 1.0),
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme("fp8-channel", 1.0),
    "FP8_PB_WO": Scheme("fp8-block", 1.0),
    "MXFP8": MXFP8,
}
_NVFP4 = ("NVFP4", "W4A16_NVFP4")


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
        if any(name in self.ignore or any(pattern.match(name) for pattern in self.patterns) for name in names):
            return None
        if self.within and any(run in self.within for name in names for run in _runs(name)):
            return None
        if self.named and (single := next((one for name in names for one in _ends(name) if one in self.named), None)):
            return self.named[single]
        by_name = (target for target in self.targets if any(_names(target[0], name) for name in names))
        by_class = (target for target in self.targets if _names(target[0], kind) or target[0].lower() in kind.lower())
        found = next(by_name, None) or next(by_class, None)
        return found[1] if found else None


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


def kv_cache_of(config: Fields, modelopt: Fields | None = None) -> str | None:
    """Return what `--kv-cache-dtype auto` resolves to: FP8 or NVFP4 if the checkpoint has scales for it, else None."""
    for place in _places(config, modelopt):
        scaled = place.inside("kv_cache_scheme").data or place.inside("quantization").inside("kv_cache_scheme").data
        algorithm = place.text("kv_cache_quant_algo") or place.inside("quantization").text("kv_cache_quant_algo")
        if algorithm.upper() == "NVFP4" or scaled.get("num_bits") == 4:
            return "nvfp4"
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
        return _grouped(found, method)
    if method in ("auto-round", "auto_round", "inc"):
        return _auto_round(found)
    if method == "bitsandbytes":
        return _bitsandbytes(found)
    if method == "mxfp4":  # experts only: Mxfp4Config leaves linear layers and attention alone
        return Quantization(method, (("re:.*\\.experts\\.", MXFP4),), head=False)
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


def _grouped(found: Fields, method: str) -> Quantization:
    """Read AWQ or GPTQ: integers in groups. `dynamic` has exceptions, as in `get_dynamic_override`."""
    base = _integers(found, "bits", "w_bit")
    ignore, head = found.texts("modules_to_not_convert"), found.flag("lm_head", default=False)
    whole = _everywhere(method, base, ignore, head=head)
    rules = found.inside("dynamic")
    skipped, targets = list(whole.patterns), []
    for rule in _limited(found, "dynamic", rules.data):
        pattern = rule.removeprefix("-:").removeprefix("+:")
        if not _expression(found, "dynamic", f"re:{pattern}"):
            continue
        if rule.startswith("-:"):
            skipped.append(re.compile(pattern))
        else:
            targets.append((f"re:{pattern}", _integers(rules.inside(rule), "bits", base=base)))
    parts = found.data.get("modules_in_block_to_quantize")
    groups = parts if isinstance(parts, list) else []
    named = [name for group in groups for name in (group if isinstance(group, list) else [group])]
    some = [(f"re:.*{re.escape(str(name))}", base) for name in _limited(found, "modules_in_block_to_quantize", named)]
    return replace(whole, targets=(*targets, *(some or whole.targets)), patterns=tuple(skipped))


def _integers(found: Fields, *keys: str, base: Scheme | None = None) -> Scheme:
    """Read the scheme of integers in groups; the default is `base`."""
    if base and not any(map(found.has, (*keys, "group_size"))):
        return base
    bits = found.number(*keys, default=int(base.name[3:]) if base else 4, most=16)
    return _grouped_integers(bits, found.number("group_size", "q_group_size", default=128, least=-1, most=1 << 16))


def _grouped_integers(bits: int, group: int) -> Scheme:
    """Return the scheme of integers of which `group` share a scale of two bytes and a zero; -1: those of a row."""
    return Scheme(f"int{bits}", bits / 8 + ((2 + bits / 8) / group if group > 0 else 0.0))


def _auto_round(found: Fields) -> Quantization:
    """Read AutoRound: one scheme for the blocks that it names, and one for each module in `extra_config`.

    A name there may be an expression, which is searched for. Source: vLLM's `INCConfig`.
    """
    kind, method = found.text("data_type", "int"), "auto-round"
    if kind != "int" and "mx_fp" not in kind:
        return Quantization(method, head=False, certain=False)

    def scheme(fields: Fields) -> Scheme | None:
        bits = fields.number("bits", default=found.number("bits", default=4, most=16), most=16)
        if bits >= 16:
            return None
        if kind != "int":
            return MXFP4 if bits == 4 else MXFP8
        usual = found.number("group_size", default=128, least=-1)
        return _grouped_integers(bits, fields.number("group_size", default=usual, least=-1))

    extra = found.inside("extra_config")
    expressions = [name for name in extra.data if _SPECIAL.search(name)]
    named = {name: scheme(extra.inside(name)) for name in extra.data if not _SPECIAL.search(name)}
    targets = [
        (f"re:.*(?:{name})", scheme(extra.inside(name)))
        for name in _limited(found, "extra_config", expressions)
        if _expression(found, "extra_config", f"re:{name}")
    ]
    blocks = found.data.get("block_name_to_quantize") or found.data.get("to_quant_block_names")
    starts = blocks.split(",") if isinstance(blocks, str) else blocks if isinstance(blocks, list) else []
    everywhere = [f"re:{re.escape(str(start).strip())}" for start in starts] or ["Linear"]
    targets += [(target, scheme(found)) for target in everywhere]
    return Quantization(method, tuple(targets), named=named)


def _bitsandbytes(found: Fields) -> Quantization:
    """Read bitsandbytes. vLLM makes float32 of the scales, also where the checkpoint has quantized them."""
    if found.flag("load_in_8bit", default=False):
        scheme = Scheme("int8", 1.0)
    else:
        scheme = Scheme(found.text("bnb_4bit_quant_type", "fp4"), 0.5 + _FLOAT32 / _BLOCK)
    skipped = frozenset(found.texts("llm_int8_skip_modules"))
    return Quantization("bitsandbytes", (("Linear", scheme),), within=skipped, head=False)


def _modelopt(found: Fields) -> Quantization:
    inner = found.inside("quantization") if "quantization" in found.data else found
    algorithm = inner.text("quant_algo").upper()
    ignore = inner.texts("exclude_modules") or found.texts("ignore")
    if algorithm == "MIXED_PRECISION":
        return _modelopt_mixed(inner, ignore)
    if scheme := _modelopt_scheme(inner, algorithm):
        method = "modelopt_fp4" if algorithm in _NVFP4 else "modelopt"
        return _everywhere(method, scheme, ignore, head=True)
    return Quantization("modelopt", head=False, certain=False)


def _modelopt_scheme(fields: Fields, algorithm: str) -> Scheme | None:
    if algorithm in _NVFP4:
        return Scheme("nvfp4", 0.5 + 1 / fields.number("group_size", default=16, most=1 << 16))
    return _MODELOPT.get(algorithm)


def _modelopt_mixed(found: Fields, ignore: Iterable[str]) -> Quantization:
    """Read the algorithm of each module in `quantized_layers`; the others are not quantized."""
    layers = found.inside("quantized_layers")
    schemes = {
        name: _modelopt_scheme(layers.inside(name), layers.inside(name).text("quant_algo").upper())
        for name in layers.data
    }
    whole = _everywhere("modelopt_mixed", Scheme("", 0.0), ignore, head=True)
    return replace(whole, targets=(), named=schemes, certain=bool(schemes) and None not in schemes.values())


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
    expressions = [name for name in dict.fromkeys(ignore) if name.startswith("re:")]
    patterns = tuple(re.compile(name[3:]) for name in _limited(found, "ignore", expressions))
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


def _limited(fields: Fields, key: str, expressions: Collection[str]) -> Collection[str]:
    """Return the expressions, or note that they are more than can be matched in a second."""
    if len(expressions) > _PATTERNS:
        fields.wrong(key, f"has {len(expressions):,} expressions")
        return ()
    return expressions


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

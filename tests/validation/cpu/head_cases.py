"""Test cases of output heads: their quantization, their split among ranks, and how configs name them."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Any

MULTIMODAL, BARE = "language_model.lm_head", "lm_head"


def group(*targets: str, kind: str = "block", activations: str = "dynamic", block: tuple[int, int] = (128, 128)) -> Any:
    """Return a config group as llm-compressor writes it: FP8 weights by `kind`, activations "static" or none ("")."""
    fp8 = {"num_bits": 8, "type": "float", "symmetric": True}
    weights = fp8 | {"strategy": kind, "dynamic": False} | ({"block_structure": list(block)} if kind == "block" else {})
    per_token = {"strategy": "group", "group_size": block[1]} if kind == "block" else {"strategy": "token"}
    inputs = {"dynamic": fp8 | per_token | {"dynamic": True}, "static": fp8 | {"strategy": "tensor", "dynamic": False}}
    return {
        "targets": list(targets),
        "weights": weights,
        "input_activations": inputs.get(activations),
        "format": "float-quantized",
    }


def nvfp4(*targets: str) -> Any:
    """Return a config group in NVFP4, weights and activations."""
    fp4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
    return {
        "targets": list(targets),
        "weights": fp4 | {"dynamic": False},
        "input_activations": fp4 | {"dynamic": "local"},
        "format": "nvfp4-pack-quantized",
    }


def config(*groups: Any, ignore: tuple[str, ...] = ()) -> Any:
    """Return the `quantization_config` of a checkpoint."""
    return {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "ignore": list(ignore),
        "config_groups": {f"group_{index}": group for index, group in enumerate(groups)},
    }


@dataclass(frozen=True)
class Head:
    """A head, and how its checkpoint stores it; `kind` "scalar" is a tensor scale without a dimension.

    `added` counts the tokens beyond the checkpoint's vocabulary; rows are padded to a multiple of `padding`.
    """

    kind: str
    vocab: int = 1024
    ranks: int = 1
    hidden: int = 256
    block: tuple[int, int] = (128, 128)
    padding: int = 64
    added: int = 0
    activations: str = "dynamic"

    @property
    def multiple(self) -> int:
        """The multiple that rows are padded to in the end, so that every rank has whole blocks."""
        return (
            lcm(self.padding, self.block[0] * self.ranks) if self.kind == "block" and self.ranks > 1 else self.padding
        )

    @property
    def quantization(self) -> Any:
        kind = "tensor" if self.kind == "scalar" else self.kind
        return config(group(BARE, kind=kind, activations=self.activations, block=self.block))


KINDS = ("block", "channel", "tensor", "scalar")

# Vocabularies of real models, whose blocks stock padding would cut in two at these ranks.
NARROW = 32, (128, 32)  # their width, and that of their blocks
REAL = {151_936: (2, 4, 8), 200_064: (4,), 248_320: (8,)}
CUT: dict[str, Head] = {
    "1026 TP2": Head("block", 1026, 2),
    "1026 TP4": Head("block", 1026, 4),
    "1000 TP8": Head("block", 1000, 8),
    "added tokens TP2, padded to 64": Head("block", 1000, 2, added=16),
    "all rows fit, the vocabulary's do not": Head("block", 1026, 2, added=130),
    "an odd padding": Head("block", 1026, 2, padding=96),
    **{f"{v} TP{n}": Head("block", v, n, *NARROW) for v, ranks in REAL.items() for n in ranks},
}

LOADED: dict[str, Head] = {
    **{f"{k} {v} TP{n}": Head(k, v, n) for k in KINDS for v in (1024, 1000, 1026) for n in (1, 2, 4) if v != 1026},
    **{f"{k} 1026 TP1": Head(k, 1026) for k in KINDS},
    **{f"{k} 1026 TP{n}": Head(k, 1026, n) for k in KINDS[1:] for n in (2, 4)},
    "block, a rank of padding": Head("block", 300, 4, padding=512),
    "block, a hidden size that is no multiple": Head("block", 1000, 2, hidden=192),
    "block [64, 32]": Head("block", 1000, 4, block=(64, 32)),
    "block [256, 128]": Head("block", 1000, 4, block=(256, 128)),
    "block, added tokens": Head("block", 1000, added=16),
    "block, added tokens TP2": Head("block", 1000, 2, padding=256, added=16),
    "channel, added tokens TP2": Head("channel", 1000, 2, added=16),
    "tensor, static": Head("tensor", 1000, 2, activations="static"),
    "scalar, static": Head("scalar", 1000, 2, activations="static"),
    "block, weights only": Head("block", 1000, 2, activations=""),
    "channel, weights only": Head("channel", 1000, 2, activations=""),
    # Qwen3.6, but narrow.
    **{f"block 248320 TP{n}": Head("block", 248_320, n, *NARROW) for n in (1, 2, 4)},
    **{f"block {name}": head for name, head in CUT.items()},
}

# A tensor of the checkpoint with a wrong shape: by so many rows and columns, or as a whole.
MISSHAPEN: dict[str, tuple[Head, str, tuple[int, ...]]] = {
    "block, a row more": (Head("block", 1000), "weight_scale", (9, 2)),
    "block, a row less": (Head("block", 1000), "weight_scale", (7, 2)),
    "block, a row more TP2": (Head("block", 1000, 2), "weight_scale", (9, 2)),
    "block, a column more": (Head("block", 1000), "weight_scale", (8, 3)),
    "block, one column": (Head("block", 1000), "weight_scale", (8, 1)),
    "block, transposed": (Head("block", 1000), "weight_scale", (2, 8)),
    "block, one row a token": (Head("block", 1000), "weight_scale", (1000, 2)),
    "block, flat": (Head("block", 1000), "weight_scale", (16,)),
    "channel, a row more": (Head("channel", 1000), "weight_scale", (1001, 1)),
    "channel, padded": (Head("channel", 1000), "weight_scale", (1024, 1)),
    "channel, two columns": (Head("channel", 1000), "weight_scale", (1000, 2)),
    "channel, flat": (Head("channel", 1000), "weight_scale", (1000,)),
    "weight, a row less": (Head("block", 1000), "weight", (999, 256)),
    "weight, one column": (Head("channel", 1000), "weight", (1000, 1)),
    "weight, a column more": (Head("channel", 1000), "weight", (1000, 257)),
}

# Tied heads with a bias: with block scales and several ranks, they are padded to more rows than the embeddings.
TIED_BIAS = {
    f"{kind} TP{ranks}, {added} added": Head(kind, 1026, ranks, added=added)
    for kind in ("block", "channel")
    for ranks in (1, 2, 4)
    for added in (0, 40)
}

NAMES = (
    BARE,
    MULTIMODAL,
    "re:.*lm_head",
    "re:lm_head",
    r"re:^lm_head$",
    r"re:.*language_model\.lm_head$",
    "re:.*head.*",
)
TARGETED: dict[str, Any] = {
    **{f"target {name}": config(group(name, kind="channel")) for name in NAMES},
    **{f"target Linear and {name}": config(nvfp4("Linear"), group(name, kind="channel")) for name in NAMES},
}
# An expression that matches only the other spelling loses to a target of the head's own name; a plain name does not.
ONE_SPELLING = {"re:lm_head": BARE, r"re:^lm_head$": BARE, r"re:.*language_model\.lm_head$": MULTIMODAL}
UNTARGETED: dict[str, Any] = {
    "target Linear": config(group("Linear", kind="channel")),
    **{f"target Linear, ignore {name}": config(group("Linear", kind="channel"), ignore=(name,)) for name in NAMES},
    **{
        f"target {target}, ignore {name}": config(group(target, kind="channel"), ignore=(name,))
        for target in (BARE, "re:.*lm_head")
        for name in NAMES
        if (target, name) != (BARE, r"re:.*language_model\.lm_head$") and not (target != BARE and name in ONE_SPELLING)
    },
    "target another": config(group("re:.*lm_heads", "embed_lm_head", "visual.lm_head", "lm_head.0", kind="channel")),
}
UNNAMED = [name for name in UNTARGETED if name.startswith(("target Linear", "target another"))]

NO_LANGUAGE_MODEL = "re:^(?!.*language_model).*$"
APART: dict[str, tuple[Any, str]] = {
    **{
        f"target re:.*lm_head, ignore {name}": (config(group("re:.*lm_head", kind="channel"), ignore=(name,)), ignored)
        for name, ignored in ONE_SPELLING.items()
    },
    r"target lm_head, ignore re:.*language_model\.lm_head$": (
        config(group(BARE, kind="channel"), ignore=(r"re:.*language_model\.lm_head$",)),
        MULTIMODAL,
    ),
    "ignore what has no language_model": (
        config(group("Linear", "re:.*lm_head", kind="channel"), ignore=(NO_LANGUAGE_MODEL,)),
        BARE,
    ),
}
"""Configs that quantize the head by one spelling and ignore it by the other, with the ignored spelling."""

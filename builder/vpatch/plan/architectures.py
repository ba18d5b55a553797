"""The architectures whose memory plan knows layer by layer: how to read a config of each, by `architectures.toml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vpatch.plan.deployment import inherited, table


@dataclass(frozen=True)
class Architecture:
    """How to read a config of one architecture.

    `defaults` holds for keys that are left out. Without one, there are as many KV heads as heads, and `head_dim` is
    hidden size / heads; 0 means that vLLM requires the key. `window` is the default of `sliding_window`, which counts
    only with `use_sliding_window` if `switched`. Without `layer_types`, each `pattern`-th layer has full attention, the
    others a window; 0: all have it. Of a hybrid, they are then of the kind `every`, but for those that are numbered.
    `draft` is the key that counts layers of multi-token prediction. `state` names the keys of the states, in `STATES`;
    `state_dtype` is the key of their dtype, without which it is the model's. `single`: a layer is a mixer or an MLP,
    not both. `gated`: queries have an output gate of their size. `shared` is the key for the width, or the number, of
    shared experts. `mlp` is how many matrices a dense layer and an expert have. `latent`: it has multi-head latent
    attention. `vision` names the tower. `chunked`: the window is a chunk, of layers with rotary positions. `parallel`:
    as in Gemma 4, experts, if there are any, are beside a dense layer, and layers can share a KV cache. `since` is the
    first release that has it. `fused`: queries, keys and values have one matrix in the checkpoint. `undrafted`: vLLM
    does not load the layers of multi-token prediction. `listed_since` is the first release that reads
    `layers_block_type`. An entry without names is a decoder, by its own `model_type`, of the model that it is `like`.
    """

    names: Sequence[str]
    model_type: str
    defaults: Mapping[str, int]
    state: str = ""
    experts: bool = False
    tied: bool = False
    vision: str = ""
    since: str = ""
    window: int = 0
    chunked: bool = False
    inclusive: bool = False
    parallel: bool = False
    pattern: int = 0
    every: str = ""
    switched: bool = False
    draft: str = ""
    state_dtype: str = ""
    single: bool = False
    gated: bool = False
    shared: str = ""
    mlp: int = 3
    latent: bool = False
    fused: bool = False
    undrafted: bool = False
    listed_since: str = ""

    @property
    def hybrid(self) -> bool:
        """Whether its layers may keep a state."""
        return bool(self.state)


_TABLE = table("architectures.toml")
ARCHITECTURES = tuple(Architecture(**row) for row in inherited(_TABLE["architecture"], "model_type"))
STATES: Mapping[str, Mapping[str, Sequence[str]]] = _TABLE["states"]
KEYS: Mapping[str, Sequence[str]] = _TABLE["keys"]
TOWERS: Mapping[str, Mapping[str, Any]] = {row["name"]: row for row in inherited(_TABLE["tower"], "name")}
KNOWN = {name: architecture for architecture in ARCHITECTURES for name in architecture.names}
DECODERS = {architecture.model_type: architecture for architecture in ARCHITECTURES if not architecture.names}

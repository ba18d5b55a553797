"""One engine to run on a GPU, as data, and the arguments that start it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import SpecifierSet

from tests.validation.gpu.full_size import FAMILIES, FULL_SIZE
from tests.validation.gpu.models import DUMMY

TQ = "turboquant_4bit_nc"
STOCK, PATCHED, TILES = TREES = ("stock", "patched", "tiles")
WORKSPACE, DECODE, KEYED, FARM = EXTRA = ("workspace", "decode", "keyed", "farm")
"""Trees that are made only for the probes that name them: one with the overlay `turboquant-workspace` alone, two with
default overlays and `turboquant-decode` or `compile-cache-key`, and the stock tree, run by `vpatch run` with the
overlays of `tiles`."""
CHUNK = 2048
V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
HOOKED = frozenset({"counts", "counts early", "replay"})
"""Steps with hooks in the V1 model runner, which is not every release's default."""
TRITON_DELTA_NET = {"gdn_prefill_backend": "triton"}  # the other kernel is FlashInfer's

EAGER: Mapping[str, Any] = {"enforce_eager": True, "compilation_config": None}
SMALL_CHUNKS = {**EAGER, "max_num_batched_tokens": 128}
"""Up to 128 tokens, TurboQuant continues a prompt with its decode kernel."""
LARGE_CHUNKS = {"max_num_batched_tokens": 8192}


@dataclass(frozen=True)
class Probe:
    """One engine.

    steps: what it does, as (action, lengths in tokens). "serve" answers prompts one by one; "watched" also watches the
    device's memory; "logprobs" also keeps the log-probability of each prompt token; "prefill" and "decode" measure
    times; "account" records vLLM's own memory account, and takes no lengths; others are in `drafting.STEPS`. Without
    steps the probe runs upstream's test files.
    budget_gib: let vLLM size the KV cache from this much device memory; 0: the KV cache gets 8 GiB.
    releases: the releases on which its result is meaningful.
    references: the (tree, probe) pairs to compare its log-probabilities with.
    of: the (tree, probe) pairs whose answers it replays, as far as they run on the release.
    alone: it measures memory or time, so nothing else may run beside it.
    cold: on the tree `farm`: `vpatch run` makes the farm first.
    environment: variables that it has beside those of all probes.
    takes_turns: its trees' engines are on the device together with those of other such probes, and measure in turn.
    least_s, limit_s: it does not start with less time left, and is stopped after that.
    """

    name: str
    model: str = ""
    kv: str = "auto"
    steps: tuple[tuple[str, tuple[int, ...]], ...] = ()
    engine: Mapping[str, Any] = field(default_factory=dict)
    trees: tuple[str, ...] = TREES
    budget_gib: int = 0
    releases: str = ">=0.20"
    references: tuple[tuple[str, str], ...] = ()
    of: tuple[tuple[str, str], ...] = ()
    alone: bool = False
    cold: bool = False
    takes_turns: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    least_s: int = 45
    limit_s: int = 150

    @property
    def chunk(self) -> int:
        """Tokens of a prompt that one step takes."""
        return int(self.engine.get("max_num_batched_tokens", CHUNK))

    @property
    def variables(self) -> Mapping[str, str]:
        """What the environment of its process has beside that of others."""
        hooked = not HOOKED.isdisjoint(action for action, _ in self.steps)
        return {**(V1 if hooked else {}), **self.environment}

    def says_something_of(self, release: str) -> bool:
        return SpecifierSet(self.releases).contains(release)


def engine_arguments(probe: Probe, models: str, device_mib: int) -> dict[str, Any]:
    """Return the arguments of vLLM's `LLM`.

    Args:
        probe: the probe.
        models: the folder of the checkpoints.
        device_mib: the device's memory.
    """
    arguments: dict[str, Any] = {
        "model": f"{models}/{probe.model}",
        "kv_cache_dtype": probe.kv,
        "load_format": "dummy" if probe.model in (*DUMMY, *FULL_SIZE, *FAMILIES) else "auto",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "seed": 0,
        "max_model_len": 65536,
        "max_num_batched_tokens": CHUNK,
        "max_num_seqs": 8,
        "gpu_memory_utilization": 0.05,
        "kv_cache_memory_bytes": 8 << 30,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        # No torch.compile, which takes a minute at each start, but CUDA graphs, whose capture locks the workspace.
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    }
    if probe.model.startswith("hyb") or probe.model in FULL_SIZE:
        arguments |= {"language_model_only": True, "additional_config": TRITON_DELTA_NET}
    if probe.budget_gib:
        arguments |= {"gpu_memory_utilization": probe.budget_gib * 1024 / device_mib, "kv_cache_memory_bytes": None}
    arguments |= probe.engine
    return {name: value for name, value in arguments.items() if value is not None}

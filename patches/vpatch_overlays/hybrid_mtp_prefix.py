"""Prefix caching on hybrid models with speculative decoding: a hit covers only pages that hold data.

A draft model needs the last hidden state of a cached prefix, so vLLM drops the last block that it finds in the prefix
cache, and looks one block further to make up for it. From 0.20.0 to 0.25.1 it looks one block further in Mamba layers,
too, and drops nothing there. If a state is cached at the end of that block, the hit grows by a block that attention
does not have: its page is fresh, counts as computed, and holds whatever was written there before, possibly by another
request. There is no error. The answer is wrong from there on.

A prompt that is sent twice is safe, since vLLM stores no state at its end. A conversation is not: decoding an answer
past the end of a block (528 to 4,192 tokens) stores the state that the next turn then finds.

The overlay leaves the additional block out for Mamba layers, as vLLM does from 0.26.0 on. It costs at most one block of
a hit. It matters with prefix caching only, which hybrid models have off by default up to 0.25.1.

Up to 0.25.1, a hybrid model with speculative decoding and prefix caching needs this overlay and `hybrid-mtp-counts`.
"""

from vpatch import File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared

coordinator = File("vllm/v1/core/kv_cache_coordinator.py")
find = coordinator.function("HybridKVCacheCoordinator.find_longest_cache_hit")
find_state = File("vllm/v1/core/single_type_kv_cache_manager.py").function("MambaManager.find_longest_cache_hit")

FURTHER = "curr_hit_length + spec.block_size"
ONLY_ATTENTION = "curr_hit_length + (0 if isinstance(spec, MambaSpec) else spec.block_size)"

# The search passes the length of the hit so far to every kind of layer: up to 0.19.
searches_no_further = find.contains(
    "manager_cls.find_longest_cache_hit(block_hashes=..., max_length=curr_hit_length, kv_cache_group_ids=...,"
    " block_pool=..., kv_cache_spec=..., use_eagle=self.use_eagle, alignment_tokens=...)"
)
# The search treats Mamba layers in a way of its own, as from 0.26 on.
names_states = find.contains("MambaSpec") | find.contains("(...).MambaSpec")
# The search for Mamba states drops its last block, as vllm-project/vllm#48375 and #57128 propose. The additional block
# would then be right.
drops_states = (
    find_state.contains("computed.pop()")
    | find_state.contains("if use_eagle: ...")
    | find_state.contains("if drop_eagle_block: ...")
)


def needed(use: Use) -> Need:
    """Return whether the use finds cached prefixes of a hybrid model while it speculates."""
    if no := shared.not_speculating_hybrid(use):
        return no
    if not use.prefix_caching:
        return Need(needed=False, because="prefix caching is off")
    return Need(needed=True, because="with speculative decoding, a cached prefix may include a page without data")


overlay = Overlay(
    summary="Prefix caching with speculative decoding on hybrid models: no hit beyond the cached pages.",
    symptoms=(
        "With speculative decoding and prefix caching, a hybrid model (Qwen3.5, Qwen3.6) answers well at first, and in"
        " later turns of a conversation with loops or text that does not belong there.",
    ),
    upstream=("vllm-project/vllm#45614", "vllm-project/vllm#47861", "vllm-project/vllm#43559"),
    needed=needed,
    releases={
        ">=0.18,<0.20": "not_applicable: the search for Mamba states goes no block further",
        ">=0.20,<0.26": "pending: the search for Mamba states goes one block further than that for attention",
        ">=0.26": "merged: Mamba layers are left out",
    },
    probes=(probe(shared.PROBES, "hybrid_mtp_prefix"),),
    parts=(
        Part(
            "margin",
            # Only other layers than Mamba's look one block further, as from 0.26 on; both names of the flag count.
            merged=find.contains("drop_eagle_block and not isinstance(spec, MambaSpec)")
            | find.contains("use_eagle and not isinstance(spec, MambaSpec)"),
            absent=searches_no_further.means("this vLLM looks no block further"),
            shapes={
                "0.20": Shape(
                    when=~names_states & ~drops_states,
                    edits=[
                        find.replace_expression(FURTHER, ONLY_ATTENTION),
                        coordinator.ensure_import("from vllm.v1.kv_cache_interface import MambaSpec"),
                    ],
                ),
            },
        ),
    ),
)

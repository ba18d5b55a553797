"""Prefix caching on hybrid models with blocks of several sizes: positions of states are counted in their own blocks.

From 0.24 on, layers of one model may have blocks of different sizes. So it is where a draft model's attention with a
sliding window, or a buffer of a few tokens, has smaller blocks than the layers that keep a state. vLLM then sets
`cache_config.block_size` to the smallest of them. Two places go on taking that for the blocks of states.

Part `split`: with prefix caching (mode "align"), the scheduler ends the chunks of a prompt where blocks of states end,
since a state is saved there. With the smaller size, a chunk ends anywhere within a block of states, and the state of
that place is kept as that of the block. Prompts that find it in the cache get wrong answers; others find nothing.

Part `column`: the second model runner counts in which column of the block table a request's state is. With the smaller
size it counts too many: the state is copied from another request's block, or the kernel reads beyond the table.

The overlay takes `cache_config.mamba_block_size` in both places, as vLLM does in the second one from 0.32 on. It is
read in each step, since vLLM sets it after it has made the scheduler's class. Where all layers have blocks of one size,
as with an explicit `--block-size`, nothing changes.
"""

from vpatch import File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared

split = File("vllm/v1/core/sched/scheduler.py").function("Scheduler._mamba_block_aligned_split")
states = File("vllm/v1/worker/gpu/model_states/mamba_hybrid.py")
add_request = states.function("MambaHybridModelState.add_request")
choice = File("vllm/v1/worker/gpu/model_states/__init__.py")
sizes = File("vllm/v1/core/kv_cache_utils.py")

SMALLEST, OWN = "self.cache_config.block_size", "self.cache_config.mamba_block_size"
COLUMN = "(new_req_data.num_computed_tokens - 1) // {}"

# Pages of layers get one size by larger blocks alone, up to 0.23: no block is smaller than that of states. (From 0.24
# on a page may be padded instead.)
only_larger_blocks = sizes.contains("if max_page_size % layer_page_size != 0:\n    raise NotImplementedError(...)")
# The second model runner knows no states in the prefix cache: it has no class for hybrid models, up to 0.20, or the
# class keeps no column, up to 0.24.
keeps_no_column = ~choice.contains("MambaHybridModelState") | (
    states.defines("MambaHybridModelState") & ~states.contains("self._mamba_state_idx_gpu")
)


def needed(use: Use) -> Need:
    """Return whether the use caches prefixes of a hybrid model: a plan does not know the blocks of all its layers."""
    no = shared.not_caching_hybrid(use)
    return no or Need(needed=True, because="a layer may have smaller blocks than those that keep a state")


overlay = Overlay(
    summary="Prefix caching on hybrid models with blocks of several sizes: states are counted in their own blocks.",
    symptoms=(
        "With prefix caching and a draft model with a sliding window (DFlash), a hybrid model gives wrong answers, or "
        'dies of "Xid 31" or an illegal memory access in "precopy_mamba_align_fused_kernel" '
        '("_copy_mamba_state_block").',
        "A hybrid model with a draft model of smaller blocks has no hits in the prefix cache.",
    ),
    upstream=("vllm-project/vllm#53142", "vllm-project/vllm#54173"),
    needed=needed,
    releases={
        ">=0.18,<0.24": "not_applicable: no layer has smaller blocks than the layers that keep a state",
        ">=0.24,<0.25": "pending: the scheduler takes the smallest block for that of states",
        ">=0.25,<0.32": "pending: the scheduler and the second model runner take the smallest block for that of states",
        ">=0.32": "pending: the scheduler takes the smallest block for that of states",
    },
    probes=(probe(shared.PROBES, "hybrid_block_units"),),
    parts=(
        Part(
            "split",
            upstream=("vllm-project/vllm#54076",),
            absent=only_larger_blocks.means("this vLLM only makes blocks larger"),
            shapes={"0.24": Shape(when=~only_larger_blocks, edits=split.replace_expression(SMALLEST, OWN))},
        ),
        Part(
            "column",
            upstream=("vllm-project/vllm#55600", "vllm-project/vllm#55601"),
            # The local name that 0.32 gives to the size, and the quotient of it.
            merged=add_request.contains(f"mamba_block_size = {OWN}")
            & add_request.contains(COLUMN.format("mamba_block_size")),
            absent=keeps_no_column.means("the second model runner keeps no states for prefix caching"),
            shapes={"0.25": add_request.replace_expression(COLUMN.format(SMALLEST), COLUMN.format(OWN))},
        ),
    ),
)

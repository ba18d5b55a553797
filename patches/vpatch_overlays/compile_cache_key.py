"""Compiled models, opt-in: what one start compiled is not loaded by another one, whose GPU or kernels differ.

vLLM keeps what `torch.compile` made below `~/.cache/vllm/torch_compile_cache`. With PyTorch 2.10 and newer it loads a
whole model from there, from a folder that is named after the configuration, the environment and the class of the model.
The name does not depend on the kernels that vLLM chose, and up to PyTorch 2.11 it does not depend on the GPU, either.
So a second GPU, another machine with the same home folder or volume, or a start that chooses another kernel gets code
that reads other weights. If they have other names, vLLM dies at start; if they do not, the old kernel runs unnoticed.

The name now also depends on the GPU and on the layers once their weights are loaded: classes, kernels, switches, and
the shapes of all tensors. The first start with the overlay compiles once. An overlay of vpatch that changes a file that
torch.compile traced was noticed before; now one that changes the choice of a kernel is, too.

The graphs of which a model is compiled lie in a second folder, named after the traced files and the GPU, which stays as
it is.

It is opt-in because it helps only where several GPUs or kernels share a cache, and the first start with it compiles
what is there already.

Without the patch, `VLLM_DISABLE_COMPILE_CACHE=1` compiles at each start, and a `VLLM_CACHE_ROOT` for each kind of GPU
keeps them apart.
"""

from vpatch import Companion, File, Need, Overlay, Part, Use, probe

from vpatch_overlays import _shared as shared

decorators = File("vllm/compilation/decorators.py")
call = decorators.function("_support_torch_compile.__call__")
helper = Companion(f"{shared.COMPANIONS}.compile_cache_key")

counts_layers = """
 factors.append(_model_hash_key(self.forward))
+factors.append(layers_key(self))
"""


def needed(_: Use) -> Need:
    """Return that a plan needs no overlay for it: a new cache holds nothing of another GPU."""
    return Need(needed=False, because="opt-in: it matters once another GPU or another kernel has filled the cache")


overlay = Overlay(
    summary="Compiled models are loaded only for the same GPU and the same kernels.",
    symptoms=(
        "vLLM dies at start, in a model that it loaded from the cache of torch.compile, with \"KeyError: 'weight'\","
        " \"KeyError: 'input_global_scale'\" or \"AttributeError: 'NoneType' object has no attribute 'size'\". It"
        " starts once ~/.cache/vllm/torch_compile_cache is removed.",
        "After another GPU or another kernel was chosen, a compiled model still runs the old kernel.",
    ),
    beside=("Directly load AOT compilation",),
    upstream=("vllm-project/vllm#55383", "vllm-project/vllm#55386"),
    needed=needed,
    releases={">=0.18": "pending: neither the GPU nor a kernel is in the name of the folder"},
    opt_in=True,
    probes=(probe(shared.PROBES, "compile_cache_key"),),
    parts=(
        Part(
            "key",
            shapes={"0.18": [call.patch(counts_layers), helper.import_into(decorators, "layers_key")]},
        ),
    ),
)

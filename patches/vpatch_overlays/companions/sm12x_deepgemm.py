"""Whether the DeepGEMM that vLLM imports has kernels for compute capability 12.x.

Imported by `vllm/platforms/cuda.py`, before a platform is chosen: nothing of vLLM at module level.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

SOURCES = "include/deep_gemm/impls"
"""The folder, in the package, of the sources from which DeepGEMM compiles its kernels at run time."""


@cache
def has_sm120_sources() -> bool:
    """Whether a source for compute capability 12.x lies beside the DeepGEMM that vLLM imports.

    vLLM prefers a package `deep_gemm` that can be imported to its own copy. If no package is found, or one without
    that folder, the answer is no.
    """
    from vllm.utils.import_utils import _has_module

    spec = find_spec("deep_gemm" if _has_module(module_name="deep_gemm") else "vllm.third_party.deep_gemm")
    folders = (spec and spec.submodule_search_locations) or ()
    return any(any(Path(folder, SOURCES).glob("sm120_*")) for folder in folders)

"""A simulated NVIDIA GPU for the real vLLM on a machine without one.

It suffices for configs, for layers on the meta device and for sizes. It computes nothing: there are no compiled
extensions and no device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

GIB = 1 << 30
ASKED_ON_IMPORT = (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_group_gemm_supported",
    "cutlass_sparse_scaled_mm_supported",
)

USED = (
    "vllm.engine.arg_utils",
    "vllm.model_executor.models.qwen3",
    "vllm.model_executor.models.qwen3_5",
    "vllm.model_executor.models.qwen3_next_mtp",
    "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors",
    "vllm.v1.attention.backends.turboquant_attn",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu_worker",
)
"""What most probes import."""

MISTRAL_COMMON = (
    *(f"mistral_common.protocol.instruct.{name}" for name in ("chunk", "messages", "request")),
    "mistral_common.tokens.tokenizers.multimodal",
)

_pretended: list[str] = []


def h100() -> None:
    pretend_h100()
    _import(USED)


def bare() -> None:
    """Import vLLM on the platform that the probes of overlays make for it."""
    stand_in_for_torchvision()
    from vpatch_overlays.probes.bare import settle

    settle()
    _import(USED)


def without_gpu() -> None:
    """Import vLLM on this machine's own platform, for its own tests."""
    stand_in_for_torchvision()
    _import(USED)


def _import(names: Iterable[str]) -> None:
    for name in names:
        with suppress(Exception):  # a probe that needs it gets the error
            import_module(name)


def pretend_h100() -> None:
    """Make vLLM see an H100 in this process, once. Call this before anything else imports vLLM."""
    if _pretended:
        return
    _pretended.append("H100")
    stand_in_for_torchvision()
    for name in ("_C", "_C_stable_libtorch", "_moe_C", "_flashmla_C", "_flashmla_extension_C"):
        _stand_in(f"vllm.{name}")
    flash = {
        "flash_attn_varlen_func": lambda *_: None,  # which latent attention asks for
        "compile_flash_attn_varlen_func_from_specs": None,
        "get_scheduler_metadata": None,
        "fa_version_unsupported_reason": lambda _version, _device=None: None,
        "is_fa_version_supported": lambda version, _device=None: version == 2,
    }
    _stand_in("vllm.vllm_flash_attn", **flash)
    _stand_in("vllm.vllm_flash_attn.flash_attn_interface", **flash)

    import torch

    for operator in ASKED_ON_IMPORT:
        setattr(torch.ops._C, operator, lambda _capability: True)
    torch.ops._C.silu_and_mul = None  # looked up, but not called, when a layer is built

    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class H100(NonNvmlCudaPlatform):  # type: ignore[misc]
        capability = DeviceCapability(9, 0)

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return cls.capability

        @classmethod
        def has_device_capability(cls, capability: Any, device_id: int = 0) -> bool:
            wanted = capability if isinstance(capability, tuple) else divmod(capability, 10)
            return tuple(cls.capability) >= tuple(wanted)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "pretended H100"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 80 * GIB

        @classmethod
        def current_device(cls) -> str:
            return "meta"

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return False

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return 132

        @classmethod
        def get_cuda_runtime_major(cls) -> int:
            return 13  # of the wheels that releases since 0.20 require by default

    vllm.platforms._current_platform = H100()

    from vllm.model_executor.models import registry
    from vllm.utils import torch_utils

    registry._run_in_subprocess = lambda look: look()  # another process would not see the H100
    torch_utils._aux_stream = object()  # otherwise vLLM makes a stream
    torch.cuda.Event = object  # torch's placeholder for it cannot be instantiated


def pretend_capability(major: int, minor: int) -> None:
    """Change the compute capability of the simulated GPU, and with it the available attention kernels.

    Cached choices for the previous one are dropped.
    """
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability
    from vllm.utils.flashinfer import supports_trtllm_attention
    from vllm.v1.attention import selector

    type(current_platform).capability = DeviceCapability(major, minor)
    versions = {9: (2, 3, 4), 10: (2, 4)}.get(major, (2,))
    for name in ("vllm.vllm_flash_attn", "vllm.vllm_flash_attn.flash_attn_interface"):
        vars(sys.modules[name])["is_fa_version_supported"] = lambda version, _device=None: version in versions
    selector._cached_get_attn_backend.cache_clear()
    supports_trtllm_attention.cache_clear()


def stand_in_for_flashinfer() -> None:
    """Let vLLM choose FlashInfer for attention, which each release requires, but for nothing else."""
    from vllm.utils.flashinfer import has_flashinfer, has_nvidia_artifactory

    with patch("vllm.utils.flashinfer.has_flashinfer_cubin", lambda: True):
        assert has_nvidia_artifactory()  # of each release's own kernels; the answer is cached
    assert not has_flashinfer()  # this one, too
    for name in ("flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.utils"):
        sys.modules[name] = MagicMock()

    from vllm.v1.attention.backends import flashinfer

    flashinfer._get_multi_ctas_kv_counter_buffer = lambda *_: None  # since 0.33 a layer makes it, in CUDA memory


@contextmanager
def without_cuda_memory() -> Iterator[None]:
    """Make tensors of layers and modules on the meta device, even those that vLLM wants in CUDA memory."""
    import torch

    def on_meta(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *sizes, **options: make(*sizes, **options | {"device": "meta"})

    with patch.multiple(torch, zeros=on_meta(torch.zeros), empty=on_meta(torch.empty)):
        yield


def import_latent_attention() -> None:
    """Import kernels of latent attention that make a workspace in CUDA memory when they are imported or built."""
    with without_cuda_memory():
        for name in ("flashinfer_mla", "cutlass_mla"):
            import_module(f"vllm.v1.attention.backends.mla.{name}")
    from vllm.model_executor.layers import sparse_attn_indexer
    from vllm.v1.worker import workspace

    sparse_attn_indexer.has_deep_gemm = lambda: True  # in wheels
    workspace._manager = SimpleNamespace(get_simultaneous=lambda *specs: [None] * len(specs))


def import_kimi() -> None:
    """Import Kimi's layers, which in new releases come with kernels in CUTLASS's Python; it stands in for that."""
    import torch

    with patch.object(sys, "meta_path", [*sys.meta_path, _Cutlass()]), suppress(ModuleNotFoundError):
        import_module("vllm.models.kimi_k3")
        import_module("vllm.model_executor.kernels.linear.cute_dsl.gemm_rs_ar")
    torch.cuda.Stream = object  # it makes one
    for name in [name for name in sys.modules if name.partition(".")[0] in _Cutlass.NAMES]:
        del sys.modules[name]  # vLLM would choose other kernels, if it found them


class _Cutlass(MetaPathFinder, Loader):
    """Finds modules of CUTLASS and of its bindings, in which there is every name."""

    NAMES = ("cutlass", "cuda")

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in self.NAMES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        vars(module)["__getattr__"] = lambda name: MagicMock(name=name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


def stand_in_for_vision() -> None:
    """Make the models with images importable: without mistral_common, and without compiled operators to fuse."""
    for name in ("vllm.tokenizers.mistral", "vllm.compilation.passes.pass_manager", *MISTRAL_COMMON):
        sys.modules[name] = MagicMock()

    from vllm.model_executor.models import qwen2_5_vl

    # Since 0.28 the tower reads the image processor's config, under one name up to 0.30, and under another in 0.31.
    if norm := getattr(qwen2_5_vl, "FusedInputNorm", None):
        norm.from_model_config = lambda *_: None
    if hasattr(qwen2_5_vl, "build_mm_input_norm"):
        qwen2_5_vl.build_mm_input_norm = lambda *_, **__: None


def stand_in_for_gemma4() -> None:
    """Register a config class for Gemma 4 where vLLM has none: that of transformers lacks the second size of heads."""
    from importlib.util import find_spec

    from transformers import AutoConfig, PretrainedConfig

    if find_spec("vllm.transformers_utils.configs.gemma4") is None:
        kind = type("Gemma4TextConfig", (PretrainedConfig,), {"model_type": "gemma4_text"})
        AutoConfig.register("gemma4_text", kind, exist_ok=True)


def name_activations() -> None:
    """Name the kernels of activations, which are looked up when a layer is built, and not called."""
    import torch

    for name in ("gelu_and_mul", "gelu_tanh_and_mul", "gelu_new", "relu_squared"):
        setattr(torch.ops._C, name, None)


def stand_in_for_diskcache() -> None:
    """Make the engine's core importable, which until 0.19 needs a cache for structured output."""
    _stand_in("diskcache", Cache=object)


def register_nemotron_h() -> None:
    """Register the config of Nemotron-H, which checkpoints bring as code, where transformers does not have it."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    if "nemotron_h" not in CONFIG_MAPPING_NAMES:
        AutoConfig.register("nemotron_h", import_module("vllm.transformers_utils.configs.nemotron_h").NemotronHConfig)


def register_bailing() -> None:
    """Register configs of Bailing, which checkpoints bring as code."""
    from transformers import AutoConfig, PretrainedConfig

    for kind in ("bailing_moe", "bailing_moe_v2"):
        AutoConfig.register(kind, type("BailingMoeConfig", (PretrainedConfig,), {"model_type": kind}), exist_ok=True)


def stand_in_for_torchvision() -> None:
    """Make torchvision importable without its compiled half, which needs the torch that it was built with."""
    for name in ("_meta_registrations", "_autograd_registrations"):  # they declare operators of that half
        _stand_in(f"torchvision.{name}")


def single_rank(folder: str) -> None:
    """Make the process groups of tensor parallelism 1; needs a current config."""
    from vllm.distributed import parallel_state

    parallel_state.init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
    parallel_state.initialize_model_parallel(1, 1, backend="gloo")


def _stand_in(name: str, **members: Any) -> None:
    module = sys.modules[name] = ModuleType(name)
    vars(module).update(members)

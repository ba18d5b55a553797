"""Script for tests.validation.cpu.probes: the server probe's checkpoint fits the model that vLLM builds from it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from vpatch_overlays.probes.bare import engine_config, settle
from vpatch_overlays.probes.tiny_hybrid import HYBRID, write
from vpatch_overlays.probes.turboquant_hybrid_serve import ARGUMENTS, FLAGS


def parsed(folder: Path) -> Any:
    """Parse the server's command line and return the config that its engine arguments make."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options = [part for name, value in ARGUMENTS.items() for part in (name, value) if name != "--host"]
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    arguments = parser.parse_args(["--model", str(folder), *options, *FLAGS])
    return AsyncEngineArgs.from_cli_args(arguments).create_engine_config()


def main() -> None:
    """Write the checkpoint, build the model from its config, and load one into the other."""
    settle()
    import torch
    from safetensors.torch import load_file
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform

    folder = Path(tempfile.mkdtemp())
    write(folder)
    config = parsed(folder)
    assert config.model_config.is_hybrid
    assert config.cache_config.cache_dtype == ARGUMENTS["--kv-cache-dtype"]
    torch.ops._C.silu_and_mul = None  # looked up, but not called
    torch.set_default_dtype(torch.bfloat16)
    backend = "vllm.v1.attention.backends.turboquant_attn.TurboQuantAttentionBackend"
    current_platform.get_attn_backend_cls = lambda *_, **__: backend
    config = engine_config(HYBRID)
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1, backend="gloo")
        with torch.device("meta"):
            model = initialize_model(vllm_config=config)
        loaded = model.load_weights(iter(load_file(folder / "model.safetensors").items()))
    wanted = {name for name, _ in model.named_parameters() if not name.startswith("visual.")}
    assert loaded == wanted, f"not the same: {sorted(loaded ^ wanted)}"


if __name__ == "__main__":
    main()

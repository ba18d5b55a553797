"""The process that runs an engine on a GPU, with stand-ins for torch and vLLM: the facts that each step prints."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.validation.gpu.drive import PROBE

TORCH = """
from types import SimpleNamespace
free = [100 << 20]
cuda = SimpleNamespace(
    synchronize=lambda: None, mem_get_info=lambda: (free[0], 200 << 20), memory_allocated=lambda: 30 << 20,
    memory_reserved=lambda: 40 << 20, reset_peak_memory_stats=lambda: None, max_memory_allocated=lambda: 35 << 20,
    max_memory_reserved=lambda: 45 << 20,
)
"""
WORKSPACE = "_manager = None"
VLLM = """
import itertools
from types import SimpleNamespace as Space
import time, torch

class SamplingParams(Space):
    prompt_logprobs = None

class Engine:
    def __init__(self):
        buffer = Space(numel=lambda: 1 << 20, element_size=lambda: 2)
        layers = {"0": Space(_tq_k_dequant_buf=buffer, _tq_v_dequant_buf=buffer), "1": Space()}
        runner = Space(compilation_config=Space(static_forward_context=layers))
        runner.model_memory_usage = 20 << 30
        counts = Space(
            model_runner=runner, init_snapshot=Space(total_memory=141 << 30, free_memory=140 << 30),
            requested_memory=129.72 * (1 << 30), peak_activation_memory=2 << 30, non_torch_memory=1 << 28,
            cudagraph_memory_estimate=3 << 28, available_kv_cache_memory_bytes=100 << 30,
        )
        worker = Space(driver_worker=Space(worker=counts))
        groups = [Space(layer_names=["a", "b"]), Space(layer_names=["c"])]
        cache = Space(kv_cache_tensors=[Space(size=7), Space(size=8)], kv_cache_groups=groups)
        core = Space(model_executor=worker, scheduler=Space(kv_cache_config=cache))
        self.engine_core = Space(engine_core=core)
        self.vllm_config = Space(cache_config=Space(num_gpu_blocks=7, block_size=16))
        self.requests = {}
    def add_request(self, request, prompt, params):
        self.requests[request] = prompt
    def step(self):
        time.sleep(0.0001)
        return [Space(request_id=name) for name in self.requests]
    def abort_request(self, ids):
        for name in ids:
            del self.requests[name]
    def has_unfinished_requests(self):
        return bool(self.requests)

class LLM:
    def __init__(self, model):
        self.llm_engine = Engine()
    def generate(self, prompts, params, use_tqdm):
        (prompt,) = prompts
        tokens = prompt["prompt_token_ids"]
        if len(tokens) > 1000:
            torch.free[0] -= 60 << 20
            time.sleep(0.05)
            torch.free[0] += 60 << 20
            try:
                raise AssertionError("Workspace is locked")
            except AssertionError as error:
                raise RuntimeError("engine died") from error
        rows = [None, *({t: Space(logprob=-1.0, rank=2), 9: Space(logprob=-0.5, rank=1)} for t in tokens[1:])]
        return [Space(prompt_logprobs=rows if params.prompt_logprobs else None)]
"""
SMI = "#!/bin/sh\necho 20\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with the stand-ins."""
    (tmp_path / "vllm/v1/worker").mkdir(parents=True)

    (tmp_path / "vllm/__init__.py").write_text(VLLM)
    for folder in ("vllm/v1", "vllm/v1/worker"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "vllm/v1/worker/workspace.py").write_text(WORKSPACE)
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    return tmp_path


def facts(machine: Path, *steps: tuple[str, tuple[int, ...]], budget_mib: int = 0) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status, and the facts that the process printed after it had started."""
    spec: dict[str, Any] = {
        "engine": {"model": "m"},
        "steps": steps,
        "save": str(machine / "saved"),
        "budget_mib": budget_mib,
    }
    spec["launched"] = time.monotonic()
    (machine / "spec.json").write_text(json.dumps(spec))
    env = {"PYTHONPATH": str(machine), "PATH": f"{machine}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", str(PROBE), str(machine / "spec.json")]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    first, *rest = [json.loads(line[2:]) for line in ran.stdout.splitlines() if line.startswith("R {")]
    assert (first["kv_blocks"], first["block_size"], first["used_mib"]) == (7, 16, 100), ran.stderr
    assert first["start_s"] < first["ready_s"] < time.monotonic() - spec["launched"] + 0.01  # it is rounded
    return ran.returncode, rest


def test_serve(machine: Path) -> None:
    code, (short, longer) = facts(machine, ("serve", (64, 128)))

    assert code == 0
    assert (short["prompt"], longer["prompt"]) == (64, 128)
    assert (short["used_mib"], short["reserved_mib"], short["peak_allocated_mib"]) == (100, 40, 35)
    assert (short["layer_buffers_mib"], short["workspace_mib"]) == (4, 0)


def test_logprobs_are_those_of_the_prompts_tokens(machine: Path) -> None:
    code, (event,) = facts(machine, ("logprobs", (64,)))

    assert (code, event["prompt"]) == (0, 64)
    assert json.loads((machine / "saved.64").read_text()) == {"prompt": [-1.0] * 63, "top": [9] * 63}


def test_the_memory_account_of_vllm(machine: Path) -> None:
    code, (event,) = facts(machine, ("account", ()))

    assert code == 0
    assert event == {
        "total": 141 << 30,
        "free_at_start": 140 << 30,
        "requested": int(129.72 * (1 << 30)),
        "weights": 20 << 30,
        "activations": 2 << 30,
        "non_torch": 1 << 28,
        "graphs": 3 << 28,
        "kv_cache": 100 << 30,
        "kv_cache_taken": 15,
        "groups": [2, 1],
    }


def test_prefill_and_decode_are_timed(machine: Path) -> None:
    code, (prefill, *decode) = facts(machine, ("prefill", (512,)), ("decode", (64, 128)))

    assert code == 0
    assert (prefill["prefill"], len(prefill["tokens_per_s"])) == (512, 3)
    assert [(one["context"], one["batch"]) for one in decode] == [(n, b) for n in (64, 128) for b in (1, 8, 32)]
    assert all(len(one["tokens_per_s"]) == 3 for one in decode)
    assert min(decode[2]["tokens_per_s"]) > max(decode[0]["tokens_per_s"]), "32 requests make more tokens a second"


def test_a_failing_engine_reports_its_error_and_memory(machine: Path) -> None:
    code, (served, memory, error) = facts(machine, ("watched", (64, 2000)), budget_mib=90)

    assert (code, served["prompt"]) == (1, 64)
    # 20 MiB were in use before: of 100, 80 are its own
    assert (memory["start_minus_budget_mib"], memory["peak_minus_budget_mib"]) == (-10, 50)
    assert error["error"].startswith("AssertionError: Workspace is locked (__init__.py:")

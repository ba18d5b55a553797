"""`probe.py SPEC.json`: start one vLLM engine, run the spec's steps, and print facts as lines `R {json}`.

The spec has "engine" (the arguments of `LLM`), "steps" (see engines.Probe), "save" (path prefix for what it keeps,
log-probabilities for example, followed by the length), "budget_mib" (0: none), "limit_s" (when it will be stopped),
"launched" (when it was started, by the monotonic clock, which all processes share), "of" (by name of a probe whose
answers it replays, the file with them) and "turns" (the path prefixes of the engines that measure in turn).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

ENTERED = time.monotonic()
MIB = 1 << 20
NEW_TOKENS, STEPS, WINDOWS, REPETITIONS = 16, 96, 3, 3
BATCHES = (1, 8, 32)


def say(**fields: Any) -> None:
    sys.stdout.write("R " + json.dumps(fields) + "\n")
    sys.stdout.flush()


def prompt(length: int, seed: int = 0) -> dict[str, list[int]]:
    """Return a prompt. Of two with one seed, the shorter is a prefix of the longer."""
    tokens = random.Random(seed)  # noqa: S311
    return {"prompt_token_ids": [tokens.randrange(10, 3900) for _ in range(length)]}


def used_by_all() -> int:
    """Return the device memory in use by all processes, in MiB, without creating a context on the device."""
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    command = ["nvidia-smi", "-i", device, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def start(engine: dict[str, Any], launched: float) -> Any:
    """Start the engine, in a process that was launched at this time of the monotonic clock."""
    from vllm import LLM

    began = time.time()
    llm = LLM(**engine)
    took, ready = round(time.time() - began, 1), round(time.monotonic() - launched, 2)
    cache = llm.llm_engine.vllm_config.cache_config
    times = {"start_s": took, "entered_s": round(ENTERED - launched, 2), "ready_s": ready}
    say(**times, kv_blocks=cache.num_gpu_blocks, block_size=cache.block_size, **memory())
    return llm


def memory() -> dict[str, int]:
    """Return the memory of tensors, of the allocator, and in use on the device, in MiB."""
    import torch

    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated_mib": torch.cuda.memory_allocated() // MIB,
        "reserved_mib": torch.cuda.memory_reserved() // MIB,
        "used_mib": (total - free) // MIB,
    }


def scratch(llm: Any) -> dict[str, Any]:
    """Return the sizes of the shared workspace and of TurboQuant's buffers of each layer (0.20)."""
    from vllm.v1.worker import workspace

    runner = worker_of(llm).model_runner
    names = ("_tq_k_dequant_buf", "_tq_v_dequant_buf")
    layers = runner.compilation_config.static_forward_context.values()
    buffers = [b for layer in layers for n in names if (b := getattr(layer, n, None)) is not None]
    manager = workspace._manager
    spaces = [s for s in getattr(manager, "_current_workspaces", []) if s is not None]
    return {
        "workspace_mib": round(sum(s.numel() * s.element_size() for s in spaces) / MIB, 1),
        "locked": getattr(manager, "_locked", None),
        "layer_buffers_mib": sum(b.numel() * b.element_size() for b in buffers) // MIB,
    }


def worker_of(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def account(llm: Any, _: list[int]) -> None:
    """Print vLLM's own account of the device memory at its start, KV cache included, in bytes."""
    worker = worker_of(llm)
    cache = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config
    say(
        total=worker.init_snapshot.total_memory,
        free_at_start=worker.init_snapshot.free_memory,
        requested=int(worker.requested_memory),
        weights=int(worker.model_runner.model_memory_usage),
        activations=int(worker.peak_activation_memory),
        non_torch=int(worker.non_torch_memory),
        graphs=int(worker.cudagraph_memory_estimate),
        kv_cache=int(worker.available_kv_cache_memory_bytes),
        kv_cache_taken=sum(tensor.size for tensor in cache.kv_cache_tensors),
        groups=[len(group.layer_names) for group in cache.kv_cache_groups],
    )


def serve(llm: Any, lengths: list[int], save: str = "") -> None:
    """Answer prompts one by one; with `save`, keep the log-probabilities of their tokens."""
    import torch
    from vllm import SamplingParams

    kept = 1 if save else None
    params = SamplingParams(
        max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, detokenize=False, logprobs=kept, prompt_logprobs=kept
    )
    for length in lengths:
        torch.cuda.reset_peak_memory_stats()
        began = time.time()
        (out,) = llm.generate([prompt(length)], params, use_tqdm=False)
        took, peak = round(time.time() - began, 2), torch.cuda.max_memory_allocated() // MIB
        say(prompt=length, s=took, peak_allocated_mib=peak, **memory(), **scratch(llm))
        if save:
            tokens, rows = prompt(length)["prompt_token_ids"][1:], out.prompt_logprobs[1:]
            found = {
                "prompt": [row[token].logprob for row, token in zip(rows, tokens, strict=True)],
                "top": [min((likely.rank, token) for token, likely in row.items())[1] for row in rows],
            }
            Path(f"{save}.{length}").write_text(json.dumps(found))


@contextmanager
def watching(before_mib: int, budget_mib: int) -> Iterator[None]:
    """Print the peak of the device memory and its difference to the budget, even if the body raises."""
    import torch

    lowest, stop = [torch.cuda.mem_get_info()[0]], threading.Event()
    total = torch.cuda.mem_get_info()[1]

    def watch() -> None:
        while not stop.wait(0.002):
            lowest[0] = min(lowest[0], torch.cuda.mem_get_info()[0])

    started = memory()["used_mib"] - before_mib
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
        peak = (total - lowest[0]) // MIB - before_mib
        say(
            budget_mib=budget_mib, start_minus_budget_mib=started - budget_mib, peak_minus_budget_mib=peak - budget_mib,
            peak_reserved_mib=torch.cuda.max_memory_reserved() // MIB,
        )  # fmt: skip


def prefill(llm: Any, lengths: list[int]) -> None:
    """Time prompts until their first token, each after an untimed one of the same length."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
    for length in lengths:
        rates = []
        for seed in range(REPETITIONS + 1):
            began = time.perf_counter()
            llm.generate([prompt(length, seed)], params, use_tqdm=False)
            rates.append(round(length / (time.perf_counter() - began)))
        say(prefill=length, tokens_per_s=rates[1:], **memory())


@contextmanager
def decoding(llm: Any, length: int, batch: int, steps: int) -> Iterator[Callable[[], Any]]:
    """Start requests, make some decode steps of all of them, and yield what makes one more; end them afterwards."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    params = SamplingParams(max_tokens=4096, temperature=0, ignore_eos=True, detokenize=False)
    ids = [f"{time.time_ns()}-{i}" for i in range(batch)]
    for i, request in enumerate(ids):
        engine.add_request(request, prompt(length, seed=i), params)
    begun: set[str] = set()
    while len(begun) < batch:
        begun |= {out.request_id for out in engine.step()}
    for _ in range(steps):
        engine.step()
    yield engine.step
    engine.abort_request(ids)
    while engine.has_unfinished_requests():
        engine.step()


def decode(llm: Any, lengths: list[int]) -> None:
    """Time decode steps only, in windows, once every request of a batch has had its first few tokens."""

    def rates(length: int, batch: int) -> list[float]:
        found = []
        with decoding(llm, length, batch, STEPS // 2) as step:
            for _ in range(WINDOWS):
                began = time.perf_counter()
                tokens = sum(len(step()) for _ in range(STEPS))
                found.append(round(tokens / (time.perf_counter() - began), 1))
        return found

    for batch in (1, *BATCHES):  # kernels still compile and clocks still rise: not printed
        rates(lengths[0], batch)
    for length in lengths:
        for batch in BATCHES:
            say(context=length, batch=batch, tokens_per_s=rates(length, batch))


def main(spec: dict[str, Any]) -> None:
    if any(action == "account" for action, _ in spec["steps"]):
        os.environ["VLLM_LOGGING_LEVEL"] = "DEBUG"  # the log then shows how the counts came about
    before = used_by_all() if spec["budget_mib"] else 0
    llm = start(spec["engine"], spec["launched"])
    plain: dict[str, Callable[[Any, list[int]], None]] = {
        "serve": serve, "prefill": prefill, "decode": decode, "account": account,
    }  # fmt: skip
    for action, lengths in spec["steps"]:
        if action == "watched":
            with watching(before, spec["budget_mib"]):
                serve(llm, lengths)
        elif action == "logprobs":
            serve(llm, lengths, spec["save"])
        elif action in plain:
            plain[action](llm, lengths)
        else:
            from tests.validation.gpu.drafting import STEPS as OTHERS

            OTHERS[action](llm, lengths, spec)


def cause_of(error: BaseException) -> str:
    """Return the root cause of an error and where it was raised."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno} {where.name})"[:400]


def run(work: Callable[[], None]) -> NoReturn:
    """Do the work of this process, print its error if it fails, and end the process."""
    code = 0
    try:
        work()
    except BaseException as error:
        traceback.print_exc()
        say(error=cause_of(error))
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # an engine in this process does not always end by itself


if __name__ == "__main__":
    run(lambda: main(json.loads(Path(sys.argv[1]).read_text())))

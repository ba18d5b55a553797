"""vLLM's logs of a start, and `vpatch plan --log`: what is read, what is compared, and what is refused."""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.version import Version
from vpatch.plan.startup_log import PRINTED, start_of

from tests.failures import problem_of
from tests.plan.configs import named
from tests.releases import RELEASES, tiered, tree_of

if TYPE_CHECKING:
    from tests.conftest import Program, Ran

FILES = (
    *("v1/worker/gpu_model_runner.py", "v1/worker/gpu/model_runner.py", "v1/worker/gpu_worker.py", "v1/core/*.py"),
    *("v1/worker/gpu/cudagraph_utils.py", "v1/engine/core.py", "config/*.py", "model_executor/models/config.py"),
    *("platforms/interface.py", "v1/kv_cache_interface.py"),
)

ARGUMENTS = "{'model_tag': 'me/mine', 'model': 'me/mine', 'max_model_len': 8192, 'gpu_memory_utilization': 0.9}"
LOG = f"""\
(APIServer pid=1) INFO 05-03 17:10:31 [utils.py:299] vLLM API server version 0.20.2
(APIServer pid=1) INFO 05-03 17:10:31 [utils.py:233] non-default args: {ARGUMENTS}
(EngineCore pid=9) INFO 05-03 17:13:12 [gpu_model_runner.py:4879] Model loading took 0.89 GiB memory and 1.5 seconds
(EngineCore pid=9) INFO 05-03 17:13:12 [gpu_model_runner.py:6042] Estimated CUDA graph memory: 0.43 GiB total
(EngineCore pid=9) INFO 05-03 17:14:33 [gpu_worker.py:440] Available KV cache memory: 20.42 GiB
(EngineCore pid=9) INFO 05-03 17:14:33 [kv_cache_utils.py:1711] GPU KV cache size: 669,120 tokens
(EngineCore pid=9) INFO 05-03 17:14:33 [kv_cache_utils.py:1716] Maximum concurrency for 8,192 tokens per request: 81.68x
(EngineCore pid=9) INFO 05-03 17:14:39 [gpu_model_runner.py:6134] Graph capturing finished in 5 secs, took 0.61 GiB
(APIServer pid=1) INFO:     Application startup complete.
"""
LINES = LOG.splitlines()


def texts(tree: Path) -> Iterator[str]:
    """Yield what the release may print, with 1 for each value."""
    for path in (path for pattern in FILES for path in sorted((tree / "vllm").glob(pattern))):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[-+.\d]*[sdfr]", "1", node.value.replace("%s KV cache", "GPU KV cache"))
            elif isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)


@pytest.mark.parametrize("release", tiered(RELEASES, first=("0.33.0",)))
def test_every_release_prints_what_is_looked_for(release: str) -> None:
    lacking = set(PRINTED)
    for text in texts(tree_of(release)):
        lacking -= {name for name in lacking if PRINTED[name].search(text)}

    # Before 0.20, a batch with more requests than there are blocks for states lowers the graphs' sizes instead.
    assert lacking == ({"state_blocks"} if Version(release) < Version("0.20") else set())


def test_a_start() -> None:
    start = start_of(LINES, "the log")

    assert (start.vllm, start.model, start.refused) == (Version("0.20.2"), "me/mine", False)
    assert start.arguments["max_model_len"] == 8192
    assert start.printed == {
        "weights_gib": 0.89,
        "estimated_graphs_gib": 0.43,
        "graphs_gib": 0.61,
        "kv_cache_gib": 20.42,
        "tokens": 669_120,
        "max_model_len": 8192,
        "concurrency": 81.68,
    }
    assert len(start.lines) == 8


IN_USE = "Free memory on device (30.5/31.4 GiB) on startup. Current kv cache memory in use is {} GiB."
NEEDED = "(2.5 GiB KV cache is needed, which is larger than the available KV cache memory (1.25 GiB). Based on"


@pytest.mark.parametrize(
    ("lines", "size", "refused"),
    [
        # Of several workers, the one with the least memory decides.
        (["(W0) Available KV cache memory: 5.11 GiB", "\x1b[36m(W1) Available KV cache memory: 4.90 GiB"], 4.9, False),
        # A log of which only the end is left: vLLM says there what it gave the KV cache, in each worker.
        ([IN_USE.format(12.26), IN_USE.format(12.24)], 12.24, False),
        ([*LINES[:3], "ValueError: No available memory for the cache blocks. Try increasing"], 0.0, True),
        ([*LINES[:3], f"ValueError: To serve a request with the models's max seq len, {NEEDED}"], 1.25, True),
    ],
)
def test_the_size_of_the_cache(lines: list[str], size: float, *, refused: bool) -> None:
    start = start_of(lines, "the log", "0.27.1")

    assert (start.kv_cache_gib, start.refused) == (size, refused)


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([], "it is empty"),
        (["Listening on port 80", "GET / 200"], "vLLM printed none of it"),
        ([*LINES, *(line.replace("8192", "4096") for line in LINES)], "it has 2 starts: give the lines of one"),
        (
            [*LINES, LINES[5].replace("669,120", "1,120")],
            "it has KV caches of several sizes: give the lines of one start",
        ),
        (LINES[:4], "it ends before vLLM says how much memory there is for the KV cache"),
        (LINES[1:], "it does not have the version of vLLM: give --vllm"),
    ],
    ids=["empty", "foreign", "two servers", "two caches", "truncated", "no version"],
)
def test_a_log_that_cannot_be_used(lines: list[str], cause: str) -> None:
    assert str(problem_of(start_of, lines, "the log")) == f"cannot use this log: the log: {cause}"


def test_arguments_that_are_no_literals() -> None:
    arguments = ARGUMENTS.replace("0.9}", "0.9, 'compilation_config': CompilationConfig(level=3)}")
    start = start_of(LOG.replace(ARGUMENTS, arguments).splitlines(), "the log")

    assert (start.arguments["max_model_len"], start.arguments["gpu_memory_utilization"]) == (8192, 0.9)


def compared(vpatch: Program, folder: Path, text: str, *options: str, log: str = "start.log") -> Ran:
    """Run the command on a log of a model of eight layers, on a 3090."""
    (folder / "config.json").write_text(json.dumps(named("Qwen3ForCausalLM", num_hidden_layers=8)))
    (folder / "start.log").write_text(text)
    return vpatch("plan", "--log", log if log == "-" else folder / log, "--model", folder, "--gpu", "3090", *options)


def test_the_command(vpatch: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = compared(vpatch, tmp_path, LOG)
    first, *rest, record = ran.out.splitlines()

    assert (ran.code, ran.err) == (0, "")
    assert first == f"started: {tmp_path} on 1 x RTX 3090, vLLM 0.20.2"
    assert [line.partition(":")[0] for line in rest] == [
        *("weights", "graphs", "the rest", "kv cache", "tokens", "concurrency", "most off", "measured")
    ]
    assert json.loads(record)["printed"]["tokens"] == 669_120
    assert json.loads(record)["gpu"] == "RTX 3090"
    assert json.loads(record) == compared(vpatch, tmp_path, LOG, "--json").json["record"]

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LOG.encode())))
    assert compared(vpatch, tmp_path, LOG, log="-").out == ran.out


def test_the_layout_is_that_of_the_memory_that_vllm_had(vpatch: Program, tmp_path: Path) -> None:
    """Eight layers of 32 KV heads of 128 elements in bfloat16: 128 KiB a token."""
    found = compared(vpatch, tmp_path, LOG, "--json").json["numbers"]
    tokens = next(one for one in found if one["name"] == "tokens")

    assert tokens["planned"] == pytest.approx(20.42 * (1 << 30) / (128 << 10), rel=1e-3)
    assert not tokens["within"], "the log is of another model"


@pytest.mark.parametrize(
    ("line", "blocks"),
    [
        ("GPU KV cache size: 167,280 tokens", 10_455),
        ("ValueError: max_num_seqs (256) exceeds available Mamba cache blocks (120).", 120),
    ],
)
def test_memory_that_only_tokens_or_blocks_tell_of(vpatch: Program, tmp_path: Path, line: str, blocks: int) -> None:
    """A block of 16 tokens has 2 MiB: the memory is that of the blocks, and at most one more."""
    found = compared(vpatch, tmp_path, "\n".join([*LINES[:4], line]), "--json").json["numbers"]
    printed = {one["name"]: one["printed"] for one in found}

    assert printed["KV cache"] == pytest.approx((blocks + 0.5) / 512)
    assert "tokens" not in printed, "it would be compared with itself"


ADDED = "'max_model_len'", "{}, 'max_model_len'"
DRAFT = "'speculative_config': {'method': 'eagle3', 'model': 'x'}"


@pytest.mark.parametrize(
    ("text", "options", "code", "message"),
    [
        ("\n".join([*LINES[:4], "GPU KV cache size: 167,281 tokens"]), (), 1, "no number of blocks has 167,281 tokens"),
        (LOG.replace(ADDED[0], ADDED[1].format("'enable_lora': True")), (), 1, "plan does not model --enable-lora"),
        (LOG.replace(ADDED[0], ADDED[1].format("'data_parallel_size': 2")), (), 1, "not model --data-parallel-size"),
        (LOG.replace(ADDED[0], ADDED[1].format(DRAFT)), (), 1, "--speculative-config with another draft than multi"),
        *(
            (LOG, (option,), 2, f"--log compares what the log says: leave out {option.partition('=')[0]}")
            for option in ("--max-num-seqs=4", "--enforce-eager", "--preset=qwen3.6-35b-5090-32k", "--compose=x")
        ),
    ],
)
def test_what_is_not_compared(
    vpatch: Program, tmp_path: Path, text: str, options: tuple[str, ...], code: int, message: str
) -> None:
    ran = compared(vpatch, tmp_path, text, *options)

    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err


def test_no_file_and_no_model(vpatch: Program, tmp_path: Path) -> None:
    assert vpatch("plan", "--log", tmp_path / "none").err.startswith(f"cannot be read: {tmp_path}/none: No such file")
    (tmp_path / "start.log").write_text(LOG.replace(ARGUMENTS, "{}"))
    assert "the log does not have the model: give --model" in vpatch("plan", "--log", tmp_path / "start.log").err

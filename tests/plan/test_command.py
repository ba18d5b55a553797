"""`vpatch plan`: its output on a terminal, on a pipe and as JSON, and its exit codes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click import Context
from vpatch.cli.plan import plan_command
from vpatch.cli.plan_types import complete_gpu
from vpatch.plan import GIB
from vpatch.plan.defaults import GPUS, gpu, presets
from vpatch.plan.deployment import NEWEST

from tests.cli.test_contract import PROBLEM, STATES, fits
from tests.tiers import deep
from tests.validation.cpu.models import CONFIGS

if TYPE_CHECKING:
    from tests.conftest import Program

BOUNDED = {"gib": float, "least_gib": float, "most_gib": float}
SHAPE = {
    "schema": {1},
    "command": {"plan"},
    "tree": type(None),
    "vllm": str,
    "model": {"name": str, "revision": (str, type(None)), "architecture": str, "hybrid": bool, "unknown": [str]},
    "gpu": {"name": str, "gib": float},
    "verdict": {"fits", "tight", "does not fit", "cannot know"},
    "fits": bool,
    "overlays": [
        {"id": str, "needed": (bool, type(None)), "recommended": bool, "because": str, "state": STATES, "opt_in": bool}
    ],
    "kv_cache": {
        "dtype": str,
        **BOUNDED,
        **dict.fromkeys(("block_size", "page_bytes", "state_bytes", "groups", "blocks", "blocks_per_request"), int),
        **dict.fromkeys(("slots", "tokens", "max_model_len"), int),
        **dict.fromkeys(("concurrency", "least_concurrency"), float),
        "prints": {"slots", "tokens"},
    },
    "kv_cache_types": [{"dtype": str, "request_gib": float, "tokens": int, "concurrency": float, "overlays": list}],
    "memory": {"total_gib": float, "requested_gib": float, "needed_gib": float, "items": list, "left": dict},
    "advice": {"max_model_len": int, "max_num_seqs": int, "gpu_memory_utilization": float, "requests": int},
    "warnings": [{"name": str, "because": str, "source": str}],
    "commands": {"apply": str, "serve": str, "build": str, "docker": str},
    "changed": [str],
    "notes": [str],
    "problems": [PROBLEM],
}
PRESET = "qwen3.6-35b-5090-32k"
NAME = "Qwen3.6-35B-A3B-NVFP4"


def test_json(vpatch: Program) -> None:
    ran = vpatch("plan", "--preset", PRESET, "--json")

    assert (ran.code, ran.err) == (0, "")
    fits(ran.json, SHAPE)
    assert ran.json["vllm"] == "0.20.2"


def test_the_examples_of_the_help_succeed(vpatch: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"^ +vpatch (plan .*)$", vpatch("plan", "--help").out, re.MULTILINE)

    assert found
    assert {example: vpatch(*shlex.split(example)).code for example in found} == dict.fromkeys(found, 0)


@pytest.mark.parametrize(("vllm", "printed"), [("0.20.0", "slots"), ("0.20.1", "tokens")])
def test_the_figure_that_the_release_prints_is_marked(vpatch: Program, vllm: str, printed: str) -> None:
    ran = vpatch("plan", "--model", NAME, "--vllm", vllm, "--max-model-len", "32768", "-v")
    given = [line for line in ran.out.splitlines() if line.endswith("this vLLM prints it")]

    assert [line.startswith(f"kv cache: {printed}: ") for line in given] == [True]


def test_lines_in_a_pipe(vpatch: Program) -> None:
    ran = vpatch("plan", "--preset", PRESET, "--verbose")
    first, *rest = ran.out.splitlines()
    (row,) = [line for line in rest if line.startswith("overlay: turboquant-decode: ")]

    assert (ran.code, ran.err) == (0, "")
    assert first == "fits: inferRouter/Qwen3.6-35B-A3B-NVFP4 (main) on RTX 5090, vLLM 0.20.2"
    assert any(line.startswith("overlay: turboquant-hybrid: needed: ") for line in rest)
    assert any(line.startswith("memory: weights: 21.88 GiB: ") for line in rest)
    assert "vllm serve inferRouter/Qwen3.6-35B-A3B-NVFP4 \\" in rest
    # A recommended overlay is advised, and not applied: it is the user's choice.
    assert row.startswith("overlay: turboquant-decode: recommended: opt-in: 1 to 32 requests ")
    opt_in = "adds an opt-in overlay that is recommended for this deployment"
    assert f"advice: `--with turboquant-decode` {opt_in}; this plan and its commands are without it" in rest
    assert "turboquant-decode" not in ran.out.partition("# apply")[2]
    options = ("--vllm=0.20.2", "--kv-cache-dtype=turboquant_4bit_nc", "--max-num-seqs=16")
    long = vpatch("plan", NAME, *options)
    assert "`--with turboquant-decode --with turboquant-tiles` add opt-in overlays that are recommended" in long.out


def test_cautions_go_to_the_other_stream(vpatch: Program) -> None:
    ran = vpatch("plan", "--model", NAME, "--kv-cache-dtype", "fp8", "--max-num-seqs", "16", "--vllm", "0.20.2")

    assert ran.code == 0
    assert ran.err.startswith("caution: fp8-kv-quality: FP8 KV cache on Qwen3.5's hybrids: ")
    assert "fp8-kv-quality" not in ran.out


def test_help_has_no_technical_bounds(vpatch: Program) -> None:
    text = vpatch("plan", "--help").out

    assert "Usage: vpatch plan [OPTIONS] [MODEL | -- COMMAND]" in text
    assert "<=x" not in text


def test_every_gpu_is_completed_to_a_name_that_is_read() -> None:
    names = complete_gpu(Context(plan_command), plan_command.params[0], "")

    assert sorted(gpu(name).name for name in names) == sorted(one.name for one in GPUS)
    assert [name for name in names if " " in name] == []


def test_presets_are_listed(vpatch: Program) -> None:
    ran, listed = vpatch("plan", "--list"), vpatch("plan", "--list", "--json")

    assert (ran.code, ran.err, listed.code) == (0, "", 0)
    assert [line.partition(":")[0] for line in ran.out.splitlines()] == [one.name for one in presets()]
    assert all({"name", "source"} <= one.keys() and one["source"] for one in listed.json["presets"])


@pytest.mark.parametrize("one", [deep(one) if number else one for number, one in enumerate(presets())])
def test_every_preset_is_planned(vpatch: Program, one: Any) -> None:
    ran = vpatch("plan", "--preset", one.name, "--json")

    assert ran.json["fits"] is (ran.code == 0)
    assert ran.json["kv_cache"]["blocks"] >= ran.json["kv_cache"]["groups"]
    assert ran.json["fits"], ran.err
    # Of `--max-model-len auto`, vLLM takes the longest that fits, whatever it is.
    assert ran.json["verdict"] == "fits" or one.options.get("longest")


def test_options_of_vllm_serve_are_in_its_command(vpatch: Program) -> None:
    options = (
        *("--max-model-len 4096", "--max-num-seqs 3", "--max-num-batched-tokens 4096", "--gpu-memory-utilization 0.91"),
        *("--tensor-parallel-size 2", "--pipeline-parallel-size 2", "--kv-cache-dtype fp8"),
        *("--no-enable-prefix-caching", "--enforce-eager", "--language-model-only"),
    )
    ran = vpatch("plan", "--preset", PRESET, *" ".join(options).split(), "--json")
    command = " ".join(ran.json["commands"]["serve"].replace("\\\n", " ").split())

    assert [option for option in options if option not in command] == []


def test_a_folder_with_a_config(vpatch: Program, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["dense"]))
    ran = vpatch("plan", "--model", tmp_path, "--gpu", "3090", "--json")

    assert ran.code == 0, ran.err
    assert ran.json["kv_cache"]["block_size"] == 16
    assert ran.json["overlays"][0]["needed"] is False
    assert ran.json["memory"]["items"][0]["gib"] == pytest.approx(1.1, abs=0.15)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "give MODEL or --preset"),
        (("--model", NAME, "--preset", PRESET), 2, "give MODEL or --preset"),
        ((NAME, "--model", "another"), 2, f"MODEL is {NAME} and --model is another: give one"),
        ((NAME, "another"), 2, f"no vllm serve: {NAME} another: plan reads `vllm serve MODEL ...`"),
        (("--", "vllm", "server", NAME), 2, f"; did you mean `vpatch plan -- vllm serve {NAME}`?"),
        ((f"vllm server {NAME} --seed 7",), 2, f"; did you mean `vpatch plan -- vllm serve {NAME} --seed 7`?"),
        (("--preset", PRESET, "--", "vllm", "serve", NAME), 2, "leave out --preset and --log"),
        (("--", "vllm", "serve", "--port", "9000"), 2, "no model: vllm serve --port 9000: the command names none"),
        (("--", "vllm", "serve", NAME, "--max-num-seqs", "x"), 2, "for '--max-num-seqs': 'x' is not a valid number"),
        (("--", "vllm", "serve", NAME, "--max-num-seqs"), 2, "for '--max-num-seqs': '' is not a valid number"),
        ((NAME, "--with", "turboquant-tile"), 2, "no such overlay: turboquant-tile: did you mean turboquant-tiles"),
        (("--model", NAME, "--max-num-seqs", "-1"), 2, "-1 is not in the range 1<="),
        (("--model", NAME, "--max-model-len", "0"), 2, "0 is not in the range 1<="),
        (("--model", NAME, "--max-model-len", "long"), 2, "is not a valid"),
        (("--model", NAME, "--max-model-len", "1.0005k"), 2, "is not a whole number"),
        (("--model", NAME, "--gpu-memory-utilization", "1.5"), 2, "is not in the range"),
        (("--model", NAME, "--gpu-memory-gib", "-8"), 2, "is not in the range"),
        (("--model", NAME, "--weights-gib", "-3"), 2, "is not in the range"),
        (("--model", NAME, "--kv-cache-memory-bytes", "-1"), 2, "is not in the range"),
        (("--model", NAME, "--gpu-memory-utilization", "nan"), 2, "'nan' is not a number"),
        (("--model", NAME, "--max-num-seqs", "1" + "0" * 400), 2, "is not in the range"),
        (("--model", NAME, "--vllm", "latest"), 2, "'latest' is not a version of vLLM"),
        (("--model", NAME, "--vllm", "0.99.0"), 2, "unknown release: vLLM 0.99.0"),
        (("--model", NAME, "--kv-cache-dtype", "int3"), 2, "no such KV cache: int3 on vLLM 0.33.0: plan knows auto, "),
        (("--model", NAME, "--kv-cache-dtype", "turboquant_4bit"), 2, ": did you mean turboquant_4bit_nc? plan knows "),
        (("--model", NAME, "--gpu", "Voodoo 2"), 2, "no such GPU: Voodoo 2"),
        (("--model", NAME, "--revision", "nope"), 2, "no such revision"),
        (("--model", "nobody/nothing"), 2, "no such model: nobody/nothing"),
    ],
)
def test_wrong_options(vpatch: Program, arguments: tuple[str, ...], code: int, message: str) -> None:
    ran = vpatch("plan", *arguments)

    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err


def test_a_release_that_nobody_named_is_told(vpatch: Program) -> None:
    note = f"note: no vLLM of a known version is installed here: the plan is for {NEWEST}, unless you give --vllm"

    for words, told in (((NAME,), True), ((NAME, "--vllm", "0.20.2"), False), (("--preset", PRESET), False)):
        assert (note in vpatch("plan", *words).err.splitlines()) == told


def test_a_release_is_called_by_three_numbers(vpatch: Program) -> None:
    ran = vpatch("plan", "--model", NAME, "--max-model-len", "32768", "--vllm", "0.19", "-v")

    assert "  --base vllm/vllm-openai:v0.19.0 \\" in ran.out.splitlines()


@pytest.mark.parametrize(("given", "size"), [("20600M", 20600 << 20), ("21.6g", 21_600_000_000)])
def test_a_size_as_vllm_takes_it(vpatch: Program, given: str, size: int) -> None:
    arguments = ("--model", NAME, "--gpu", "pro 6000", "--max-num-batched-tokens", "8192")
    ran = vpatch("plan", *arguments, "--max-model-len", "32k", "--kv-cache-memory-bytes", given, "--json")

    assert ran.json["kv_cache"]["max_model_len"] == 32_000
    assert ran.json["kv_cache"]["gib"] == pytest.approx(size / GIB, abs=0.001)


def test_compose(vpatch: Program, tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    unfit = vpatch("plan", "--preset", PRESET, "--requests", "100", "--compose", file)
    assert (unfit.code, file.exists()) == (1, False)

    ran = vpatch("plan", "--preset", PRESET, "--compose", file)
    assert (ran.code, ran.err) == (0, f"wrote {file}\n")
    assert "turboquant_4bit_nc" in file.read_text()


def test_no_interpreter_is_asked_for_the_version_that_is_given(
    vpatch: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vpatch.cli.plan.current", lambda: 1 / 0)

    assert vpatch("plan", "--model", NAME, "--gpu", "5090", "--vllm", "0.19", "--max-model-len", "4096").code == 0

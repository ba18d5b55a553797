"""Commands as argument lists, and as text that a shell reads back as the same."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vpatch.cli.main import program
from vpatch.plan.commands import Command, apply, build, docker, serve
from vpatch.plan.deployment import preset, presets

from tests.plan.made import deployment, model, of

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
OVERLAYS = ("turboquant-workspace", "turboquant-hybrid", "ct-fp8-lm-head")

EXAMPLE = """\
vllm serve inferRouter/Qwen3.6-35B-A3B-NVFP4 \\
  --revision fp8-head \\
  --kv-cache-dtype turboquant_4bit_nc \\
  --max-model-len 262144 \\
  --max-num-seqs 64 \\
  --max-num-batched-tokens 8192 \\
  --gpu-memory-utilization 0.95 \\
  --enable-prefix-caching \\
  --speculative-config '{"method": "mtp", "num_speculative_tokens": 2}' \\
  --served-model-name qwen35b-a3b"""
RUN = """\
docker run --rm \\
  --gpus 1 \\
  --ipc=host \\
  -e HF_TOKEN \\
  -v vllm-cache:/root/.cache \\
  -v huggingface:/root/.cache/huggingface \\
  -p 127.0.0.1:8000:8000 \\
  localhost/vllm-openai:v0.20.2-vpatch \\
  inferRouter/Qwen3.6-35B-A3B-NVFP4 \\
"""


def test_the_text_has_an_option_a_line() -> None:
    meant, one = of(preset("qwen3.6-35b-5090-262k-fp8head"), speculative_tokens=2)

    assert str(serve(meant, one)) == EXAMPLE
    assert str(docker(meant, one, OVERLAYS)) == RUN + EXAMPLE.partition("\n")[2]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"kv_cache_dtype": "fp8_e4m3"}, ("--kv-cache-dtype", "fp8_e4m3")),
        ({"longest": True}, ("--max-model-len", "auto")),
        ({"enable_prefix_caching": False}, ("--no-enable-prefix-caching",)),
        ({"kv_cache_memory_bytes": 0}, ("--kv-cache-memory-bytes", "0")),
        ({"tensor_parallel_size": 2}, ("--tensor-parallel-size", "2")),
        ({"pipeline_parallel_size": 4}, ("--pipeline-parallel-size", "4")),
        ({"enforce_eager": True}, ("--enforce-eager",)),
        ({"language_model_only": True}, ("--language-model-only",)),
        ({"extra": ("--seed", "7")}, ("--seed", "7")),
        ({"gpu_memory_utilization": 0.1 + 0.2}, ("--gpu-memory-utilization", "0.30000000000000004")),
    ],
)
def test_an_option_is_said_where_it_differs(options: dict[str, Any], line: tuple[str, ...]) -> None:
    without = serve(model("a/b"), deployment()).lines
    lines = serve(model("a/b"), deployment(**options)).lines

    assert line in lines
    assert line not in without
    assert len(set(lines) - set(without)) == 1


def test_the_environment_is_said_before_and_given_to_the_container() -> None:
    meant, one = of(preset("qwen3.5-35b-pro6000"))
    variable = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1"

    assert serve(meant, one).arguments[:4] == ("env", variable, "vllm", "serve")
    assert ("-e", variable) in docker(meant, one, ()).lines


@pytest.mark.parametrize("one", presets(), ids=lambda one: one.name)
def test_a_container_gets_the_same_arguments(one: Any) -> None:
    meant, deployed = of(one, environment=())
    arguments = serve(meant, deployed).arguments[2:]
    run = docker(meant, deployed, OVERLAYS).arguments

    assert run[-len(arguments) :] == arguments
    assert "HF_TOKEN" in run, "by its name, never with a value"
    assert run[run.index("--gpus") + 1] == ("4" if "4x3090" in one.name else "1")


def test_a_folder_is_mounted_into_the_container() -> None:
    run = docker(model("/models of mine/qwen, new"), deployment(), ()).arguments

    assert run[run.index("--mount") + 1] == (
        'type=bind,"source=/models of mine/qwen, new","target=/models/qwen, new",readonly'
    )
    assert "/models/qwen, new" in run
    assert serve(model("/models of mine/qwen"), deployment()).arguments[2] == "/models of mine/qwen"


@pytest.mark.skipif(not which("docker"), reason="no docker client")
@pytest.mark.parametrize("name", ["a/b", "/models of mine/qwen, new"])
def test_the_docker_client_understands_it(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")  # it parses first
    run = docker(model(name), deployment(environment=("A=1 2",)), ()).arguments
    wrong = tuple("--ipc-of=host" if argument == "--ipc=host" else argument for argument in run)

    ran = [subprocess.run(arguments, capture_output=True, text=True, check=False).stderr for arguments in (run, wrong)]
    assert "Cannot connect to the Docker daemon" in ran[0]
    assert "unknown flag: --ipc-of" in ran[1]


def test_overlays_are_put_on_by_their_names_in_order() -> None:
    named = ("--overlay", "ct-fp8-lm-head", "--overlay", "turboquant-hybrid", "--overlay", "turboquant-workspace")

    assert apply(()) is None
    assert (done := apply(OVERLAYS)) is not None
    assert done.arguments == ("vpatch", "apply", *named)
    assert build(deployment("0.20.2"), ()) is None, "it is vLLM's own"
    assert (built := build(deployment("0.21.0"), OVERLAYS)) is not None
    tag = "localhost/vllm-openai:v0.21.0-vpatch"
    assert built.arguments == ("vpatch", "build", "--base", "vllm/vllm-openai:v0.21.0", *named, "--tag", tag)
    assert tag in docker(model("a/b"), deployment("0.21.0"), OVERLAYS).arguments


@pytest.mark.parametrize("command", [apply(OVERLAYS), build(deployment("0.21.0"), OVERLAYS)], ids=["apply", "build"])
def test_our_own_commands_parse(command: Command) -> None:
    _, name, *arguments = command.arguments
    found = program.get_command(click.Context(program), name)
    assert found is not None

    context = found.make_context(name, list(arguments))
    assert context.params["ids"] == tuple(sorted(OVERLAYS))


@settings(max_examples=25, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=8), TEXT)
def test_a_shell_reads_the_text_as_the_arguments(extra: list[str], name: str) -> None:
    meant = replace(model("a/b"), name=name, revision=name or None)
    command = serve(meant, deployment(extra=tuple(extra)))
    assert command.arguments[-len(extra) :] == tuple(extra)

    text = str(command).removeprefix("vllm serve")
    ran = subprocess.run(["sh", "-c", f"printf '%s\\0' {text}"], capture_output=True, check=True)
    assert ran.stdout.decode().split("\0")[:-1] == list(command.arguments[2:])

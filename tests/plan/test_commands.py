"""The commands that deploy a plan, and the image that they run."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from itertools import chain
from pathlib import Path
from shutil import which
from typing import Any

import click
import pytest
from vpatch.cli.main import program
from vpatch.core.catalogue import discover
from vpatch.image.order import definition_files, read_definitions
from vpatch.plan.commands import IMAGES, PUBLISHED, STOCK, Image, Lines, apply, build, docker, image, serve, shell
from vpatch.plan.defaults import preset, presets

from tests.paths import ROOT
from tests.plan.examples import bare_deployment, bare_model, preset_deployment
from tests.plan.test_compose import HARD
from tests.releases import pending

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
  -v /home/me/.cache/huggingface/hub:/root/.cache/huggingface/hub \\
  -p 127.0.0.1:8000:8000 \\
  localhost/vllm-openai:v0.20.2-vpatch \\
  inferRouter/Qwen3.6-35B-A3B-NVFP4 \\
"""


def arguments_of(command: Lines) -> tuple[str, ...]:
    """Return the arguments to execute."""
    return tuple(chain(*command))


def test_the_text_has_one_option_per_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/home/me/.cache/huggingface/hub")
    meant, one = preset_deployment(preset("qwen3.6-35b-5090-262k-fp8head"), speculative_tokens=2)

    assert shell(serve(meant, one)) == EXAMPLE
    assert shell(docker(meant, one, OVERLAYS)) == RUN + EXAMPLE.partition("\n")[2]


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
def test_an_option_is_printed_where_it_differs(options: dict[str, Any], line: tuple[str, ...]) -> None:
    without = serve(bare_model("a/b"), bare_deployment())
    lines = serve(bare_model("a/b"), bare_deployment(**options))

    assert line in lines
    assert line not in without
    assert len(set(lines) - set(without)) == 1


def test_the_environment_precedes_the_command_and_is_passed_to_the_container() -> None:
    meant, one = preset_deployment(preset("qwen3.5-35b-pro6000"))
    variable = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1"

    assert arguments_of(serve(meant, one))[:4] == ("env", variable, "vllm", "serve")
    assert ("-e", variable) in docker(meant, one, ())


@pytest.mark.parametrize("one", presets(), ids=lambda one: one.name)
def test_a_container_gets_the_same_arguments(one: Any) -> None:
    meant, deployed = preset_deployment(one, environment=())
    arguments = arguments_of(serve(meant, deployed))[2:]
    run = arguments_of(docker(meant, deployed, OVERLAYS))

    assert run[-len(arguments) :] == arguments
    assert "HF_TOKEN" in run, "by its name, never with a value"
    assert run[run.index("--gpus") + 1] == ("4" if "4x3090" in one.name else "1")


def test_a_folder_is_mounted_into_the_container() -> None:
    run = arguments_of(docker(bare_model("/models of mine/qwen, new"), bare_deployment(), ()))

    assert run[run.index("--mount") + 1] == (
        'type=bind,"source=/models of mine/qwen, new","target=/models/qwen, new",readonly'
    )
    assert "/models/qwen, new" in run
    assert arguments_of(serve(bare_model("/models of mine/qwen"), bare_deployment()))[2] == "/models of mine/qwen"


@pytest.mark.skipif(not which("docker"), reason="no docker client")
@pytest.mark.parametrize("name", ["a/b", "/models of mine/qwen, new"])
def test_the_docker_client_understands_it(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")  # it parses first
    run = arguments_of(docker(bare_model(name), bare_deployment(environment=("A=1 2",)), ()))
    wrong = tuple("--ipc-of=host" if argument == "--ipc=host" else argument for argument in run)

    ran = [subprocess.run(arguments, capture_output=True, text=True, check=False).stderr for arguments in (run, wrong)]
    assert "Cannot connect to the Docker daemon" in ran[0]
    assert "unknown flag: --ipc-of" in ran[1]


def test_overlays_are_applied_by_name_in_order() -> None:
    named = ("--overlay", "ct-fp8-lm-head", "--overlay", "turboquant-hybrid", "--overlay", "turboquant-workspace")

    assert apply(()) == ()
    assert arguments_of(apply(OVERLAYS)) == ("vpatch", "apply", *named)
    assert build(bare_deployment("0.20.2"), ()) == (), "it is vLLM's own"
    built = arguments_of(build(bare_deployment("0.21.0"), OVERLAYS))
    tag = "localhost/vllm-openai:v0.21.0-vpatch"
    assert built == ("vpatch", "build", "--base", "vllm/vllm-openai:v0.21.0", *named, "--tag", tag)
    assert tag in arguments_of(docker(bare_model("a/b"), bare_deployment("0.21.0"), OVERLAYS))


@pytest.mark.parametrize(
    "command", [apply(OVERLAYS), build(bare_deployment("0.21.0"), OVERLAYS)], ids=["apply", "build"]
)
def test_our_own_commands_parse(command: Lines) -> None:
    _, name, *arguments = arguments_of(command)
    parent = click.Context(program, **program.context_settings)  # click keeps the first parent's names of --help
    found = program.get_command(parent, name)
    assert found is not None

    context = found.make_context(name, list(arguments), parent=parent)
    assert context.params["ids"] == tuple(sorted(OVERLAYS))


def test_a_shell_reads_the_text_as_the_arguments() -> None:
    command = serve(replace(bare_model("a/b"), name="yes\n'", revision="$HOME"), bare_deployment(extra=HARD))

    text = shell(command).removeprefix("vllm serve")
    ran = subprocess.run(["sh", "-c", f"printf '%s\\0' {text}"], capture_output=True, check=True)
    assert ran.stdout.decode().split("\0")[:-1] == list(arguments_of(command)[2:])
    assert arguments_of(command)[-len(HARD) :] == HARD


HYBRID = {"turboquant-hybrid", "turboquant-workspace"}


def test_images_to_publish_are_the_defined_ones() -> None:
    wanted = set()
    for one in read_definitions(definition_files(ROOT)):
        base = one.base.removeprefix("docker.io/").partition("@")[0]
        release = base.partition(":v")[2].partition("-")[0]
        overlays = [item.id for item in one.selection.among(discover()) if release in pending(item.id)]
        wanted |= {Image(base, tag, tuple(overlays)) for tag in one.tags}

    assert set(IMAGES) == wanted
    assert len(IMAGES) == len(wanted)
    assert not PUBLISHED, "README says that none is"


def test_without_overlays_the_image_is_vllms() -> None:
    assert image(bare_deployment("0.20.2"), ()) == Image(f"{STOCK}:v0.20.2", f"{STOCK}:v0.20.2")
    assert image(bare_deployment("0.18.0", cuda="cu130"), ()).name == f"{STOCK}:v0.18.0-cu130"


def test_the_published_image_with_the_fewest_overlays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vpatch.plan.commands.PUBLISHED", True)
    names = [
        image(deployed, overlays).name
        for deployed, overlays in (
            (bare_deployment("0.20.2"), HYBRID),
            (bare_deployment("0.20.2"), HYBRID | {"turboquant-tiles"}),
            (bare_deployment("0.20.2", cuda="cu129"), HYBRID),
        )
    ]
    assert names == [f"ghcr.io/vpatch/vllm-openai:v0.20.2{suffix}" for suffix in ("", "-tiles", "-cu129")]


def test_an_unpublished_image_must_be_built_and_has_no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    overlays = ("turboquant-skip-list", "turboquant-workspace")
    none = Image(f"{STOCK}:v0.21.0", "localhost/vllm-openai:v0.21.0-vpatch", overlays, built=True)

    with monkeypatch.context() as published:
        published.setattr("vpatch.plan.commands.PUBLISHED", True)
        assert image(bare_deployment("0.21.0"), {*overlays}) == none
    assert image(bare_deployment("0.20.2"), HYBRID).name == "localhost/vllm-openai:v0.20.2-vpatch"
    assert image(bare_deployment("0.20.2+cu129"), ()).name == f"{STOCK}:v0.20.2"
    assert image(bare_deployment("0.33.0"), {"ct-fp8-lm-head", "turboquant-tiles"}).built
    assert image(bare_deployment("0.20.2", cuda="cu128"), HYBRID).name == "localhost/vllm-openai:v0.20.2-cu128-vpatch"

"""Releases with their traits; presets, complete and overridden by options; GPUs by name; architectures by release."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from packaging.version import Version
from vpatch.errors import UnknownName
from vpatch.plan import GIB, defaults, deployment
from vpatch.plan.architectures import KNOWN
from vpatch.plan.defaults import GPUS, gpu, gpu_here, preset, presets
from vpatch.plan.deployment import Gpu, changes_of

from tests.conftest import Program, Trees
from tests.failures import problem_of
from tests.paths import ROOT
from tests.plan.examples import GPU, bare_model, preset_deployment, traits
from tests.releases import RELEASES, tiered

TWO = "give one, and how many: --gpu 'H100' --tensor-parallel-size 2"
NAME = re.compile(r"qwen3\.[56]-(27b|35b)-(5090|pro6000|4x3090)(-[a-z0-9]+)*")


def test_no_code_of_plan_has_the_number_of_a_release() -> None:
    """What a release does stands in `releases.toml`. Comments and docstrings name releases as sources."""
    for path in (ROOT / "builder/vpatch/plan").glob("*.py"):
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        strings = [token.string for token in tokens if token.type == tokenize.STRING and '"""' not in token.string]
        assert not [text for text in strings if re.search(r"\b0\.(1[89]|[23]\d)\b", text)], path
        assert not re.search(r"\(0, (1[89]|[23]\d)\b", path.read_text()), path


def test_a_command_resolves_its_release_once(vpatch: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(wraps=deployment.release_of)
    for module in ("vpatch.plan.deployment", "vpatch.plan.defaults", "vpatch.cli.plan"):
        monkeypatch.setattr(f"{module}.release_of", counted)
    vpatch("plan", "--preset", "qwen3.6-35b-5090-32k", "--requests", "1000")

    assert counted.call_count == 1


@pytest.mark.parametrize(("build", "release"), [("0.20.1rc3+g1", "0.20.1"), ("0.20.3.dev7+g1", "0.20.2")])
def test_a_build_is_as_its_release(build: str, release: str) -> None:
    """Between releases, builds are numbered after the next patch release, which may never come."""
    assert replace(traits(build), vllm=Version(release)) == traits(release)


def test_releases_differ_by_traits() -> None:
    assert replace(traits("0.20.1"), vllm=Version("0.20.0"), number=Version("0.20.0")) != traits("0.20.0")
    assert (changes_of("bare_stages"), deployment.release_before("0.26")) == (["0.20", "0.26"], "0.25.1")
    assert tuple(map(str, deployment.RELEASES)) == RELEASES


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("0.17.0", "unknown release: vLLM 0.17.0: plan knows the arithmetic of vLLM 0.18.0 to 0.33.0"),
        ("0.34.0", "unknown release: vLLM 0.34.0: plan knows the arithmetic of vLLM 0.18.0 to 0.33.0"),
        ("0.20.9", "no such release: vLLM 0.20.9: the nearest are 0.20.2 and 0.21.0"),
        ("0.18.2+cu130", "no such release: vLLM 0.18.2+cu130: the nearest are 0.18.1 and 0.19.0"),
        ("0.20.3.post1", "no such release: vLLM 0.20.3.post1: the nearest are 0.20.2 and 0.21.0"),
    ],
)
def test_a_release_that_does_not_exist(version: str, problem: str) -> None:
    with pytest.raises(UnknownName) as unknown:
        traits(version)
    assert str(unknown.value) == problem


@pytest.mark.parametrize("one", presets(), ids=lambda one: one.name)
def test_a_preset_is_a_deployment_of_a_recorded_model(one: Any) -> None:
    meant, made = preset_deployment(one)

    assert NAME.fullmatch(one.name)
    assert 20 < len(one.summary) <= 110
    assert (meant.name, meant.revision) == (one.model, one.revision or "main")
    assert made.gpu.name == one.gpu
    assert made.gpus == (4 if "4x3090" in one.name else 1)
    assert made.vllm.public in RELEASES
    assert {"max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"} <= one.options.keys()


def test_options_override_the_preset() -> None:
    one = preset("qwen3.5-35b-pro6000")
    made = one.deployment(GPU, {})
    assert (made.vllm, made.cuda, made.longest) == (Version("0.18.0"), "cu130", True)

    assert one.deployment(GPU, {"max_num_seqs": 3}) == replace(made, max_num_seqs=3)
    assert one.deployment(GPU, {"max_model_len": 4096}) == replace(made, max_model_len=4096, longest=False)
    newer = traits("0.33.0")
    assert one.deployment(GPU, {"release": newer}) == replace(made, release=newer, cuda="")
    assert one.deployment(GPU, {"release": traits("0.18.0")}) == made


@pytest.mark.parametrize(
    ("find", "name", "line"),
    [
        (preset, "qwen3.6-35b-5090-32", "no such preset: qwen3.6-35b-5090-32: did you mean qwen3.6-35b-5090-32k?"),
        (preset, "llama", "no such preset: llama: known: qwen3.6-35b-5090-32k, "),
        (gpu, "PRU 6000", "no such GPU: PRU 6000: did you mean RTX PRO 6000? known: RTX 4060, "),
        (gpu, "5091", "no such GPU: 5091: did you mean RTX 5090? known: RTX 4060, "),
        (gpu, "rtx 4095", "no such GPU: rtx 4095: did you mean RTX 4090? known: RTX 4060, "),
        # Another number is another GPU.
        *((gpu, name, f"no such GPU: {name}: it is several; {TWO}") for name in ("2xH100", "h100 x2", "2 x H100")),
        *((gpu, name, f"no such GPU: {name}: known: RTX 4060, ") for name in ("Voodoo", "RTX 5050", "H1000")),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(find: Any, name: str, line: str) -> None:
    assert str(problem_of(find, name)).startswith(line)


@pytest.mark.parametrize("name", ["RTX 5090", "rtx5090", "5090", "GeForce RTX 5090", "NVIDIA GeForce RTX 5090"])
def test_a_gpu_in_any_spelling(name: str) -> None:
    assert gpu(name).memory == int(31.36 * GIB)


def test_gpus_and_any_size() -> None:
    sizes = [one.memory for one in GPUS if one.name != "RTX 4090"]

    assert sizes == sorted(sizes)
    assert all("reported" in one.source for one in GPUS)
    assert (gpu(None, 5).memory, gpu("RTX 5080", 16 * GIB).name) == (5, "RTX 5080")
    assert gpu("RTX 5090", 30 * GIB).capability == (12, 0)


@pytest.mark.parametrize(
    ("card", "vllm", "batches"),
    [
        (gpu("H100"), "0.32.0", (1024, 8192)),
        (gpu("H200"), "0.27.1", (1024, 8192)),
        (gpu("B200"), "0.28.0", (1024, 16_384)),
        (gpu("A100", 79 * GIB), "0.32.0", (256, 2048)),
        (gpu("RTX 5090"), "0.32.0", (256, 2048)),
        (gpu("GB10", 119 * GIB), "0.32.0", (1024, 8192)),
        (gpu("GB10", 119 * GIB), "0.33.0", (256, 2048)),
    ],
)
def test_the_batches_that_a_release_takes_by_default(card: Gpu, vllm: str, batches: tuple[int, int]) -> None:
    """An A100 takes small ones, by its name, and a GB10 from 0.33 on. Source: `EngineArgs.get_batch_defaults`."""
    found = defaults.defaults(bare_model("a/b"), traits(vllm), card)

    assert (found["max_num_seqs"], found["max_num_batched_tokens"]) == batches


@pytest.mark.parametrize("release", tiered(RELEASES))
def test_a_release_has_the_architectures_and_caches_prefixes_as_its_files_say(pristine: Trees, release: str) -> None:
    """Up to 0.25.1 it caches no prefixes of hybrid models by itself, and 0.26 and 0.27 have to be asked for it."""
    files = ("model_executor/models/registry.py", "engine/arg_utils.py", "config/model.py")
    registry, options, support = ((pristine(release) / "vllm" / file).read_text() for file in files)
    there = {name for name, known in KNOWN.items() if Version(known.since or "0") <= Version(release)}
    asked = "is_prefix_caching_supported and not model_config.is_hybrid" in options
    unsupported = "Hybrid models do not support prefix caching" in support

    assert {name for name in there if f'"{name}"' not in registry} == set()
    assert traits(release).caches_hybrid_prefixes is not (asked or unsupported)


DRIVER = """
#include <string.h>
#include <stddef.h>
int cuInit(unsigned flags) { return STATUS; }
int cuDeviceGet(int *device, int ordinal) { *device = 7; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, NAME, length); return device != 7; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 33661911040; return device != 7; }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = which == 75 ? 12 : 0; return device != 7; }
"""


def driver(folder: Path, name: str, status: int = 0) -> str:
    """Compile a driver whose first GPU has this name; return the library's path."""
    source, library = folder / "cuda.c", folder / "libcuda.so.1"
    source.write_text(DRIVER)
    macros = (f"-DNAME={chr(34)}{name}{chr(34)}", f"-DSTATUS={status}")
    subprocess.run(["gcc", "-shared", "-fPIC", *macros, "-o", library, source], check=True)
    return str(library)


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 5090", "NVIDIA Quadro of tomorrow"])
def test_the_first_gpu(tmp_path: Path, name: str) -> None:
    found = gpu_here(driver(tmp_path, name))

    assert found
    assert found.name == name.removeprefix("NVIDIA ").removeprefix("GeForce ")
    assert (found.memory, found.capability) == (33_661_911_040, (12, 0))


def test_no_driver_and_no_gpu(tmp_path: Path) -> None:
    assert gpu_here(str(tmp_path / "libcuda.so.1")) is None
    assert gpu_here(driver(tmp_path, "none", status=100)) is None


def test_a_plan_is_for_the_gpu_that_is_here(vpatch: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = driver(tmp_path, "NVIDIA RTX PRO 9000")
    monkeypatch.setattr("vpatch.cli.plan.gpu_here", lambda: gpu_here(library))
    arguments = ("plan", "--model", "Qwen3.6-35B-A3B-NVFP4", "--max-model-len", "4096", "--vllm", "0.33.0")

    assert " on RTX PRO 9000, vLLM 0.33.0\n" in vpatch(*arguments).out
    assert " on RTX 3090, vLLM 0.33.0\n" in vpatch(*arguments, "--gpu", "3090").out
    assert vpatch(*arguments, "--gpu", "3090", "--json").json["gpu"]["gib"] == 23.69

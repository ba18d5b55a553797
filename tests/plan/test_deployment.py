"""Presets: complete, named regularly, and overridden by options. GPUs by name, and architectures by release."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from packaging.version import Version
from vpatch.errors import Failure
from vpatch.plan import GIB, KNOWN
from vpatch.plan.deployment import GPUS, Gpu, arithmetic_of, defaults, gpu, preset, presets

from tests.conftest import Trees
from tests.failures import problem_of
from tests.plan.examples import GPU, bare_model, preset_deployment
from tests.releases import RELEASES, tiered

NAME = re.compile(r"qwen3\.[56]-(27b|35b)-(5090|pro6000|4x3090)(-[a-z0-9]+)*")


def test_there_is_one_for_every_deployment_that_was_described() -> None:
    of = [(one.source.partition(":")[0], one.gpu, one.vllm.public) for one in presets()]

    assert {source: of.count(source) for source in of} == {
        ("model card of inferRouter/Qwen3.6-35B-A3B-NVFP4", "RTX 5090", "0.20.2"): 7,
        ("model card of ig1/Qwen3.5-35B-A3B-NVFP4", "RTX PRO 6000", "0.18.0"): 1,
        ("model card of ig1/Qwen3.5-35B-A3B-NVFP4", "RTX 5090", "0.18.0"): 4,
        ('Zing Forum, "Running Qwen3.5-35B MoE on RTX 5090', "RTX 5090", "0.33.0"): 1,
        ("guide to Qwen3.5-35B-A3B on RTX 3090s", "RTX 3090", "0.33.0"): 3,
        ('Reddit r/LocalLLaMA, "2000 TPS Qwen 3.5 27B on RTX 5090", "Technical Deep Dive"', "RTX 5090", "0.33.0"): 1,
    }
    assert len({(one.model, one.revision, *sorted(map(str, one.options.items()))) for one in presets()}) == 17


def test_names_are_regular_and_summaries_fit_a_line() -> None:
    names = [one.name for one in presets()]

    assert len(set(names)) == len(names)
    assert [name for name in names if not NAME.fullmatch(name)] == []
    assert [one.name for one in presets() if not 20 < len(one.summary) <= 110] == []


@pytest.mark.parametrize("name", [one.name for one in presets()])
def test_a_preset_is_a_deployment_of_a_recorded_model(name: str) -> None:
    one = preset(name)
    meant, made = preset_deployment(one)

    assert (meant.name, meant.revision) == (one.model, one.revision or "main")
    assert made.gpu.name == one.gpu
    assert made.tensor_parallel_size * made.pipeline_parallel_size == (4 if "4x3090" in name else 1)
    assert made.vllm.public in RELEASES
    assert one.options["max_num_seqs"] == made.max_num_seqs
    assert {"max_num_batched_tokens", "gpu_memory_utilization", "enable_prefix_caching"} <= one.options.keys()


def test_the_two_branches_differ_in_the_revision_alone() -> None:
    for name in ("qwen3.6-35b-5090-32k", "qwen3.6-35b-5090-262k"):
        main, head = preset(name), preset(f"{name}-fp8head")
        assert (main.revision, head.revision) == ("main", "fp8-head")
        assert main.deployment(GPU, {}) == head.deployment(GPU, {})


def test_a_desktop_takes_less() -> None:
    kinds = ("desktop-conservative", "desktop-recommended", "desktop-aggressive", "headless")
    rows = [preset(f"qwen3.5-35b-5090-{kind}").deployment(GPU, {}) for kind in kinds]

    assert [row.gpu_memory_utilization for row in rows] == [0.885, 0.905, 0.926, 0.956]
    assert [row.desktop for row in rows] == [True, True, True, False]
    assert {replace(row, gpu_memory_utilization=1, desktop=False) for row in rows} == {
        replace(rows[0], gpu_memory_utilization=1, desktop=False)
    }


def test_options_override_the_preset() -> None:
    one = preset("qwen3.5-35b-pro6000")
    as_it_is = one.deployment(GPU, {})
    assert (as_it_is.vllm, as_it_is.cuda, as_it_is.longest) == (Version("0.18.0"), "cu130", True)

    assert one.deployment(GPU, {"max_num_seqs": 3}) == replace(as_it_is, max_num_seqs=3)
    shorter = one.deployment(GPU, {"max_model_len": 4096})
    assert shorter == replace(as_it_is, max_model_len=4096, longest=False)
    newer = one.deployment(GPU, {"vllm": Version("0.33.0")})
    assert newer == replace(as_it_is, vllm=Version("0.33.0"), cuda="")
    assert one.deployment(GPU, {"vllm": Version("0.18.0")}) == as_it_is


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("qwen3.6-35b-5090-32", "did you mean qwen3.6-35b-5090-32k?"),
        ("pro6000", "did you mean qwen3.5-35b-pro6000?"),
        ("", "known: qwen3.6-35b-5090-32k, "),
        ("llama", "known: qwen3.6-35b-5090-32k, "),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, cause: str) -> None:
    assert str(problem_of(preset, name)).startswith(f"no such preset: {name}: {cause}")


@pytest.mark.parametrize("name", ["RTX 5090", "rtx5090", "5090", "GeForce RTX 5090", "NVIDIA GeForce RTX 5090"])
def test_a_name_in_any_spelling(name: str) -> None:
    assert gpu(name).memory == int(31.36 * GIB)


def test_an_unknown_gpu_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Failure, match=r"no such GPU: PRU 6000: did you mean RTX PRO 6000\? known: RTX 4060, .*-gib"):
        gpu("PRU 6000")
    for name in ("Voodoo", "RTX 5050", "H1000"):  # another number is another GPU
        assert str(problem_of(gpu, name)).startswith(f"no such GPU: {name}: known: RTX 4060, ")


def test_any_size() -> None:
    assert (gpu(None, 5).memory, gpu("RTX 5080", 16 * GIB).name) == (5, "RTX 5080")
    assert gpu("RTX 5090", 30 * GIB).capability == (12, 0)


def test_from_the_smallest_to_the_largest_that_differ_in_more_than_drivers_do() -> None:
    sizes = [one.memory for one in GPUS if one.name != "RTX 4090"]
    assert sizes == sorted(sizes)
    assert all("reported" in one.source for one in GPUS)


def test_the_batches_that_a_release_takes_by_default() -> None:
    """An A100 takes small ones, by its name, and a GB10 from 0.33 on. Source: `EngineArgs.get_batch_defaults`."""
    model = bare_model("a/b")

    def batches(card: Gpu, vllm: str = "0.32.0") -> tuple[int, int]:
        found = defaults(model, Version(vllm), card)
        return found["max_num_seqs"], found["max_num_batched_tokens"]

    assert batches(gpu("H100")) == (1024, 8192)
    assert batches(gpu("A100", 79 * GIB)) == batches(gpu("RTX 5090")) == (256, 2048)
    assert batches(gpu("GB10", 119 * GIB)) == (1024, 8192)
    assert batches(gpu("GB10", 119 * GIB), "0.33.0") == (256, 2048)


@pytest.mark.parametrize("release", tiered(RELEASES))
def test_vllm_has_each_architecture_from_the_release_on_that_plan_says(pristine: Trees, release: str) -> None:
    registry = (pristine(release) / "vllm/model_executor/models/registry.py").read_text()
    there = {name for name, known in KNOWN.items() if Version(known.since or "0") <= Version(release)}

    assert {name for name in there if f'"{name}"' not in registry} == set()


@pytest.mark.parametrize("release", tiered(RELEASES))
def test_a_release_caches_prefixes_of_hybrid_models_by_default_as_its_files_say(pristine: Trees, release: str) -> None:
    """Up to 0.25.1 it does not support it, by itself, and 0.26 and 0.27 have to be asked for it."""
    options, support = (pristine(release) / "vllm" / file for file in ("engine/arg_utils.py", "config/model.py"))
    asked = "is_prefix_caching_supported and not model_config.is_hybrid" in options.read_text()
    unsupported = "Hybrid models do not support prefix caching" in support.read_text()

    assert arithmetic_of(Version(release)).caches_hybrid_prefixes is not (asked or unsupported)

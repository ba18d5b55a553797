"""The real `vllm serve` of a release parses every printed command as meant."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from itertools import chain
from typing import Any

import pytest
from vpatch.plan.commands import serve
from vpatch.plan.defaults import Preset, presets
from vpatch.plan.deployment import Deployment

from tests.conftest import Trees
from tests.plan.examples import bare_deployment, bare_model, preset_deployment
from tests.tiers import sampled
from tests.validation.cpu.environment import interpreter, probe

pytestmark = pytest.mark.deep

RELEASES = sampled(("0.33.0", "0.18.0", "0.20.2"), 2)
Parsed = dict[str, dict[str, Any]]

MADE = {
    "everything": bare_deployment(
        kv_cache_dtype="fp8_e4m3",
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        gpu_memory_utilization=0.875,
        kv_cache_memory_bytes=21_600_665_601,
        speculative_tokens=3,
        enable_prefix_caching=False,
        enforce_eager=True,
        language_model_only=True,
    ),
    "little": bare_deployment(enable_prefix_caching=True),
}
WRONG = {
    "unknown option": (("--max-model-length", "32768"), "unrecognized arguments: --max-model-length 32768"),
    "unknown reasoning parser": (("--reasoning-parser", "qwen9"), "no parser qwen9 among .*qwen3"),
}
"""Arguments, and the messages that refuse them."""

# Options that are not fields of Deployment, by the beginning of the preset's name.
TOOLS = {
    "served_model_name": ["Qwen3.5-35B-A3B"],
    "reasoning_parser": "qwen3",
    "tool_call_parser": "qwen3_coder",
    "enable_auto_tool_choice": True,
}
EXTRA: dict[str, dict[str, Any]] = {
    "qwen3.6-35b-": {"served_model_name": ["qwen35b-a3b"]},
    "qwen3.5-35b-pro6000": TOOLS | {"limit_mm_per_prompt": {}, "max_cudagraph_capture_size": None},
    "qwen3.5-35b-5090-headless": TOOLS | {"limit_mm_per_prompt": {"video": 0}, "max_cudagraph_capture_size": 32},
    "qwen3.5-35b-5090-desktop-": TOOLS | {"limit_mm_per_prompt": {"video": 0}, "max_cudagraph_capture_size": 32},
    "qwen3.5-35b-5090-256k": {"reasoning_parser": "qwen3", "max_cudagraph_capture_size": 8},
    "qwen3.5-35b-4x3090-": {},
    "qwen3.5-27b-5090-batch": {
        "max_cudagraph_capture_size": 8,
        "default_chat_template_kwargs": {"enable_thinking": False},
    },
}
BESIDE = {"release", "gpu", "desktop", "tiles", "longest", "cuda", "environment", "extra"}
BESIDE |= {"speculative_tokens", "max_model_len"}


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """Return each release, one after the other."""
    return str(request.param)


@pytest.fixture(scope="module")
def parsed(release: str, pristine: Trees, tmp_path_factory: pytest.TempPathFactory) -> Parsed:
    """Return what the parser of the release makes of each command, by name."""
    commands = {preset.name: serve(*preset_deployment(preset, environment=())) for preset in presets()}
    commands |= {name: serve(bare_model("someone/model", "main"), one) for name, one in MADE.items()}
    asked = {name: tuple(chain(*command))[2:] for name, command in commands.items()}
    asked |= {name: ("someone/model", *arguments) for name, (arguments, _) in WRONG.items()}
    asked["in MiB"] = ("someone/model", "--kv-cache-memory-bytes", "20600M")
    home = tmp_path_factory.mktemp("serve")
    file = home / "asked.json"
    file.write_text(json.dumps(asked))
    return probe(interpreter(release), "probe_serve", pristine(release), home, str(file))


def lacks(release: str, one: Deployment) -> bool:
    """Whether a release is known to lack the KV cache."""
    return release == "0.18.0" and one.kv_cache_dtype.startswith("turboquant")


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.name)
def test_a_preset_arrives_as_meant(parsed: Parsed, release: str, preset: Preset) -> None:
    found = parsed[preset.name]
    model, one = preset_deployment(preset)
    if lacks(release, one):
        assert "argument --kv-cache-dtype: invalid choice: 'turboquant_4bit_nc'" in found["refused"]
        return

    assert "refused" not in found, found["refused"]
    values = found["values"]
    assert (values["model"], values["revision"]) == (model.name, model.revision)
    assert arrived(values) == meant(one)
    (extra,) = (extra for name, extra in EXTRA.items() if preset.name.startswith(name))
    assert {name: values[name] for name in extra} == extra


@pytest.mark.parametrize("name", MADE)
def test_every_option_arrives_as_meant(parsed: Parsed, name: str) -> None:
    values = parsed[name]["values"]

    assert (values["model"], values["revision"]) == ("someone/model", "main")
    assert arrived(values) == meant(MADE[name])


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused(parsed: Parsed, name: str) -> None:
    assert re.search(WRONG[name][1], parsed[name]["refused"])


def test_the_size_of_the_kv_cache_is_what_its_source_says(parsed: Parsed) -> None:
    (preset,) = (one for one in presets() if "kv_cache_memory_bytes" in one.options)

    assert preset.options["kv_cache_memory_bytes"] == parsed["in MiB"]["values"]["kv_cache_memory_bytes"]


def meant(one: Deployment) -> dict[str, Any]:
    """Return the values of a deployment that a command has, by vLLM's names."""
    values = {field.name: getattr(one, field.name) for field in fields(one) if field.name not in BESIDE}
    draft = {"method": "mtp", "num_speculative_tokens": one.speculative_tokens} if one.speculative_tokens else None
    return values | {"max_model_len": -1 if one.longest else one.max_model_len, "speculative_config": draft}


def arrived(values: dict[str, Any]) -> dict[str, Any]:
    """Return the same fields of the parsed values."""
    return {name: values[name] for name in meant(MADE["little"])}

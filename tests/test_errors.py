"""What a misspelt name is answered with."""

from __future__ import annotations

import pytest
from vpatch.errors import closest

from tests.conftest import Program
from tests.paths import ROOT

OVERLAYS = ("ct-fp8-lm-head", "turboquant-hybrid", "turboquant-skip-list", "turboquant-tiles", "turboquant-workspace")


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("turboquant-hybird", "did you mean turboquant-hybrid?"),
        ("TurboQuant-Hybrid", "did you mean turboquant-hybrid?"),
        ("workspace", "did you mean turboquant-workspace?"),
        ("skip-list", "did you mean turboquant-skip-list?"),
        ("turboquant", f"did you mean {', '.join([OVERLAYS[3], *OVERLAYS[1:3]])} or turboquant-workspace?"),
        ("TURBOQUANT-TILES", "did you mean turboquant-tiles?"),
        ("turboquant-workspac", "did you mean turboquant-workspace?"),
        ("lm-head", "did you mean ct-fp8-lm-head?"),
        ("nonsense", f"known: {', '.join(OVERLAYS)}"),
        ("", f"known: {', '.join(OVERLAYS)}"),
    ],
)
def test_closest(typed: str, answer: str) -> None:
    assert closest(typed, OVERLAYS) == answer
    assert closest(typed, ()) == "known: "


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("stauts",), "No such command 'stauts': did you mean status?"),
        (("aply", "."), "No such command 'aply': did you mean apply?"),
        (("nonsense",), "No such command 'nonsense': known: status, apply, revert, doctor, "),
        (("apply", "--chekc"), "'--chekc'"),
        (("show", "turboquant-hybird"), "no such overlay: turboquant-hybird: did you mean turboquant-hybrid?"),
        (("plan", "--preset", "qwen3.6-35b-5090-32"), "did you mean qwen3.6-35b-5090-32k?"),
        (("plan", "--model", "Qwen3.6-35B-A3B", "--gpu", "RTX 509"), "did you mean RTX 5090 or RTX 5090 Laptop?"),
        (("plan", "--model", "Qwen3.6-35B-A3"), "did you mean Qwen/Qwen3.6-35B-A3B?"),
        (("plan", "nobody/Qwen3.6-35B-A3B-NVFP4"), "did you mean inferRouter/Qwen3.6-35B-A3B-NVFP4?"),
        (("plan", "qwen3.6-35b"), "did you mean Qwen/Qwen3.6-35B-A3B or inferRouter/Qwen3.6-35B-A3B-NVFP4?"),
        (("plan", "--model", "Qwen3.6-35B-A3B", "--vllm", "0.20.9"), "vLLM 0.20.9: the nearest are 0.20.2 and 0.21.0"),
        (("build", "images/v0.20.toml"), "no such file: images/v0.20.toml: did you mean images/v0.20.2.toml or "),
        (("build", "v0.20.2.toml"), "no such file: v0.20.2.toml: did you mean images/v0.20.2.toml?"),
        (("build", "/nowhere/missing.toml"), "no such file: /nowhere/missing.toml: known: images/v0.20.2-cu129-"),
        (("fetch", "0.20.3", "nowhere"), "no such release: vllm 0.20.3: the index has "),
        (("fetch", "latest", "nowhere"), "not a version: latest: a release reads like 0.20.2"),
        (("matrix", "--vllm", "0.20.3"), "no such release: vllm 0.20.3: "),
    ],
)
def test_a_typo_exits_with_2_and_a_suggestion(
    vpatch: Program, arguments: tuple[str, ...], answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    ran = vpatch(*arguments)

    assert (ran.code, ran.out) == (2, "")
    assert answer in ran.err


@pytest.mark.deep
def test_a_short_version_is_explained(vpatch: Program) -> None:
    """0.20 is the release 0.20.0 by PEP 440; who types it may want the newest of 0.20."""
    ran = vpatch("matrix", "--vllm", "0.20", "--overlay", "turboquant-hybrid")

    assert "0.20 is the release 0.20.0, not the newest of 0.20\n" in ran.err

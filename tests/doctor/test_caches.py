"""Compiled code from before overlays were applied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.doctor.conftest import Diagnose, Found, put

BEFORE, AFTER = 1_000_000_000, 4_000_000_000
JIT, AOT = "9e386186a3", "torch_aot_compile/61bda05feca29378"


def one(found: list[Found]) -> Found:
    (only,) = found
    return only


def stamp(top: Path, when: int) -> None:
    for path in (top, *top.rglob("*")):
        os.utime(path, (when, when))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The default cache of vLLM, with a model compiled in each way, both from before the overlays."""
    top = tmp_path / "home/.cache/vllm/torch_compile_cache"
    put(top / JIT / "rank_0_0/backbone/vllm_compile_cache.py", "")
    put(top / AOT / "rank_0_0/model", "")
    put(top / AOT / "inductor_cache/24/code.py", "")
    stamp(top, BEFORE)
    return top


def test_none(diagnose: Diagnose, healthy: Path) -> None:
    assert one(diagnose(healthy, name="compile-cache"))["level"] == "ok"
    assert diagnose(healthy, name="kernel-cache") == []


def test_nothing_is_applied(diagnose: Diagnose, stock: Path, cache: Path) -> None:
    assert diagnose(stock, name="compile-cache") == []


def test_old_models(diagnose: Diagnose, healthy: Path, cache: Path) -> None:
    found = one(diagnose(healthy, name="compile-cache"))

    assert (found["level"], found["where"]) == ("note", f"{cache / AOT}, {cache / JIT}")
    assert f"`rm -r {cache}`" in found["do"]


@pytest.mark.parametrize("entry", [JIT, AOT])
def test_a_model_that_was_compiled_since(diagnose: Diagnose, healthy: Path, cache: Path, entry: str) -> None:
    """vLLM writes the new model into the old folder, whose own time stays."""
    new = next(path for path in (cache / entry).rglob("*") if path.name in ("model", "vllm_compile_cache.py"))
    os.utime(new, (AFTER, AFTER))

    found = one(diagnose(healthy, name="compile-cache"))

    assert found["where"] == str(cache / ({JIT, AOT} - {entry}).pop())


@pytest.mark.parametrize(("variable", "suffix"), [("VLLM_CACHE_ROOT", ""), ("XDG_CACHE_HOME", "/vllm")])
def test_the_cache_is_elsewhere(
    diagnose: Diagnose,
    healthy: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    suffix: str,
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    elsewhere = tmp_path / f"elsewhere{suffix}/torch_compile_cache"
    assert one(diagnose(healthy, name="compile-cache"))["where"] == str(elsewhere)
    cache.rename(put(elsewhere.parent / "x", "").parent / elsewhere.name)

    assert f"`rm -r {elsewhere}`" in one(diagnose(healthy, name="compile-cache"))["do"]


@pytest.mark.parametrize("name", ["Triton", "Inductor"])
def test_kernels(diagnose: Diagnose, healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """They are named, and there is nothing to do."""
    folder = tmp_path / "kernels"
    monkeypatch.setenv({"Triton": "TRITON_CACHE_DIR", "Inductor": "TORCHINDUCTOR_CACHE_DIR"}[name], str(folder))
    put(folder / "ABC/kernel.cubin", "")
    stamp(folder, AFTER)
    assert diagnose(healthy, name="kernel-cache") == []
    stamp(folder, BEFORE)

    found = one(diagnose(healthy, name="kernel-cache"))

    assert (found["level"], found["where"], found["do"]) == ("ok", str(folder), "")
    assert found["what"].startswith(f"{name}'s kernels from before the overlays")

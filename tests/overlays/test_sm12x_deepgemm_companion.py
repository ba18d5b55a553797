"""The companion module on packages on disk; `test_sm12x_deepgemm_cpu.py` runs it inside the real vLLM."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vpatch_overlays.companions.sm12x_deepgemm import SOURCES, has_sm120_sources

# As in vLLM: whether a module can be found and imported.
HAS_MODULE = """
import importlib

def _has_module(module_name):
    try:
        importlib.import_module(module_name)
    except Exception:
        return False
    return True
"""
COPY, PACKAGE = "vllm/third_party/deep_gemm", "deep_gemm"

Ask = Callable[..., bool]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """`ask({package: sources}, {package: code})`: the companion's answer with these packages."""
    kept = dict(sys.modules)

    def run(packages: dict[str, tuple[str, ...] | None], code: dict[str, str] | None = None) -> bool:
        files = {
            "vllm/__init__.py": "",
            "vllm/third_party/__init__.py": "",
            "vllm/utils/__init__.py": "",
            "vllm/utils/import_utils.py": HAS_MODULE,
        }
        for package in packages:
            files[f"{package}/__init__.py"] = (code or {}).get(package, "")
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        for package, names in packages.items():
            for name in names or ():
                (tmp_path / package / SOURCES).mkdir(parents=True, exist_ok=True)
                (tmp_path / package / SOURCES / name).touch()
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        has_sm120_sources.cache_clear()
        return has_sm120_sources()

    yield run
    has_sm120_sources.cache_clear()
    for name in sys.modules.keys() - kept.keys():
        if name.partition(".")[0] in {"vllm", PACKAGE}:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("packages", "answer"),
    [
        ({}, False),
        ({COPY: None}, False),
        ({COPY: ("sm90_x.cuh", "sm100_x.cuh", "xsm120_x.cuh")}, False),
        ({COPY: ("sm90_x.cuh", "sm120_x.cuh")}, True),
        ({COPY: ("sm90_x.cuh",), PACKAGE: ("sm120_x.cuh",)}, True),
        ({COPY: ("sm120_x.cuh",), PACKAGE: ("sm90_x.cuh",)}, False),
        ({COPY: ("sm120_x.cuh",), PACKAGE: None}, False),
        ({PACKAGE: ("sm120_x.cuh",)}, True),
    ],
)
def test_the_package_that_vllm_imports_decides(
    ask: Ask, packages: dict[str, tuple[str, ...] | None], *, answer: bool
) -> None:
    assert ask(packages) is answer


@pytest.mark.parametrize(("names", "answer"), [(("sm120_x.cuh",), True), (("sm90_x.cuh",), False)])
def test_a_package_that_cannot_be_imported_is_passed_over(ask: Ask, names: tuple[str, ...], *, answer: bool) -> None:
    """Nor is vLLM's own copy imported, whose compiled half looks for CUDA: only where it lies is asked."""
    code = {COPY: "raise SystemExit", PACKAGE: "raise OSError('libcudart')"}

    assert ask({COPY: names, PACKAGE: () if answer else ("sm120_x.cuh",)}, code) is answer


def test_the_answer_is_kept(ask: Ask, tmp_path: Path) -> None:
    assert ask({COPY: ("sm120_x.cuh",)})
    (tmp_path / COPY / SOURCES / "sm120_x.cuh").unlink()

    assert has_sm120_sources()

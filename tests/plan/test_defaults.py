"""The GPU of a machine, asked of a driver that answers as CUDA's does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from vpatch.plan.defaults import gpu_here

from tests.conftest import Program

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

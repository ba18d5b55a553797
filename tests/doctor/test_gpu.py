"""GPU, driver, torch and compiled extensions. A program in place of nvidia-smi answers: the tests need no GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.doctor.conftest import Diagnose, Found, packages, put
from tests.image.cuda.making import extension

H100 = "NVIDIA H100 80GB HBM3, 570.86.15, 81559 MiB, 9.0"
EXTENSIONS = ("_C", "_moe_C", "vllm_flash_attn/_vllm_fa2_C")


def smi(folder: Path, *rows: str, code: int = 0) -> None:
    """Make an nvidia-smi that prints rows if it is asked as vpatch asks."""
    asked = '[ "$*" = "--query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader" ]'
    told = "\n".join(f"echo '{row}'" for row in rows)
    put(folder / "nvidia-smi", f"#!/bin/sh\n{asked} || exit 2\n{told}\nexit {code}\n").chmod(0o755)


def torch(venv: Path, cuda: str | None, hip: str | None = None, version: str = "2.11.0+cu130") -> Path:
    lines = (
        f"__version__ = '{version}'",
        "debug = False",
        f"cuda: Optional[str] = {cuda!r}",
        f"hip: Optional[str] = {hip!r}",
    )
    return put(packages(venv) / "torch/version.py", "from typing import Optional\n" + "\n".join(lines) + "\n")


def compiled(venv: Path, *binaries: str) -> None:
    for name in EXTENSIONS:
        put(packages(venv) / f"vllm/{name}.abi3.so", extension(*binaries))


def one(found: list[Found]) -> Found:
    (only,) = found
    return only


def test_no_gpu(diagnose: Diagnose, healthy: Path) -> None:
    found = one(diagnose(healthy, name="gpu"))
    assert (found["level"], found["what"]) == ("note", "no NVIDIA GPU: there is no nvidia-smi")

    torch(healthy, None, "7.0.5")
    assert one(diagnose(healthy, name="gpu"))["what"].endswith("torch is built for ROCm")


def test_gpus(diagnose: Diagnose, healthy: Path, alone: Path) -> None:
    smi(alone, H100, H100, "NVIDIA GB10, 580.95.05, [N/A], 12.1")

    assert [(found["level"], found["what"]) for found in diagnose(healthy, name="gpu")] == [
        ("ok", "2 x NVIDIA H100 80GB HBM3, 81559 MiB, compute capability 9.0, driver 570.86.15"),
        ("ok", "NVIDIA GB10, [N/A], compute capability 12.1, driver 580.95.05"),
    ]
    assert diagnose(healthy, name="driver") == diagnose(healthy, name="torch") == [], "there is no torch"


FAULT = "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."


@pytest.mark.parametrize(
    ("rows", "code", "told"), [((FAULT,), 9, FAULT), (("No devices were found",), 0, "No devices"), ((), 3, "it exits")]
)
def test_a_driver_that_fails(
    diagnose: Diagnose, healthy: Path, alone: Path, rows: tuple[str, ...], code: int, told: str
) -> None:
    smi(alone, *rows, code=code)

    found = one(diagnose(healthy, name="gpu"))

    assert (found["level"], found["where"]) == ("warning", f"{alone}/nvidia-smi")
    assert found["what"].startswith(f"nvidia-smi finds no usable GPU: {told}")


def test_a_driver_that_hangs(diagnose: Diagnose, healthy: Path, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(alone / "nvidia-smi", "#!/bin/sh\nread line < /dev/tty || exec /bin/sleep 60\n").chmod(0o755)
    monkeypatch.setattr("vpatch.doctor.gpu._PATIENCE", 0.1)

    assert one(diagnose(healthy, name="gpu"))["what"] == "nvidia-smi finds no usable GPU: no answer in 0.1 seconds"


@pytest.mark.parametrize(
    ("cuda", "level", "told"),
    [
        ("12.9", "ok", "the driver runs torch 2.11.0+cu130: CUDA 12.9 needs >=525.60.13"),
        ("13.0", "warning", "driver 570.86.15 is too old for torch 2.11.0+cu130: CUDA 13.0 needs >=580.65.06"),
    ],
)
def test_driver_and_torch(diagnose: Diagnose, healthy: Path, alone: Path, cuda: str, level: str, told: str) -> None:
    file = torch(healthy, cuda)
    smi(alone, H100)

    found = one(diagnose(healthy, name="driver"))

    assert (found["level"], found["what"]) == (level, told)
    assert found["where"] == ("" if level == "ok" else str(file))


def test_an_unknown_cuda_is_not_judged(diagnose: Diagnose, healthy: Path, alone: Path) -> None:
    torch(healthy, "99.0")
    smi(alone, H100)

    assert diagnose(healthy, name="driver") == []


def test_a_torch_without_cuda(diagnose: Diagnose, healthy: Path, alone: Path) -> None:
    file = torch(healthy, None, version="2.11.0+cpu")
    smi(alone, H100)

    found = one(diagnose(healthy, name="torch"))

    assert (found["level"], found["where"]) == ("warning", str(file))
    assert found["what"].startswith("torch 2.11.0+cpu is a build without CUDA")


def test_compiled_code(diagnose: Diagnose, healthy: Path, alone: Path) -> None:
    torch(healthy, "12.9")
    smi(alone, H100)
    assert diagnose(healthy, name="extension") == [], "none is installed"
    compiled(healthy, "sm_80 sm_90")
    assert one(diagnose(healthy, name="extension"))["level"] == "ok"

    smi(alone, H100, "NVIDIA GeForce RTX 5090, 580.95.05, 32607 MiB, 12.0", "NVIDIA Old, 570.86.15, 1 MiB, [N/A]")
    served, lacking = diagnose(healthy, name="extension")

    assert (served["level"], served["what"]) == ("ok", "vLLM's compiled code serves compute capability 9.0")
    assert lacking["level"] == "warning"
    assert lacking["what"] == "vLLM's compiled code lacks what compute capability 12.0 needs"
    assert lacking["where"] == ", ".join(sorted(f"vllm/{name}.abi3.so" for name in EXTENSIONS))


def test_compiled_code_without_its_reader(
    diagnose: Diagnose, healthy: Path, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyelftools is an extra of vpatch."""
    torch(healthy, "12.9")
    smi(alone, H100)
    compiled(healthy, "sm_80")
    find = importlib.util.find_spec
    monkeypatch.setattr("vpatch.doctor.gpu.find_spec", lambda name: None if name == "elftools" else find(name))

    assert diagnose(healthy, name="extension") == []

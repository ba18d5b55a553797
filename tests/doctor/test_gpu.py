"""GPU, driver, torch and compiled extensions. A program in place of nvidia-smi answers: the tests need no GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from vpatch.doctor import gpu
from vpatch.doctor.subject import Finding

from tests.doctor.conftest import Examine, brief, packages, put
from tests.image.cuda.making import extension

H100 = "NVIDIA H100 80GB HBM3, 570.86.15, 81559 MiB, 9.0"
EXTENSIONS = ("_C", "_moe_C", "vllm_flash_attn/_vllm_fa2_C")
FAULT = "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver."
FAILS = "nvidia-smi finds no usable GPU: "


def smi(folder: Path, *rows: str, code: int = 0) -> None:
    """Make an nvidia-smi that prints rows if it is asked as vpatch asks."""
    asked = '[ "$*" = "--query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader" ]'
    lines = "\n".join(f"echo '{row}'" for row in rows)
    put(folder / "nvidia-smi", f"#!/bin/sh\n{asked} || exit 2\n{lines}\nexit {code}\n").chmod(0o755)


def torch(venv: Path, cuda: str | None, hip: str | None = None, version: str = "2.11.0+cu130") -> Path:
    values = {"__version__": version, "debug": False, "cuda: Optional[str]": cuda, "hip: Optional[str]": hip}
    lines = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return put(packages(venv) / "torch/version.py", f"from typing import Optional\n{lines}")


def test_gpus(examine: Examine, healthy: Path, alone: Path) -> None:
    subject = examine(healthy)
    assert brief(gpu.findings(subject)) == [("gpu", "note", "no NVIDIA GPU: there is no nvidia-smi")]
    smi(alone, H100, H100, "NVIDIA GB10, 580.95.05, [N/A], 12.1")
    assert brief(gpu.findings(subject)) == [
        ("gpu", "ok", "2 x NVIDIA H100 80GB HBM3, 81559 MiB, compute capability 9.0, driver 570.86.15"),
        ("gpu", "ok", "NVIDIA GB10, [N/A], compute capability 12.1, driver 580.95.05"),
    ]
    (alone / "nvidia-smi").unlink()
    torch(healthy, None, "7.0.5")
    assert brief(gpu.findings(subject))[0][2].endswith("torch is built for ROCm")


def test_an_environment_without_torch(examine: Examine, healthy: Path) -> None:
    """As after an installation without dependencies; one that is installed for editing has only its dist-info."""
    ((name, level, what),) = brief(gpu.absence(examine(healthy)))
    assert (name, level, what) == ("torch", "warning", "this Python has no torch: vLLM does not start")
    for found in ("torch", "torch-2.11.0.dist-info"):
        (packages(healthy) / found).mkdir()
        assert brief(gpu.absence(examine(healthy))) == []
        (packages(healthy) / found).rmdir()


def test_a_driver_that_fails(examine: Examine, healthy: Path, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = examine(healthy)
    for rows, code, text in (((FAULT,), 9, FAULT), (("No devices were found",), 0, "No devices"), ((), 3, "it exits")):
        smi(alone, *rows, code=code)
        (found,) = gpu.findings(subject)
        assert (found.level, found.where) == ("warning", (f"{alone}/nvidia-smi",))
        assert found.what.startswith(FAILS + text)
    put(alone / "nvidia-smi", "#!/bin/sh\nread line < /dev/tty || exec /bin/sleep 60\n").chmod(0o755)
    monkeypatch.setattr(gpu, "_PATIENCE", 0.1)
    assert brief(gpu.findings(subject)) == [("gpu", "warning", f"{FAILS}no answer in 0.1 seconds")]
    put(alone / "nvidia-smi", "no program").chmod(0o755)
    assert brief(gpu.findings(subject)) == [("gpu", "warning", f"{FAILS}exec format error")]


@pytest.mark.parametrize(
    ("cuda", "version", "what"),
    [
        ("12.9", "2.11", "the driver runs torch 2.11: CUDA 12.9 needs >=525.60.13"),
        ("13.0", "2.11", "driver 570.86.15 is too old for torch 2.11: CUDA 13.0 needs >=580.65.06"),
        ("99.0", "2.11", ""),  # unknown, and so not judged
        (None, "2.1+cpu", "torch 2.1+cpu is a build without CUDA: vLLM cannot use the GPU with it"),
    ],
)
def test_driver_and_torch(
    cuda: str | None, version: str, what: str, examine: Examine, healthy: Path, alone: Path
) -> None:
    file = torch(healthy, cuda, version=version)
    smi(alone, H100)
    _, *found = gpu.findings(examine(healthy))

    name, level = "driver" if cuda else "torch", "ok" if cuda == "12.9" else "warning"
    assert brief(found) == ([(name, level, what)] if what else [])
    assert [one.where for one in found] == ([() if level == "ok" else (str(file),)] if what else [])


def test_compiled_code(examine: Examine, healthy: Path, alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch(healthy, "99.0")
    smi(alone, H100)

    def extensions() -> list[Finding]:
        return [one for one in gpu.findings(examine(healthy)) if one.name == "extension"]

    assert extensions() == [], "none is installed"
    for name in EXTENSIONS:
        put(packages(healthy) / f"vllm/{name}.abi3.so", extension("sm_80 sm_90"))
    smi(alone, H100, "NVIDIA GeForce RTX 5090, 580.95.05, 32607 MiB, 12.0", "NVIDIA Old, 570.86.15, 1 MiB, [N/A]")
    served, lacking = extensions()
    assert brief([served, lacking]) == [
        ("extension", "ok", "vLLM's compiled code serves compute capability 9.0"),
        ("extension", "warning", "vLLM's compiled code lacks what compute capability 12.0 needs"),
    ]
    assert lacking.where == tuple(sorted(f"vllm/{name}.abi3.so" for name in EXTENSIONS))

    find = importlib.util.find_spec  # pyelftools is an extra of vpatch
    monkeypatch.setattr(gpu, "find_spec", lambda name: None if name == "elftools" else find(name))
    assert extensions() == []

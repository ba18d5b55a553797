"""A virtual environment in which vLLM's own Python code runs without a GPU; built on first use, kept in `.cache/`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache"
REQUIREMENTS = (("requirements.txt",), ("requirements-alone.txt", "--no-deps"))

OURS = ("VLLM_", "HF_", "PYTHON", "PYTEST_", "TRITON_", "CUDA_")


def interpreter() -> Path:
    """Give the Python of the environment; build it if it is not there, or not whole.

    Raises:
        RuntimeError: it cannot be built, for instance because a requirement has no wheel for this Python.
    """
    key = hashlib.sha256(f"{sys.implementation.cache_tag} {platform.machine()} {sys.base_prefix}".encode())
    for name, *_ in REQUIREMENTS:
        key.update((HERE / name).read_bytes())
    home = CACHE / f"cpu-{key.hexdigest()[:12]}"
    python, whole = home / "bin" / "python", home / "whole"
    CACHE.mkdir(exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(home, ignore_errors=True)  # what an interrupted build left
            _do(sys.executable, "-m", "venv", str(home))
            for name, *options in REQUIREMENTS:
                # Wheels only: a source distribution would want compilers, and fail later and less clearly.
                install = ("install", "--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:")
                _do(str(python), "-m", "pip", *install, *options, "--requirement", str(HERE / name))
            whole.touch()
    return python


def environ(tree: Path, home: Path) -> dict[str, str]:
    """Give the environment variables for a process that is to see `tree` as its vLLM, and this project's tests.

    Nothing is written but below `home`, the tree keeps no bytecode, and nobody asks a hub for a model.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return kept | {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "PYTHONPATH": os.pathsep.join((str(tree), str(ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",  # also lets vLLM accept a Triton without a driver
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
    }


def probe(python: Path, name: str, tree: Path, home: Path, *arguments: str) -> dict[str, Any]:
    """Run `tests/cpu/<name>.py HOME ARGUMENTS`; give the one JSON object that it prints.

    In a process of its own, since vLLM's platforms and registries are global. It may write to `home`, an empty folder.
    """
    command = [str(python), "-m", f"tests.cpu.{name}", str(home), *arguments]
    ran = subprocess.run(command, cwd=home, env=environ(tree, home), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{name} on {tree}:\n{ran.stderr[-8000:]}"
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def _do(*command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        told = "\n".join(line for line in (ran.stdout + ran.stderr).splitlines() if not line.startswith("WARNING"))
        version = platform.python_version()
        raise RuntimeError(f"cannot build the environment of the CPU tests for Python {version}:\n{told[-2000:]}")

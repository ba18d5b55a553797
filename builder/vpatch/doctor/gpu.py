"""The GPU and its driver, and whether they run the installed torch and vLLM's compiled extensions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from vpatch.doctor.subject import Finding, Level, Subject
from vpatch.errors import Failure, cause
from vpatch.foreign import opened_regular, read_regular
from vpatch.gpu.fatbin import oldest_driver
from vpatch.gpu.fitness import lacking, survey

_PATIENCE = 20  # seconds: without its daemon, the driver starts each GPU first


@dataclass(frozen=True)
class _Torch:
    version: str
    cuda: str  # "13.0"; "" for a build without CUDA
    hip: str
    file: Path


def findings(subject: Subject) -> Iterator[Finding]:
    """Yield the GPUs, and what they lack for the torch and the extensions that are installed."""
    torch = _torch(subject)
    program = shutil.which("nvidia-smi")
    if program is None:
        what = "no NVIDIA GPU: there is no nvidia-smi"
        yield Finding("gpu", Level.NOTE, f"{what}; torch is built for ROCm" if torch and torch.hip else what)
        return
    output, failed = _ask(program)
    rows = [tuple(field.strip() for field in line.split(",")) for line in output.splitlines()]
    gpus = [row for row in rows if len(row) == 4 and re.fullmatch(r"\d+(\.\d+)+", row[1])]
    if failed or not gpus:
        first = (failed or output or "no output").strip().splitlines()[0]
        what = f"nvidia-smi finds no usable GPU: {first}"
        yield Finding("gpu", Level.WARNING, what, (program,), "mend the driver until `nvidia-smi` lists the GPU")
        return
    for (name, driver, memory, capability), number in Counter(gpus).items():
        times = f"{number} x " if number > 1 else ""
        yield Finding("gpu", Level.OK, f"{times}{name}, {memory}, compute capability {capability}, driver {driver}")
    if torch:
        yield from _for_torch(torch, [driver for _, driver, _, _ in gpus])
    if torch and torch.cuda:
        yield from _for_extensions(subject.tree.root, dict.fromkeys(capability for *_, capability in gpus))


def _ask(program: str) -> tuple[str, str]:
    """Return the rows that nvidia-smi prints, and why it failed, "" if it did not."""
    command = [program, "--query-gpu=name,driver_version,memory.total,compute_cap", "--format=csv,noheader"]
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, errors="replace", timeout=_PATIENCE, check=False
        )
    except OSError as error:
        return "", cause(error)
    except subprocess.TimeoutExpired:
        return "", f"no answer in {_PATIENCE} seconds"
    if ran.returncode:
        return "", f"{ran.stdout}\n{ran.stderr}".strip() or f"it exits with code {ran.returncode}"
    return ran.stdout, ""


def _torch(subject: Subject) -> _Torch | None:
    """Read which torch the interpreter would import; None if it has none, or if its file is not as expected."""
    for folder in subject.python.paths if subject.python else (subject.tree.root,):
        file = folder / "torch/version.py"
        if file.is_file():
            text = read_regular(file).decode("utf-8", "replace")
            values = dict(re.findall(r"^(__version__|cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE))
            if "__version__" in values:
                return _Torch(values["__version__"], values.get("cuda", ""), values.get("hip", ""), file)
            return None
    return None


def absence(subject: Subject) -> Iterator[Finding]:
    """Yield that an interpreter has no torch, as after an installation without dependencies."""
    paths = subject.python.paths if subject.python else ()
    if paths and not any((folder / "torch").is_dir() or [*folder.glob("torch-*.dist-info")] for folder in paths):
        do = "install vLLM with its dependencies, for a server; overlays need no torch"
        yield Finding("torch", Level.WARNING, "this Python has no torch: vLLM does not start", do=do)


def _for_torch(torch: _Torch, drivers: list[str]) -> Iterator[Finding]:
    where = (str(torch.file),)
    if not torch.cuda:
        what = f"torch {torch.version} is a build without CUDA: vLLM cannot use the GPU with it"
        do = "install the torch that this vLLM requires, from its CUDA builds"
        yield Finding("torch", Level.WARNING, what, where, do)
        return
    needed = oldest_driver(torch.cuda)
    try:
        old = [one for one in drivers if needed and one not in SpecifierSet(needed)]
    except InvalidVersion:
        return
    if old:
        what = f"driver {old[0]} is too old for torch {torch.version}: CUDA {torch.cuda} needs {needed}"
        do = "update the driver, or install NVIDIA's package `cuda-compat`, if it supports this GPU"
        yield Finding("driver", Level.WARNING, what, where, do)
    elif needed:
        yield Finding("driver", Level.OK, f"the driver runs torch {torch.version}: CUDA {torch.cuda} needs {needed}")


def _for_extensions(root: Path, capabilities: Iterable[str]) -> Iterator[Finding]:
    names = sorted(path.relative_to(root).as_posix() for path in (root / "vllm").rglob("*.so"))
    if not names or not find_spec("elftools"):
        return
    found = survey(_opened(root, names), None, {})
    for capability in capabilities:
        try:
            problems = lacking(found, capability)
        except Failure:  # not a number: "[N/A]"
            continue
        if problems:
            what = f"vLLM's compiled code lacks what compute capability {capability} needs"
            where, do = tuple(problem.where for problem in problems), "install a vLLM that is built for this GPU"
            yield Finding("extension", Level.WARNING, what, where, do)
        else:
            yield Finding("extension", Level.OK, f"vLLM's compiled code serves compute capability {capability}")


def _opened(root: Path, names: Iterable[str]) -> Iterator[tuple[str, IO[bytes]]]:
    for name in names:
        with opened_regular(root / name) as file, os.fdopen(os.dup(file), "rb") as again:
            yield name, again

"""The guest script that imports modules: on small packages, and on the real vLLM."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from vpatch import guest
from vpatch.image.checks import Check, import_outcomes

from tests.conftest import Trees
from tests.releases import FACTS
from tests.validation.cpu.environment import environ, interpreter

SCRIPT = guest.script("answer_imports", "loaded")
NOISY = """
import os, sys
print("on stdout")
os.system("echo from a child")
os.write(1, b'vpatch: {}\\n')
sys.stderr.write("on stderr\\n")
"""
# A module's code, and what is said of it: None for what the image lacks.
MODULES: dict[str, tuple[str, bool | None, str]] = {
    "fine": ("", True, ""),
    "noisy": (NOISY, True, ""),
    "torchless": ("import nothing_like_torch", None, "the image lacks nothing_like_torch"),
    "deep": ("import vllm.torchless", None, "the image lacks nothing_like_torch"),
    "submodule": ("import json.nothing", None, "the image lacks json.nothing"),
    "wrapped": (
        "try:\n    import nothing_like_torch\nexcept ImportError as error:\n    raise ImportError('get it') from error",
        None,
        "the image lacks nothing_like_torch",
    ),
    "library": (
        "raise ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')",
        None,
        "the image lacks libcuda.so.1",
    ),
    "ctypes": ("import ctypes\nctypes.CDLL('libnothing.so.7')", None, "the image lacks libnothing.so.7"),
    "missing": ("open('/nothing')", False, "FileNotFoundError: [Errno 2] No such file or directory: '/nothing'"),
    "compiled": ("import vllm._C", None, "the image lacks vllm._C"),
    "compiled_deep": ("import vllm.flash._vllm_fa2_C", None, "the image lacks vllm.flash._vllm_fa2_C"),
    "broken": ("undefined_name", False, "NameError: name 'undefined_name' is not defined"),
    "unclosed": ("(", False, "SyntaxError: '(' was never closed"),
    "lost": ("import vllm._vpatch.lost", False, "ModuleNotFoundError: No module named 'vllm._vpatch'"),
    "renamed": ("from vllm.fine import gone", False, "ImportError: cannot import name 'gone' from 'vllm.fine'"),
    "renamed_after": (
        "try:\n    import nothing_like_torch\nexcept ImportError:\n    from vllm.fine import gone",
        False,
        "ImportError: cannot import name 'gone' from 'vllm.fine'",
    ),
    "ending": ("raise SystemExit(3)", False, "it ends the interpreter with 3"),
}


def run(command: Iterable[str | Path], names: list[str], **options: object) -> tuple[Check, ...]:
    whole = [*command, "-c", SCRIPT, json.dumps(names)]
    ran = subprocess.run(whole, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    return import_outcomes(names, ran.returncode, ran.stdout, ran.stderr, limit_s=60)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Check]:
    tree = tmp_path_factory.mktemp("tree")
    (tree / "vllm/flash").mkdir(parents=True)
    for name in ("__init__", "flash/__init__"):
        (tree / f"vllm/{name}.py").touch()
    for name, (code, _, _) in MODULES.items():
        (tree / f"vllm/{name}.py").write_text(f"{code}\n")
    names = [f"vllm.{name}" for name in MODULES]
    return dict(zip(MODULES, run([sys.executable], names, cwd=tree), strict=True))


@pytest.mark.parametrize("name", MODULES)
def test_a_module(said: dict[str, Check], name: str) -> None:
    _, ok, because = MODULES[name]

    assert said[name].name == f"import vllm.{name}"
    assert said[name].ok is ok
    assert said[name].because.startswith(because)
    assert name != "broken" or said[name].because.endswith("/vllm/broken.py:1)"), "an error names its line"


def test_the_real_vllm_without_what_it_needs(pristine: Trees, tmp_path: Path) -> None:
    names = ["vllm.engine.arg_utils", "vllm.platforms.interface"]
    found = run([sys.executable], names, cwd=tmp_path, env=environ(pristine("0.20.2"), tmp_path))

    assert [(one.ok, one.because) for one in found] == [(None, "the image lacks torch")] * len(names)


@pytest.mark.deep
def test_the_real_vllm(patched: Trees, tmp_path: Path) -> None:
    """Every module that overlays change can be imported without a GPU; a broken one is the only one reported."""
    whole, tree = patched("0.20.2", *FACTS), tmp_path / "tree"
    shutil.copytree(whole, tree)
    touched = [path for path in whole.rglob("*.py") if b"# vpatch: " in path.read_bytes()]
    names = sorted(".".join(path.relative_to(whole).with_suffix("").parts) for path in touched)
    broken = "vllm.model_executor.models.qwen3_next_mtp"
    with (tree / f"{broken.replace('.', '/')}.py").open("a") as file:
        file.write("undefined_name\n")
    (tmp_path / "sitecustomize.py").write_text(
        "import tests.validation.cpu.platform as p\np.stand_in_for_torchvision()\n"
    )
    environment = environ(tree, tmp_path)
    environment["PYTHONPATH"] += f":{tmp_path}"

    found = run([interpreter("0.20.2")], names, cwd=tmp_path, env=environment)

    assert len(names) > 12
    assert [(one.name, one.because) for one in found if not one.ok] == [
        (f"import {broken}", found[names.index(broken)].because)
    ]
    assert found[names.index(broken)].because.startswith("NameError: name 'undefined_name' is not defined")

"""A process on a farm sees what it would see after `vpatch apply`: its code, sources, tracebacks, data and children."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from vpatch.run.content import Content
from vpatch.run.store import farm_of

from tests.needs import python
from tests.tiers import deep

STOCK = """
import json


class Thing:
    def tell(self):
        return "stock"


def fail():
    raise ValueError("stock")
"""
PATCHED = STOCK.replace("import json", "from vllm._vpatch.extra import word").replace('"stock"', "word()")
TREE = {
    "vllm/__init__.py": "",
    "vllm/layers/__init__.py": "",
    "vllm/layers/mod.py": STOCK,
    "vllm/layers/other.py": "from .mod import Thing\n",
    "vllm/layers/configs/a.json": "{}",
    "vllm/layers/registry.py": "from pathlib import Path\n\nAT = Path(__file__).parent / 'mod.py'\n",
    "vllm/main.py": "from vllm.layers.other import Thing\n\nprint(Thing().tell())\n",
}
CHANGED = {
    "vllm/layers/mod.py": PATCHED,
    "vllm/_vpatch/extra.py": "def word():\n    return 'patched'\n",
}
PROBE = Path(__file__).with_name("probe.py")
ISOLATED = "python -I -m"


def environment_with(executable: Path, at: Path, files: Mapping[str, str]) -> Path:
    subprocess.run([executable, "-m", "venv", "--without-pip", at], check=True)
    (packages,) = at.glob("lib/python3*/site-packages")
    for name, text in files.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    return at / "bin/python"


def seen(interpreter: Path, path: Path | None, here: Path) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not re.match("PYTHON|COVERAGE", name)}
    variables = {**kept, **({"PYTHONPATH": str(path)} if path else {})}
    ran = subprocess.run([interpreter, PROBE], cwd=here, env=variables, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("version", [deep("3.11"), "3.12", deep("3.13")])
def test_a_process_sees_what_apply_would_have_made(version: str, tmp_path: Path) -> None:
    """But for an isolated Python, which ignores PYTHONPATH: `vpatch run` refuses it."""
    executable = python(version)
    applied = environment_with(executable, tmp_path / "applied", TREE | CHANGED)
    stock = environment_with(executable, tmp_path / "stock", TREE)
    (packages,) = (tmp_path / "stock").glob("lib/python3*/site-packages")
    content = Content(packages, (), {file: text.encode() for file, text in CHANGED.items()})
    farm = farm_of(content, tmp_path / "cache", stock)
    (tmp_path / "here").mkdir()

    wanted, found = seen(applied, None, tmp_path / "here"), seen(stock, farm, tmp_path / "here")

    assert (wanted.pop(ISOLATED), found.pop(ISOLATED)) == ("patched", "stock")
    assert found == wanted
    assert (found["runs"], found["traceback"], found["spawn"]) == ("patched", True, "patched")
    shutil.rmtree(farm)
    assert seen(stock, None, tmp_path / "here")["runs"] == "stock"

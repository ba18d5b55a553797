"""A farm serves the environments for which it was made: a process of another one that inherits PYTHONPATH ends."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from vpatch.guest.vpatch_receipt import release_of
from vpatch.run.store import farm_of
from vpatch.tree.record import entry

from tests.run.standin import CHANGED, LOAD, Farm, standing_in

INFO = "vllm-9.9.9.dist-info"
CHECK = "import vpatch_ray\nvpatch_ray.check()\nprint('passes')\n"


@pytest.fixture
def released(farm: Farm, tmp_path: Path) -> Farm:
    """The farm of a vLLM with a RECORD, which has a version."""
    record = about(farm.root, INFO)
    changed = {*farm.content.files, *farm.content.applied}
    content = replace(farm.content, release=release_of(INFO, record, changed))
    return Farm(farm.root, content, farm_of(content, tmp_path / "released", Path(sys.executable)))


def about(root: Path, info: str) -> bytes:
    """Add a RECORD to a vLLM; return it."""
    (root / info).mkdir(exist_ok=True)
    rows = (entry(str(path.relative_to(root)), path.read_bytes()).raw for path in sorted(root.rglob("*.py")))
    (root / info / "RECORD").write_text("\n".join(rows))
    return (root / info / "RECORD").read_bytes()


def other_release(farm: Farm, root: Path) -> Path:
    shutil.copytree(farm.root, root, ignore=shutil.ignore_patterns("*.dist-info"))
    about(root, "vllm-8.8.8.dist-info")
    return root


def other_module(farm: Farm, root: Path) -> Path:
    shutil.copytree(farm.root, root)
    (root / "vllm/more.py").touch()
    about(root, INFO)
    return root


def no_record(farm: Farm, root: Path) -> Path:
    return standing_in(root, "0.33.0")


def none(farm: Farm, root: Path) -> Path:
    return root


def same_release(farm: Farm, root: Path) -> Path:
    """A copy, as in the environment that `uv run` makes for a worker of Ray."""
    return Path(shutil.copytree(farm.root, root))


def same_release_applied(farm: Farm, root: Path) -> Path:
    shutil.copytree(farm.root, root)
    (root / CHANGED).write_bytes(farm.content.files[CHANGED])
    about(root, INFO)
    return root


def linked(farm: Farm, root: Path) -> Path:
    root.symlink_to(farm.root)
    return root


OTHERS = {other_release: "imports the one in OTHER", other_module: "imports the one in OTHER"}
OTHERS |= {no_record: "imports the one in OTHER", none: "has none"}
Make = Callable[[Farm, Path], Path]


@pytest.mark.parametrize(("make", "said"), OTHERS.items())
def test_a_process_of_another_environment_ends(make: Make, said: str, released: Farm, tmp_path: Path) -> None:
    other = make(released, tmp_path / "other")
    ran = released.run("import vpatch_receipt\nvpatch_receipt.register()", PYTHONPATH=f"{released.path}:{other}")
    ray = released.run(CHECK, PYTHONPATH=f"{released.path}:{other}")

    assert (ran.returncode, ray.returncode, ray.stdout) == (1, 1, "")
    for one in (ran, ray):
        last = one.stderr.splitlines()[-1]
        assert f"the overlays are for the vLLM in {released.root}, and " in last
        assert said.replace("OTHER", str(other)) in last
        assert f"start it without {released.path} on PYTHONPATH, or with a `vpatch run` of its own" in last


@pytest.mark.parametrize("make", [same_release, same_release_applied, linked])
def test_another_place_of_the_same_vllm_is_served(make: Make, released: Farm, tmp_path: Path) -> None:
    other = make(released, tmp_path / "other")
    ran = released.run(LOAD, PYTHONPATH=f"{released.path}:{other}")

    assert (ran.returncode, ran.stderr.endswith(f"{released.line}\n")) == (0, True), ran.stderr
    assert released.run(CHECK, PYTHONPATH=f"{released.path}:{other}").stdout == "passes\n"


def test_a_finder_of_an_editable_install_is_asked(farm: Farm, tmp_path: Path) -> None:
    """As setuptools writes it: it comes after that of the path, and has no look at the path."""
    (tmp_path / "startup").mkdir()
    finder = f"""
import importlib.util, sys
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "vllm":
            return importlib.util.spec_from_file_location(name, {str(farm.root / "vllm/__init__.py")!r})

sys.meta_path.append(Finder)
"""
    (tmp_path / "startup/sitecustomize.py").write_text(finder)
    ran = farm.run(LOAD, PYTHONPATH=f"{farm.path}:{tmp_path}/startup")

    assert (ran.returncode, farm.line in ran.stderr) == (0, True), ran.stderr


def test_a_release_that_is_upgraded_below_a_farm_is_another(released: Farm) -> None:
    """Its overlays may read no file that differs."""
    (released.root / "vllm/more.py").touch()
    about(released.root, INFO)
    ran = released.run(LOAD)

    assert ran.returncode == 1
    assert f"{released.root}/{INFO}/RECORD: it has changed" in ran.stderr.splitlines()[-1]

"""A farm serves the environments for which it was made: a process of another one that inherits PYTHONPATH ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from vpatch.guest.record import entry
from vpatch.guest.vpatch_receipt import release_of

from tests.run.standin import CHANGED, LOAD, Farm, placed, standing_in

INFO = "vllm-9.9.9.dist-info"
REGISTER = "import vpatch_receipt\nvpatch_receipt.register()"
CHECK = "import vpatch_ray\nvpatch_ray.check()\nprint('passes')\n"


@pytest.fixture
def released(farm: Farm, tmp_path: Path) -> Farm:
    """The farm of a vLLM with a RECORD, which has a version."""
    record = recorded(farm.root)
    changed = {*farm.content.files, *farm.content.applied}
    return placed(replace(farm.content, release=release_of(INFO, record, changed)), tmp_path / "released")


def recorded(root: Path, info: str = INFO) -> bytes:
    """Add a RECORD to a vLLM; return it."""
    (root / info).mkdir(exist_ok=True)
    rows = (entry(str(path.relative_to(root)), path.read_bytes()).raw for path in sorted(root.rglob("*.py")))
    (root / info / "RECORD").write_text("\n".join(rows))
    return (root / info / "RECORD").read_bytes()


def other_release(farm: Farm, root: Path) -> None:
    shutil.copytree(farm.root, root, ignore=shutil.ignore_patterns("*.dist-info"))
    recorded(root, "vllm-8.8.8.dist-info")


def other_module(farm: Farm, root: Path) -> None:
    shutil.copytree(farm.root, root)
    (root / "vllm/more.py").touch()
    recorded(root)


def same_release_applied(farm: Farm, root: Path) -> None:
    shutil.copytree(farm.root, root)
    (root / CHANGED).write_bytes(farm.content.files[CHANGED])
    recorded(root)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (other_release, "imports the one in OTHER"),
        (other_module, "imports the one in OTHER"),
        (lambda _, root: standing_in(root, "0.33.0"), "imports the one in OTHER"),  # without a RECORD
        (lambda _farm, _root: None, "has none"),
        (lambda farm, root: shutil.copytree(farm.root, root), ""),  # as `uv run` makes it for a worker of Ray
        (same_release_applied, ""),
        (lambda farm, root: root.symlink_to(farm.root), ""),
    ],
    ids=["other release", "other module", "no RECORD", "none", "same", "applied", "link"],
)
def test_an_environment(make: Callable[[Farm, Path], object], message: str, released: Farm, tmp_path: Path) -> None:
    """Another place of the same vLLM is served."""
    make(released, tmp_path / "other")
    path = f"{released.path}:{tmp_path}/other"
    if message:
        for ran in (released.run(REGISTER, PYTHONPATH=path), released.run(CHECK, PYTHONPATH=path)):
            assert (ran.returncode, ran.stdout) == (1, "")
            last = ran.stderr.splitlines()[-1]
            assert f"the overlays are for the vLLM in {released.root}, and " in last
            assert message.replace("OTHER", f"{tmp_path}/other") in last
            assert f"start it without {released.path} on PYTHONPATH, or with a `vpatch run` of its own" in last
    else:
        ran = released.run(f"{LOAD}{CHECK}", PYTHONPATH=path)
        assert (ran.returncode, ran.stdout) == (0, "passes\n"), ran.stderr
        assert ran.stderr.endswith(f"{released.line}\n")


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
    ran = farm.start(LOAD, PYTHONPATH=f"{farm.path}:{tmp_path}/startup")

    assert (ran.returncode, farm.line in ran.stderr) == (0, True), ran.stderr


def test_a_release_that_is_upgraded_below_a_farm_is_another(released: Farm) -> None:
    """Its overlays may read no file that differs."""
    (released.root / "vllm/more.py").touch()
    recorded(released.root)
    ran = released.run(LOAD)

    assert ran.returncode == 1
    assert f"{released.root}/{INFO}/RECORD: it has changed" in ran.stderr.splitlines()[-1]

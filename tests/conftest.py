"""Fixtures for all tests: real vLLM releases, fetched once into `.cache/` (ignored by git), and the vpatch program."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

import pytest
from vpatch.cli import main
from vpatch.core.catalogue import discover, select
from vpatch.tree.apply import apply
from vpatch.tree.locate import locate
from vpatch.tree.write_plan import SitePackages

from tests.budget import pytest_configure
from tests.engines import _bounded, _shared, engine_of
from tests.forks import output
from tests.paths import link
from tests.releases import tree_of
from tests.session import (
    pytest_collection_modifyitems,
    pytest_runtest_setup,
    pytest_sessionstart,
    pytest_terminal_summary,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

__all__ = [
    "_bounded",
    "_shared",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_runtest_setup",
    "pytest_sessionstart",
    "pytest_terminal_summary",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
]

Trees = Callable[..., Path]


@dataclass(frozen=True)
class Ran:
    """Exit code and output of one run of the program."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on standard output."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


class Program(Protocol):
    """Run the program with arguments."""

    def __call__(self, *arguments: str | Path) -> Ran: ...


class Process(Protocol):
    """Run the program as a separate process; `env` is added to the environment."""

    def __call__(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> Ran: ...


@pytest.fixture(scope="session")
def pristine() -> Trees:
    """`pristine("0.20.2")`: the folder of that release as published. Do not modify it."""
    return tree_of


@pytest.fixture(scope="session")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Trees:
    """`patched("0.20.2", "turboquant-hybrid")`: that release with overlays (default: all). Do not modify it."""
    made: dict[tuple[str, ...], Path] = {}

    def make(version: str, *overlays: str) -> Path:
        key = (version, *overlays)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("patched") / version
            shutil.copytree(tree_of(version), made[key])
            changeset, writes = apply(SitePackages(locate(made[key])), select(discover(), overlays or None))
            assert not changeset.problems
            assert writes.changed
        return made[key]

    return make


def install_into(target: Path, source: Path) -> None:
    """Build and install a distribution into a folder, with the build tools of this environment."""
    options = ["--quiet", "--offline", "--no-cache", "--no-deps", "--no-build-isolation", "--python", sys.executable]
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "pip", "install", *options, "--target", target, source], check=True)


@pytest.fixture(scope="session")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a third-party distribution of overlays: a module and a patch file. Do not modify it."""
    top = tmp_path_factory.mktemp("third-party")
    source = Path(__file__).with_name("third_party")
    shutil.copytree(source, top / "source", ignore=shutil.ignore_patterns("__pycache__"))
    install_into(top / "target", top / "source")
    return top / "target"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of pristine 0.20.2, which the test may modify."""
    return shutil.copytree(tree_of("0.20.2"), tmp_path / "site-packages")


@pytest.fixture
def heeding_interrupts() -> Iterator[None]:
    """Let child processes react to SIGINT, which a shell disables for tests that run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the caller's environment variables from the tests."""
    for name in ("VIRTUAL_ENV", "NO_COLOR", "FORCE_COLOR", "SOURCE_DATE_EPOCH", *filter(_ours, os.environ)):
        monkeypatch.delenv(name, raising=False)


def _ours(name: str) -> bool:
    return name.startswith("VPATCH_")


@pytest.fixture
def vpatch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """`vpatch("status", tree)`: run the program in this process, which is fast."""

    def run(*arguments: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["vpatch", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
        except SystemExit as end:
            return Ran(int(end.code or 0), *capsys.readouterr())
        finally:
            gc.enable()

    return run


@pytest.fixture(scope="session")
def process() -> Process:
    """`process("status", tree)`: run the program as a separate process."""

    def run(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Ran:
        command = [sys.executable, "-m", "vpatch", *map(str, arguments)]
        environment = {**os.environ, **(env or {})}
        ran = subprocess.run(command, capture_output=True, env=environment, check=False)
        out, err = (data.decode("utf-8", "surrogateescape") for data in (ran.stdout, ran.stderr))
        return Ran(ran.returncode, out, err)

    return run


@pytest.fixture(scope="session")
def child() -> Process:
    """`child("status", tree)`: run the program in a fork of this process, see `tests.forks`."""

    def run(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Ran:
        return Ran(*output(*arguments, env=env))

    return run


@pytest.fixture(scope="session")
def slim(tmp_path_factory: pytest.TempPathFactory) -> Trees:
    """`slim("0.21.0")`: RECORD and the files that overlays read, of a pristine release. Do not modify it."""
    files = set(engine_of(discover()).files)
    wanted = files | {f"{parent}/__init__.py" for file in files for parent in Path(file).parents}
    made: dict[str, Path] = {}

    def make(version: str) -> Path:
        if version not in made:
            made[version] = tmp_path_factory.mktemp("slim") / version
            whole = tree_of(version)
            (info,) = whole.glob("*.dist-info")
            shutil.copytree(info, made[version] / info.name, copy_function=link)
            for file in sorted(file for file in wanted if (whole / file).is_file()):
                (made[version] / file).parent.mkdir(parents=True, exist_ok=True)
                link(str(whole / file), str(made[version] / file))
        return made[version]

    return make


@pytest.fixture
def linked(tmp_path: Path, slim: Trees) -> Trees:
    """`linked("0.21.0")`: a copy of `slim` made of hard links. Replace files; never write into them."""

    def make(version: str, name: str = "linked") -> Path:
        return shutil.copytree(slim(version), tmp_path / name, copy_function=link)

    return make


Contents = Mapping[str, bytes | None]


def contents_of(top: Path) -> Contents:
    """Return everything that `diff -r` compares: each file's bytes, and None for each folder."""
    found: dict[str, bytes | None] = {}
    for at, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != ".git"]
        below = f"{at}/"[len(f"{top}/") :]
        found |= {f"{below}{name}": None for name in folders}
        for name in names:
            with FileIO(f"{at}/{name}") as file:  # of thousands of copies: a Path takes longer than the file
                found[f"{below}{name}"] = file.readall()
    return found


@contextmanager
def unchanged(top: Path) -> Iterator[None]:
    """Assert that all bytes of a tree are the same after the block."""
    before = contents_of(top)
    yield
    assert contents_of(top) == before


@contextmanager
def untouched(top: Path) -> Iterator[None]:
    """Assert that the block writes nothing, not even the same bytes again."""

    def stats() -> dict[str, tuple[int, ...]]:
        found = {str(path): path.lstat() for path in (top, *top.rglob("*"))}
        # Without the ctime: other trees may link the same files meanwhile.
        return {path: (of.st_ino, of.st_mtime_ns, of.st_mode) for path, of in found.items()}

    with unchanged(top):
        before = stats()
        yield
        assert stats() == before


def environment(at: Path) -> Path:
    """Make a virtual environment, without pip; return its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", at], check=True)
    (packages,) = at.glob("lib/python3*/site-packages")
    return packages

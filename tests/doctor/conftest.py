"""Virtual environments with a vLLM 0.20.2, and what `vpatch doctor` finds in them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Protocol

import pytest
from vpatch import api
from vpatch.cli.target import Target
from vpatch.core.catalogue import Selection
from vpatch.doctor.subject import Finding, Subject, described
from vpatch.guest.record import entry
from vpatch.tree import verify
from vpatch.tree.environment import named

from tests.conftest import Program, Trees, environment
from tests.hybrid import INFO
from tests.paths import link

Found = dict[str, str]
"""A finding, as in JSON."""


ELSEWHERE = "vllm/v1/core/sched/request_queue.py"
"""A file of vLLM that no overlay reads."""


class Diagnose(Protocol):
    """Run `vpatch doctor --json` on an environment or a folder; return the findings of some names, or all."""

    def __call__(self, *arguments: str | Path, name: str = "") -> list[Found]: ...


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide this machine: its GPU, caches and environment variables. Return a folder that is first on PATH."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(programs)
    hidden = re.compile("PYTHONPATH|XDG_CACHE_HOME|TORCHINDUCTOR_CACHE_DIR|TRITON_.*|CONDA_PREFIX|VLLM_.*")
    for name in filter(hidden.fullmatch, [*os.environ]):
        monkeypatch.delenv(name)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    return programs


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> Iterator[None]:
    """Compile equal bytes once: it is half of what an examination takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "compiles", cache(verify.compiles))
        yield


@pytest.fixture(scope="session")
def _stock(slim: Trees, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the files that overlays read, as if the wheel had no others."""
    top = tmp_path_factory.mktemp("stock") / "venv"
    root = environment(top)
    shutil.copytree(slim("0.20.2"), root, copy_function=link, dirs_exist_ok=True)
    put(root / ELSEWHERE, "").write_bytes(b"x = 1\n")
    rows = (root / INFO / "RECORD").read_text().splitlines(keepends=True)
    there = [row for row in rows if (root / row.partition(",")[0]).exists() and not row.startswith(ELSEWHERE)]
    put(root / INFO / "RECORD", "".join(there) + entry(ELSEWHERE, b"x = 1\n").raw + "\n")
    return top


@pytest.fixture(scope="session")
def _healthy(_stock: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = copied(_stock, tmp_path_factory.mktemp("healthy") / "venv")
    assert api.apply(top).changed
    return top


def copied(venv: Path, to: Path) -> Path:
    """Copy an environment by hard links, as if it had been made there."""
    shutil.copytree(venv, to, copy_function=link, symlinks=True)
    put(to / "bin/activate", (to / "bin/activate").read_text().replace(str(venv), str(to)))
    return to


@pytest.fixture
def stock(_stock: Path, tmp_path: Path) -> Path:
    """An environment with a pristine vLLM, made of hard links. Replace files; never write into them."""
    return copied(_stock, tmp_path / "stock")


@pytest.fixture
def healthy(_healthy: Path, tmp_path: Path) -> Path:
    """The same with the default overlays."""
    return copied(_healthy, tmp_path / "healthy")


@pytest.fixture
def diagnose(vpatch: Program) -> Diagnose:
    def run(*arguments: str | Path, name: str = "") -> list[Found]:
        ran = vpatch("doctor", *arguments, "--json")
        found: list[Found] = ran.json["findings"]
        assert ran.code == int(any(one["level"] == "problem" for one in found))
        return [one for one in found if name in ("", one["name"])]

    return run


Examine = Callable[[Path], Subject]
"""Read what findings rest on. Of the overlays it has the verdicts on the `healthy` environment, computed once."""


@pytest.fixture(scope="session")
def examine(_healthy: Path) -> Examine:
    verified = api.verify(packages(_healthy))

    def make(venv: Path) -> Subject:
        located, commands = named(venv), Target(venv, None, Selection(), verbose=False)
        assert located.environment
        return Subject(located, verified, frozenset(), described(located.environment), None, commands)

    return make


def brief(found: Iterable[Finding]) -> list[tuple[str, str, str]]:
    return [(one.name, one.level.value, one.what) for one in found]


def packages(venv: Path) -> Path:
    (found,) = venv.glob("lib/python3*/site-packages")
    return found


def put(file: Path, content: str | bytes) -> Path:
    """Write a file anew, with its folders: the old one may be a hard link."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def one(found: list[Found]) -> Found:
    (only,) = found
    return only

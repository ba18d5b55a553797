"""Which vLLM a command works on if the user names none."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.tree.environment import current

from tests.conftest import Program
from tests.failures import problem_of
from tests.tree.conftest import INFO, PYTHON


@pytest.fixture
def venvs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, venv_at: Callable[[Path], Path]) -> dict[str, Path]:
    """Three environments with a vLLM each: one that runs vpatch, one that is active, and a project's `.venv`."""
    monkeypatch.chdir(tmp_path)
    made = {name: venv_at(tmp_path / name) for name in ("own", "active", ".venv")}
    monkeypatch.setattr(sys, "prefix", str(made["own"]))
    monkeypatch.setattr(sys, "executable", str(made["own"] / "bin/python"))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    return made


def packages(venv: Path) -> Path:
    return venv / "lib" / PYTHON / "site-packages"


def remove(venv: Path) -> None:
    (packages(venv) / "vllm").rename(packages(venv) / "gone")
    shutil.rmtree(packages(venv) / INFO)


def test_the_interpreter_that_runs_vpatch_comes_first(
    venvs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, vpatch: Program
) -> None:
    """`VIRTUAL_ENV=active own/bin/vpatch status` works on own, and says how to name the others."""
    monkeypatch.setenv("VIRTUAL_ENV", str(venvs["active"]))

    found = current()

    assert (found.tree.root, found.how) == (packages(venvs["own"]), "the interpreter that runs vpatch")
    assert [other.name for other in found.others] == ["VIRTUAL_ENV", "./.venv"]
    first, *_ = vpatch("status").err.splitlines()
    assert first == (
        f"vLLM 1.0 in own/lib/{PYTHON}/site-packages (the interpreter that runs vpatch; VIRTUAL_ENV has another: "
        f"--python {venvs['active']}/bin/python, ./.venv has another: --python .venv/bin/python)"
    )


def test_then_the_active_environment_and_then_the_projects(
    venvs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(venvs["own"])
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        with monkeypatch.context() as active:
            active.setenv(variable, str(venvs["active"]))
            found = current()
            assert (found.tree.root, found.how) == (packages(venvs["active"]), variable)

    found = current()
    assert (found.tree.root, found.others) == (packages(venvs[".venv"]), ())


@pytest.mark.parametrize("own", [False, True])
def test_an_active_environment_without_vllm_is_named(
    venvs: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    vpatch: Program,
    own: bool,  # noqa: FBT001
) -> None:
    """The user may have meant it; of an environment that only runs vpatch, nothing is said."""
    active = venvs["own" if own else "active"]
    for venv in {venvs["own"], active}:
        remove(venv)
    monkeypatch.setenv("VIRTUAL_ENV", str(active))

    first, *_ = vpatch("status").err.splitlines()

    name = "the interpreter that runs vpatch" if own else "VIRTUAL_ENV"
    assert first == f"vLLM 1.0 in .venv/lib/{PYTHON}/site-packages (./.venv; {name} ({active}/bin/python) has none)"
    monkeypatch.delenv("VIRTUAL_ENV")
    assert current().passed_over == ()


def test_one_environment_by_two_names(venvs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (venvs["active"].parent / "link").symlink_to(venvs[".venv"])
    monkeypatch.setenv("VIRTUAL_ENV", str(venvs["active"].parent / "link"))
    remove(venvs["own"])

    found = current()

    assert (found.how, found.others) == ("VIRTUAL_ENV", ())


def test_a_broken_vllm_is_not_passed_over(venvs: dict[str, Path]) -> None:
    """If the preferred environment has an unusable vLLM, vpatch never works on another one."""
    (packages(venvs["own"]) / "vllm-2.0.dist-info").mkdir()
    (packages(venvs["own"]) / "vllm-2.0.dist-info/METADATA").touch()

    assert str(problem_of(current)).startswith(f"more than one vllm: {packages(venvs['own'])}: ")


def test_none_has_it(venvs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for venv in venvs.values():
        remove(venv)
    monkeypatch.setenv("VIRTUAL_ENV", "/gone")

    assert str(problem_of(current)) == (
        f"no vllm: here: the interpreter that runs vpatch ({venvs['own']}/bin/python) has none; "
        "VIRTUAL_ENV (/gone/bin/python): no such file; ./.venv (.venv/bin/python) has none; "
        "./venv is not there; activate the environment that has vLLM, or name its folder, as `vpatch --help` explains"
    )

"""`vpatch run --export`: the farm in a folder, its digest on stdout, and nothing started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import rewrite
from tests.conftest import Program, Trees, untouched
from tests.run.conftest import Installed

FILE = "vllm/engine/arg_utils.py"
ONE = ("--overlay", "turboquant-skip-list")  # planned quickly


def test_the_digest_is_the_only_line_on_stdout(own: Installed, vpatch: Program, tmp_path: Path) -> None:
    to = tmp_path / "farm"
    with untouched(own.root):
        ran = vpatch("run", "--export", to, "--python", own.python, *ONE)
        again = vpatch("run", "-q", "--export", to, "--python", own.python, "--expect", ran.out[:9], *ONE)

    assert (ran.code, again.code, again.out, again.err) == (0, 0, ran.out, "")
    digest = ran.out.removesuffix("\n")
    assert len(digest) == 64
    _, what, end = ran.err.splitlines()
    assert what.startswith("Exported with 1 overlay: turboquant-skip-list (digest ")
    assert end == f"Set PYTHONPATH={to} and VPATCH_RUN={digest[:12]}, and mount the folder read-only."
    where = "import importlib.util as u; print(u.find_spec('vllm').origin)"
    environment = {"PYTHONPATH": str(to)}
    found = subprocess.run([own.python, "-c", where], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == f"{to}/vllm/__init__.py\n"


def test_a_tree_that_is_not_installed_has_the_same_digest(
    own: Installed, vpatch: Program, slim: Trees, tmp_path: Path
) -> None:
    """As `vpatch fetch` makes one; the farm's links lead to it, which the outcome says."""
    tree = slim("0.20.2")
    ran = vpatch("run", "--export", tmp_path / "farm", "--tree", tree, *ONE)

    assert ran.out == f"{own.content(only=ONE[1:]).digest}\n"
    assert ran.err.splitlines()[-1] == (
        "The digest is that of every installation of vLLM 0.20.2. "
        f"The links in {tmp_path / 'farm'} lead to {tree}: run it only where that is."
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--tree", "x", "--", "true"), "--tree is for --export: COMMAND runs its own Python's vLLM"),
        (("--export", "x", "--tree", "x", "--python", "x"), "--tree and --python name two vLLMs: leave one out"),
    ],
)
def test_a_tree_that_would_be_ignored(vpatch: Program, words: tuple[str, ...], told: str) -> None:
    assert vpatch("run", *words).err.splitlines()[-1] == f"Error: {told}"


@pytest.mark.deep
def test_it_has_the_digest_of_a_run_and_writes_nothing_elsewhere(
    own: Installed, vpatch: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    ran = vpatch("run", "-q", "--export", tmp_path / "farm", "--python", own.python, *ONE)

    assert {path.name: list(path.iterdir()) for path in tmp_path.iterdir() if path.name not in {"env", "farm"}} == {
        name: [] for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR")
    }
    assert ran.out == f"{own.content(only=ONE[1:]).digest}\n"


def test_by_default_it_is_the_vllm_of_this_environment(
    own: Installed, vpatch: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(own.python.parents[1]))
    ran = vpatch("run", "--export", tmp_path / "farm", *ONE)

    assert ran.code == 0
    assert f"vLLM 0.20.2 in {own.root}\nExported with 1 overlay: turboquant-skip-list (" in ran.err


@pytest.mark.deep
def test_a_farm_on_pythonpath_is_not_taken_for_the_vllm(
    own: Installed, vpatch: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", "--export", tmp_path / "farm", "--python", own.python, *ONE)
    ran = vpatch(*words)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "farm"))

    assert vpatch(*words) == ran


def test_drift_and_another_digest_export_nothing(own: Installed, vpatch: Program, tmp_path: Path) -> None:
    words = ("run", "--export", tmp_path / "farm", "--python", own.python, *ONE)
    other = vpatch(*words, "--expect", "0123")
    source = (own.root / FILE).read_bytes()
    rewrite(own.root / FILE, source.replace(b"def create_engine_config", b"def create_another_config"))
    drifted = vpatch(*words)

    for ran, told in ((other, "unexpected overlays: "), (drifted, f"drifted: {FILE} ")):
        assert (ran.code, ran.out) == (1, "")
        assert told in ran.err
        assert ran.err.endswith("Nothing was exported.\n")
    assert not (tmp_path / "farm").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--", "vllm", "serve"), 2, "--export starts nothing and has no cache: leave out COMMAND"),
        (("--cache", "cache"), 2, "leave out --cache"),
        ((), 1, "no vllm: here: "),
    ],
)
def test_wrong_usage(
    words: tuple[str, ...], code: int, said: str, vpatch: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    ran = vpatch("run", "--export", "farm", *words)

    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert not Path("farm").exists()

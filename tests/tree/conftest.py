"""A small site-packages with a true RECORD, and two overlays' worth of changes to it."""

from __future__ import annotations

import base64
import codecs
import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.core.marks import marks_in
from vpatch.core.overlay import COMPANIONS
from vpatch.core.verdict import Changeset
from vpatch.errors import Failure
from vpatch.guest.check import faults
from vpatch.tree import backup, record
from vpatch.tree.apply import Snapshot, WritePlan
from vpatch.tree.locate import Tree
from vpatch.tree.write_plan import SitePackages

from tests.conftest import Contents, Trees, contents_of, environment, unchanged
from tests.hybrid import HYBRID

INFO = "vllm-1.0.dist-info"
NOBODY = 65534
PYTHON = f"python3.{sys.version_info.minor}"
RECORD = f"{INFO}/RECORD"
MODULE, COMPANION = "vllm/engine/m0.py", "vllm/_vpatch/first.py"
MODULES = {
    "vllm/__init__.py": b"",
    **{f"vllm/{folder}/__init__.py": b"" for folder in ("engine", "layers")},
    **{f"vllm/engine/m{n}.py": b"\xef\xbb\xbfvalue = %d\r\n" % n for n in (0, 1, 5)},
    **{f"vllm/layers/m{n}.py": b"# a comment\nvalue = %d\n" % n * (1 + 900 * (n == 2)) for n in (2, 3, 4)},
}
FIRST = {
    "vllm/_vpatch/first.py": b"first = 1\n",
    "vllm/_vpatch/shared.py": b"shared = 1\n",
    "vllm/engine/added.py": b"# vpatch: one\nadded = 1\n",
    "vllm/mine/deep/added.py": b"# vpatch: one\nadded = 1\n",
    **{path: old + b"one = 1  # vpatch: one\n" for path, old in MODULES.items() if path[-4] in "0123"},
}
SECOND = FIRST | {
    "vllm/_vpatch/second.py": b"second = 2\n",
    "vllm/_vpatch/shared.py": b"shared = 2\n",
    "vllm/mine/deep/added.py": b"# vpatch: one\nadded = 2\n",
    "vllm/mine/other/added.py": b"# vpatch: two\nadded = 2\n",
    "vllm/engine/m0.py": FIRST["vllm/engine/m0.py"] + b"two = 2  # vpatch: two\n",
    "vllm/engine/m5.py": MODULES["vllm/engine/m5.py"] + b"two = 2  # vpatch: two\n",
}


def plan_of(seen: Snapshot, desired: Mapping[str, bytes], note: object, *, on_edits: bool) -> WritePlan:
    """Plan as `prepare` does, with another note; each overlay is a patch file, which is kept."""
    nothing = Changeset((), (), {}, ())
    patches = {name: f"Subject: {name}\n".encode() for data in desired.values() for name in marks_in(data)}
    try:
        return WritePlan(seen, nothing, seen.decide(desired, note, on_edits=on_edits, made={}, patches=patches))
    except Failure as failure:
        return WritePlan(seen, nothing, failure=failure)


def change(tree: Tree, desired: Mapping[str, bytes], note: object, *, on_edits: bool = False) -> tuple[str, ...]:
    """Plan, and commit even if there is nothing to do."""

    def prepare(seen: Snapshot) -> WritePlan:
        return plan_of(seen, desired, note, on_edits=on_edits)

    return prepare(SitePackages(tree).snapshot()).commit(prepare).writes.changed


def settled(tree: Tree, desired: Mapping[str, bytes], note: object) -> bool:
    """Whether there is nothing to do."""
    return not plan_of(SitePackages(tree).snapshot(), desired, note, on_edits=True).work


def untrue(tree: Tree, paths: Collection[str]) -> list[tuple[str, str]]:
    """List what `verify` finds wrong in RECORD of these files, and of what vpatch keeps."""
    rows = record.required(tree, tree.read)
    listed = sorted({*paths, *record.own(tree, rows, backup.read(tree))})
    return [(fault.kind, fault.path) for fault in faults(tree.read, (), listed, rows, lambda path, source: ())]


def edited(tree: Tree) -> tuple[str, ...]:
    """List the files that a user edited after vpatch."""
    backup.originals(tree)
    kept = backup.read(tree)
    return tuple(path for path in sorted(kept.paths) if kept.is_edited(path, tree.read(path)))


@dataclass(frozen=True)
class Sandbox:
    """A tree, and what the tests do to it."""

    tree: Tree
    first: dict[str, bytes]
    second: dict[str, bytes]
    modules: dict[str, bytes]

    @property
    def root(self) -> Path:
        return self.tree.root

    @property
    def goals(self) -> dict[str, dict[str, bytes]]:
        """What may be desired, by name."""
        return {"pristine": {}, "first": self.first, "second": self.second}

    def settle(self, desired: Mapping[str, bytes], *, allow_edited: bool = False) -> tuple[str, ...]:
        """Do what the command line does, without the engine."""
        return () if self.settled(desired) else self.change(desired, allow_edited=allow_edited)

    def change(self, desired: Mapping[str, bytes], *, allow_edited: bool = False) -> tuple[str, ...]:
        """Do it even if there is nothing to do."""
        return change(self.tree, desired, {"overlays": sorted(desired)}, on_edits=allow_edited)

    def settled(self, desired: Mapping[str, bytes]) -> bool:
        return settled(self.tree, desired, {"overlays": sorted(desired)})

    def snapshot(self) -> Contents:
        return contents_of(self.root)

    def refused(self, desired: Mapping[str, bytes]) -> Failure:
        """Return why this is refused; assert that nothing changes."""
        with unchanged(self.root), pytest.raises(Failure) as failure:
            self.settle(desired)
        return failure.value

    def copy(self, to: Path) -> Sandbox:
        """Hard-link it, as uv links its cache: what is done to the copy must not change this one."""
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.root, to, symlinks=True, copy_function=_link)
        return Sandbox(Tree(to, self.tree.dist_info, "1.0"), self.first, self.second, self.modules)

    def write(self, path: str, content: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(content)


def _link(source: str, target: str) -> None:
    # A staged file is still written to.
    shutil.copy2(source, target) if source.endswith(".vpatch-new") else os.link(source, target)


def row(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}"


def make_sandbox(root: Path) -> Sandbox:
    sandbox = Sandbox(Tree(root, INFO, "1.0"), FIRST, SECOND, MODULES)
    files = {**MODULES, f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: vllm\nVersion: 1.0\n"}
    for path, content in files.items():
        sandbox.write(path, content)
    gone = row("vllm/_C.abi3.so", b"left out of this tree")
    sandbox.write(RECORD, "\n".join([*(row(*item) for item in files.items()), gone, f"{RECORD},,", ""]).encode())
    return sandbox


@pytest.fixture
def tree(slim: Trees, tmp_path: Path) -> Path:
    """A slim 0.20.2 made of copies, which the test may modify."""
    return shutil.copytree(slim("0.20.2"), tmp_path / "site-packages")


@pytest.fixture(autouse=True)
def _fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def make(root: Path, info: str | None = INFO, record: str = "") -> Path:
    """Make the smallest folder that counts as a vLLM."""
    (root / "vllm/engine").mkdir(parents=True)
    for package in ("vllm", "vllm/engine"):
        (root / package / "__init__.py").touch()
    if info:
        (root / info).mkdir()
        (root / info / "RECORD").write_text(record)
        (root / info / "METADATA").touch()
    return root


@pytest.fixture(scope="session")
def venv_at(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """`venv_at(folder)`: a virtual environment with such a vLLM, as if it were made there; return its folder."""
    template = tmp_path_factory.mktemp("template") / "venv"
    make(environment(template))

    def at(folder: Path) -> Path:
        shutil.copytree(template, folder, symlinks=True)
        activate = folder / "bin/activate"
        activate.write_text(activate.read_text().replace(str(template), str(folder)))
        return folder

    return at


@contextmanager
def in_memory() -> Iterator[Path]:
    """Yield a new folder that other users reach, in memory if possible: fsync is what takes time."""
    memory = Path("/dev/shm")  # noqa: S108
    folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)).resolve()
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def public() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder


@pytest.fixture
def sandbox(public: Path) -> Sandbox:
    return make_sandbox(public / "site-packages")


def in_a_child(work: Callable[[], object]) -> int:
    """Do `work` in a child process; return the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


@contextmanager
def another_user(uid: int = NOBODY) -> Iterator[None]:
    """Be another user during the block, without capabilities; without root, nothing changes."""
    if os.getuid() or not uid:
        yield
        return
    codecs.lookup("ascii")  # a user who may not read the interpreter's folder could not import it
    groups, group = os.getgroups(), os.getgid()
    os.setgroups([])
    os.setresgid(uid, uid, group)
    os.setresuid(uid, uid, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(group, group, group)
        os.setgroups(groups)


def give_away(root: Path) -> None:
    """Change the owner of a tree to another user, as root's vpatch may find it. Only root can; else the owner stays."""
    for path in (root, *root.rglob("*")) if os.getuid() == 0 else ():
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


# linux/fs.h: FS_IOC_GETFLAGS and FS_IOC_SETFLAGS; what `chattr +i` and `chattr +a` set.
GET_FLAGS, SET_FLAGS, FLAGS = 0x80086601, 0x40086602, {"i": 0x10, "a": 0x20}


@contextmanager
def flagged(path: Path, flag: str) -> Iterator[None]:
    """Make a file or folder immutable ("i") or append-only ("a") during the block, as `chattr` does."""
    file = os.open(path, os.O_RDONLY)
    try:
        try:
            (before,) = struct.unpack("l", fcntl.ioctl(file, GET_FLAGS, bytes(8)))
            fcntl.ioctl(file, SET_FLAGS, struct.pack("l", before | FLAGS[flag]))
        except OSError as error:
            pytest.skip(f"no such flags here: {error.strerror}")
        try:
            yield
        finally:
            fcntl.ioctl(file, SET_FLAGS, struct.pack("l", before))
    finally:
        os.close(file)


@contextmanager
def mounted(source: str | Path, at: Path, *options: str) -> Iterator[None]:
    """Mount something during the block; without options, bind it."""
    command: list[str | Path] = ["mount", *(options or ("--bind",)), source, at]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", at], check=True)


_FILES = Engine(select(discover(), [HYBRID])).files
IN_GIT = ("vllm/__init__.py", *(file for file in _FILES if not file.startswith(COMPANIONS)))


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "advice.detachedHead=false")
    command = ["git", "-C", str(root), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory, pristine: Trees) -> Path:
    """A repository with the real files that the overlay reads, committed twice and tagged as vLLM tags."""
    root = tmp_path_factory.mktemp("upstream")
    git(root, "init", "-q")
    for version in ("0.21.0", "0.20.2"):
        for file in (file for file in IN_GIT if (pristine(version) / file).is_file()):
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(pristine(version) / file, root / file)
        (root / ".gitignore").write_text("__pycache__/\n*.pyc\n")
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", version, "--allow-empty")
        git(root, "tag", f"v{version}")
    return root


@pytest.fixture(scope="session")
def cloned(tmp_path_factory: pytest.TempPathFactory, upstream: Path) -> Path:
    root = tmp_path_factory.mktemp("cloned") / "clone"
    git(upstream, "clone", "-q", "--depth", "1", "--branch", "v0.20.2", f"file://{upstream}", str(root))
    assert git(root, "rev-list", "--count", "HEAD") == "1\n"
    return root


@pytest.fixture
def clone(public: Path, cloned: Path) -> Path:
    return shutil.copytree(cloned, public / "clone", symlinks=True)


def clean(root: Path) -> bool:
    """Whether git reports nothing, ignored files included, and no folder is left."""
    return git(root, "status", "--porcelain", "--ignored") == "" and not (root / "vllm/_vpatch").exists()

"""A small site-packages with a true RECORD, and two overlays' worth of changes to it."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from vpatch.tree import writer
from vpatch.tree.tree import Site

INFO = "vllm-1.0.dist-info"
RECORD = f"{INFO}/RECORD"
MODULES = {
    "vllm/__init__.py": b"",
    **{f"vllm/{folder}/__init__.py": b"" for folder in ("engine", "layers")},
    **{f"vllm/engine/m{n}.py": b"\xef\xbb\xbfvalue = %d\r\n" % n for n in range(6)},
    **{f"vllm/layers/m{n}.py": b"# a comment\nvalue = %d\n" % n * (1 + 900 * (n == 2)) for n in range(6)},
}
FIRST = {
    "vllm/_vpatch/first.py": b"first = 1\n",
    "vllm/_vpatch/shared.py": b"shared = 1\n",
    **{path: old + b"one = 1  # vpatch: one\n" for path, old in MODULES.items() if path[-4] in "0123"},
}
SECOND = FIRST | {
    "vllm/_vpatch/second.py": b"second = 2\n",
    "vllm/_vpatch/shared.py": b"shared = 2\n",
    "vllm/engine/m0.py": FIRST["vllm/engine/m0.py"] + b"two = 2  # vpatch: two\n",
    "vllm/engine/m5.py": MODULES["vllm/engine/m5.py"] + b"two = 2  # vpatch: two\n",
}

Snapshot = Mapping[str, bytes | None]
Forked = Callable[..., int]


@dataclass(frozen=True)
class Tree:
    """A site, and what the tests do to it."""

    site: Site
    first: dict[str, bytes]
    second: dict[str, bytes]
    modules: dict[str, bytes]

    @property
    def root(self) -> Path:
        return self.site.root

    def settle(self, desired: Mapping[str, bytes], *, allow_edited: bool = False) -> tuple[str, ...]:
        """Do what the command line does, the engine left out."""
        return () if self.settled(desired) else self.change(desired, allow_edited=allow_edited)

    def change(self, desired: Mapping[str, bytes], *, allow_edited: bool = False) -> tuple[str, ...]:
        """Do it without the look beforehand, which no error ends."""
        note = {"overlays": sorted(desired)}
        with writer.lock(self.site):
            return writer.settle(self.site, desired, note, pristine=unmarked, allow_edited=allow_edited)

    def settled(self, desired: Mapping[str, bytes]) -> bool:
        return writer.settled(self.site, desired, {"overlays": sorted(desired)})

    def snapshot(self) -> Snapshot:
        """Give all that `diff -r` would see: every folder (None), every file's bytes."""
        found: dict[str, bytes | None] = {}
        for at, folders, names in os.walk(self.root):
            found |= {str(Path(at, name).relative_to(self.root)): None for name in folders}
            found |= {str(Path(at, name).relative_to(self.root)): Path(at, name).read_bytes() for name in names}
        return found

    def inodes(self) -> Mapping[str, tuple[int, int]]:
        paths = sorted(self.root.rglob("*"))
        return {str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in paths}

    def copy(self, to: Path) -> Tree:
        """Link it as uv links its cache: what is done to the copy must not change this one."""
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.root, to, symlinks=True, copy_function=os.link)
        return Tree(Site(to, self.site.dist_info, "1.0"), self.first, self.second, self.modules)

    def write(self, path: str, content: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(content)


def unmarked(path: str, content: bytes) -> bool:
    return b"# vpatch: " not in content


def row(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}"


def make_tree(root: Path) -> Tree:
    tree = Tree(Site(root, INFO, "1.0"), FIRST, SECOND, MODULES)
    files = {**MODULES, f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: vllm\nVersion: 1.0\n"}
    for path, content in files.items():
        tree.write(path, content)
    gone = row("vllm/_C.abi3.so", b"left out of this tree")
    tree.write(RECORD, "\n".join([*(row(*item) for item in files.items()), gone, f"{RECORD},,", ""]).encode())
    return tree


@pytest.fixture(autouse=True)
def _fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


@pytest.fixture
def public() -> Iterator[Path]:
    """Give a folder that other users reach, in memory where that is possible: fsync is what takes time."""
    memory = Path("/dev/shm")  # noqa: S108
    folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)).resolve()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def tree(public: Path) -> Tree:
    return make_tree(public / "site-packages")


def in_a_child(work: Callable[[], object], uid: int | None = None) -> int:
    """Do `work` in a child, as another user if so asked; give the signal that ended it, 0 for none."""
    child = os.fork()
    if child == 0:
        try:
            if uid is not None and os.getuid() == 0:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            work()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


@pytest.fixture
def forked() -> Forked:
    """`forked(work, uid=...)`: see `in_a_child`."""
    return in_a_child

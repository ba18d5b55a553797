"""Processes of this machine, and which of them are vLLM's. Linux's /proc only."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from vpatch.guest.vpatch_claim import started

PROC = Path("/proc")

_LONGEST = 60  # characters of a command line that are shown
# Of a line of `maps`; not those of an environment named vllm.
_EXTENSION = re.compile(r"[^/\n]*+/(?:[^/\n]*+/)+?vllm/(?:\w++/)?\w++\.(?:abi3|cpython-[\w-]++)\.so\b")


@dataclass(frozen=True)
class User:
    """Whose rights a process was started with: its real user and group, which no program that it runs changes.

    Attributes:
        id: the user's number.
        group: the group's number.
        groups: the numbers of the other groups.
    """

    id: int
    group: int
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it.

    Attributes:
        id: its number.
        words: its command line, as the process may have changed it; empty for threads of the kernel.
    """

    id: int
    words: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Its folder in /proc."""
        return PROC / str(self.id)

    @property
    def shown(self) -> str:
        """Its command line, shortened."""
        line = " ".join([*(Path(word).name for word in self.words[:2]), *self.words[2:]])
        return f"{line[:_LONGEST]}..." if len(line) > _LONGEST else line

    @property
    def started(self) -> int | None:
        """When it was started, in ticks of the system since it was; None if it ended."""
        return started(str(self.id))

    @property
    def started_at(self) -> float:
        """When it was started, in seconds since the epoch.

        Raises:
            OSError: it ended.
        """
        if (ticks := self.started) is None:
            raise ProcessLookupError
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")

    @property
    def user(self) -> User:
        """Its user; raises as `started_at`."""
        status = self._status()
        groups = tuple(map(int, status.get("Groups", ())))
        return User(int(status["Uid"][0]), int(status["Gid"][0]), groups)

    @property
    def own_id(self) -> int:
        """The number that it has for itself, which is another one in a container; raises as `started_at`."""
        return int(self._status().get("NSpid", [str(self.id)])[-1])

    def _status(self) -> dict[str, list[str]]:
        lines = (self.folder / "status").read_text("utf-8", "replace").splitlines()
        pairs = (line.partition(":") for line in lines)
        return {name: value.split() for name, _, value in pairs}

    @property
    def maps(self) -> str:
        """The files that it has mapped, a line each.

        Raises:
            OSError: it ended, or it belongs to another user.
        """
        return (self.folder / "maps").read_text("utf-8", "surrogateescape")

    @property
    def has_extension(self) -> bool:
        """Whether it has mapped a compiled extension of a vLLM; raises as `maps`."""
        return any(_EXTENSION.match(line) for line in self.maps.splitlines())

    def variable(self, name: str) -> bytes | None:
        """Return a variable of the environment that it was started with.

        None if it has none, or has overwritten its environment, as a process does that sets its title.

        Raises:
            OSError: it ended, or it belongs to another user.
        """
        pairs = (self.folder / "environ").read_bytes().split(b"\0")
        return next((pair.partition(b"=")[2] for pair in pairs if pair.startswith(f"{name}=".encode())), None)

    def opened(self) -> Iterator[tuple[Path, str]]:
        """Yield its open descriptors, each with the name of its file, which need not be a path, such as "pipe:[1]".

        Raises:
            OSError: it ended, or it belongs to another user.
        """
        with os.scandir(self.folder / "fd") as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # closed meanwhile
                    yield Path(entry.path), os.readlink(entry.path)  # noqa: PTH115 - of thousands

    @property
    def top(self) -> str:
        """What precedes a path of this process where this one reads it: "" if both see the same files.

        Raises:
            OSError: it ended, or it belongs to another user.
        """
        names = ("ns/mnt", "root")
        same = all((self.folder / name).readlink() == (PROC / "self" / name).readlink() for name in names)
        return "" if same else f"{self.folder}/root"


def there_is_proc() -> bool:
    """Whether this system shows its processes as Linux does."""
    return (PROC / "self/stat").exists()


def process(number: int) -> Process:
    """Return a process by its number.

    Raises:
        OSError: no process has this number.
    """
    line = (PROC / str(number) / "cmdline").read_bytes().decode("utf-8", "replace")
    return Process(number, tuple(line.rstrip("\0 ").split("\0")))


def running() -> Iterator[Process]:
    """Yield all other processes that this one sees, by their numbers."""
    for number in sorted(int(path.name) for path in PROC.glob("[0-9]*")):
        if number != os.getpid():
            with suppress(OSError):  # it ended
                yield process(number)


def names_vllm(words: Sequence[str]) -> bool:
    """Whether a command line is that of vLLM: `vllm serve`, `python -m vllm...`, or a worker's `VLLM::EngineCore`."""
    first = Path(words[0]).name
    if first == "vllm" or first.startswith("VLLM::"):
        return True
    if not first.startswith("python"):
        return False
    for before, word in pairwise(words[:5]):
        if before == "-m":
            return word == "vllm" or word.startswith("vllm.")
        if not word.startswith("-"):
            return Path(word).name == "vllm"
    return False

"""Processes that run vLLM, which overlays each claims to run, and whether its files are as it claims.

A process that runs overlays holds a receipt: sealed memory that names the process, its start and what it found when it
compared its files. Only the process can have made it, so it is a claim of the process and its user, and of nobody else.
What it says of files is compared again, with the files that the process sees.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vpatch.errors import Failure, Problem, UnknownName, cause
from vpatch.foreign import descriptor, parse_json, read_opened
from vpatch.guest.vpatch_claim import RECEIPT, SEALS, memory
from vpatch.guest.vpatch_receipt import DIGEST, MANIFEST, differences, misled, parsed
from vpatch.processes import PROC, Process, names_vllm, process, running, there_is_proc
from vpatch.processes.inside import ProcessFiles, answered

_NAME = f"/memfd:{RECEIPT} (deleted)"  # how the system names memory that is in no folder
_MOST = 1 << 22  # bytes of a receipt
_MOST_OVERLAYS = 1000
_ID = re.compile(r"[\w.-]{1,100}", re.ASCII)
_GET_SEALS = 1034  # F_GET_SEALS of linux/fcntl.h
_TRACES = 1 << 19  # the capability CAP_SYS_PTRACE of linux/capability.h


@dataclass(frozen=True)
class Receipt:
    """What a process claims to run.

    Attributes:
        told: the manifest of what it found, as `parsed` returns it.
        farm: the folder of its farm, as the process sees it; None if it runs what `vpatch apply` or `build` wrote.
    """

    told: Mapping[str, Any]
    farm: str | None

    @property
    def digest(self) -> str:
        """The digest of the files that overlays have changed or added."""
        return str(self.told["digest"])

    @property
    def overlays(self) -> tuple[str, ...]:
        """The ids of the overlays."""
        return tuple(self.told["overlays"])

    @property
    def root(self) -> str:
        """The folder that holds the installed vLLM, as the process sees it."""
        return str(self.told["root"])


@dataclass(frozen=True)
class Server:
    """A process of vLLM.

    Attributes:
        process: the process.
        receipt: what it claims to run; None if it claims nothing, or is closed.
        asked: the digest that its environment asks for; None if it names none, or if a title has overwritten it.
        closed: why this user may not read it; "" if it may.
    """

    process: Process
    receipt: Receipt | None = None
    asked: str | None = None
    closed: str = ""

    def runs(self, root: Path, prefix: Path | None) -> bool | None:
        """Whether it runs the vLLM of a folder; None if the system does not show which one it runs.

        Compiled extensions of vLLM are among the files that a process has mapped. A vLLM without them shows in the
        receipt, or in the command line together with a program or a mapped file of the environment.

        Args:
            root: the folder that holds `vllm/`.
            prefix: the folder of the environment that it is in, if there is one.

        Raises:
            OSError: it ended.
        """
        if self.closed:
            return None
        maps = self.process.maps
        if f" {root}/vllm/" in maps or (self.receipt and self._sees(root, self.receipt.root)):
            return True
        prefixes = {root, *([prefix] if prefix else [])} - {Path("/"), Path("/usr")}
        if not names_vllm(self.process.words):
            return False
        if any(f" {one}/" in maps for one in prefixes):
            return True
        here = (self.process.folder / "cwd").readlink()
        # The interpreter of a virtual environment is a link to one outside of it: only its folder is resolved.
        called = [here.joinpath(word).parent for word in self.process.words[:2]]
        found = answered(self.process, self.process.user, lambda _: [str(one.resolve()) for one in called])
        return any(Path(path).is_relative_to(one) for path in found for one in prefixes)

    def _sees(self, folder: Path, place: str) -> bool:
        """Whether a folder is what the process sees at a place."""
        about = folder.stat()
        try:
            return bool(identity(self.process, place) == (about.st_dev, about.st_ino))
        except OSError:
            return False


def servers() -> tuple[Server, ...]:
    """Find vLLM's processes: those that hold a receipt, have a vLLM's extension mapped, or have its command line.

    Raises:
        Failure: this is no Linux.
    """
    _need_proc()
    found = list[Server]()
    for one in running():
        try:
            receipt = receipt_of(one)
            if receipt or names_vllm(one.words) or one.has_extension:
                found.append(Server(one, receipt, _asked(one)))
        except PermissionError:
            if names_vllm(one.words):
                found.append(Server(one, closed=remedy(one)))
        except OSError:  # it ended
            continue
    return tuple(found)


def server(number: int) -> Server:
    """Return a process as a server, whatever it runs.

    Raises:
        UnknownName: there is no such process.
        Failure: it cannot be read, or this is no Linux.
    """
    _need_proc()
    try:
        one = process(number)
    except OSError as error:
        raise UnknownName(Problem("no such process", str(number), "none has this id")) from error
    with _reading(one):
        return Server(one, receipt_of(one), _asked(one))


def wrong(found: Server) -> list[Problem]:
    """Compare what a server claims with what it was started for, and with the files that it sees; return what differs.

    Raises:
        UnknownName: it ended.
        Failure: it cannot be read.
    """
    where, receipt = f"process {found.process.id}", found.receipt
    if receipt is None:
        asked = f"; it was started for {found.asked[:12]}" if found.asked else ""
        return [Problem("no receipt", where, f"it claims nothing of what it runs{asked}")]
    problems = [Problem("another digest", where, line) for line in misled(receipt.told, found.asked or "")]
    with _reading(found.process):
        top = found.process.top
        changed = answered(found.process, found.process.user, lambda files: _changed(receipt, files))
    if changed is None:
        return [*problems, Problem("no farm", where, "the farm that it was started with was removed or replaced")]
    lines = ((top + file, f"{why}, and {where} was started with it") for file, why in changed)
    return [*problems, *(Problem("changed", *line) for line in lines)]


def _changed(receipt: Receipt, files: ProcessFiles) -> list[tuple[str, str]] | None:
    """Return the files that are not as a receipt claims, each with the cause; None if its farm is another one."""
    if receipt.farm is not None:
        try:
            if parse_json(files.read(Path(receipt.farm, MANIFEST))) != receipt.told:
                return None
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            return [(f"{receipt.farm}/{MANIFEST}", cause(error))]
    return list(differences(receipt.told, Path(receipt.farm or receipt.root), files.read))


def identity(one: Process, place: str) -> tuple[int, int]:
    """Return the device and the number of a file or folder as a process sees it.

    Raises:
        OSError: it ended, it belongs to another user, or there is no such file.
    """
    device, number = answered(one, one.user, lambda files: files.identity(place))
    return device, number


def receipt_of(one: Process) -> Receipt | None:
    """Return the receipt that a process holds; None if it holds none.

    Raises:
        OSError: it ended, or it belongs to another user.
    """
    for place, name in one.opened():
        if name == _NAME:
            with suppress(FileNotFoundError, ValueError, LookupError, TypeError):  # closed; another file of this name
                return _receipt(one, place)
    return None


def _receipt(one: Process, place: Path) -> Receipt:
    """Read a receipt.

    Raises:
        FileNotFoundError: it is closed.
        ValueError, LookupError, TypeError: it is none, or that of another process.
    """
    claim = parse_json(_sealed(place, one.user.id), _MOST)
    if (claim["schema"], claim["pid"], claim["started"]) != (1, one.own_id, one.started):
        raise ValueError("the receipt of another process")
    if not isinstance(claim["farm"], str | None):
        raise TypeError
    told = parsed(json.dumps(claim["manifest"]).encode())
    if len(told["overlays"]) > _MOST_OVERLAYS or not all(map(_ID.fullmatch, told["overlays"])):
        raise ValueError("no overlays, but a text for who lists processes")
    return Receipt(told, claim["farm"])


def _sealed(place: Path, user: int) -> bytes:
    """Return the content of sealed memory that a user made.

    The descriptor may become another file at any time, and to open that may block, or have an effect. So it is opened
    by path only, then compared, and then opened for reading.

    Raises:
        ValueError: it is something else.
    """
    with descriptor(place, os.O_PATH) as found:
        if _mount(found) != _mount_of_memory():
            raise ValueError("a file")
        about = os.fstat(found)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != user or about.st_size > _MOST:
            raise ValueError("the memory of another user")
        with descriptor(f"/proc/self/fd/{found}") as opened:
            if fcntl.fcntl(opened, _GET_SEALS) & SEALS != SEALS:
                raise ValueError("memory that may change")
            return read_opened(opened, _MOST)


def _mount(file: int) -> str:
    """Return the number of the mount that an open file is in, which the system knows without a look at the file."""
    lines = Path(f"/proc/self/fdinfo/{file}").read_text("ascii", "replace").splitlines()
    return next((line for line in lines if line.startswith("mnt_id:")), "")


@cache
def _mount_of_memory() -> str:
    """Return the number of the mount that all files in memory are in."""
    own = memory()
    try:
        return _mount(own)
    finally:
        os.close(own)


def _asked(one: Process) -> str | None:
    """Return the digest that a process was started for; None if its environment names none."""
    return (one.variable(DIGEST) or b"").decode("utf-8", "replace") or None


def remedy(one: Process) -> str:
    """Return why this user may not read a process, and how to read it."""
    try:
        user = one.user.id
        status = Path("/proc/self/status").read_text("ascii", "replace")
    except OSError:
        return "permission denied"
    if os.geteuid() != 0:
        return f"permission denied; become its user ({user}), or root"
    capabilities = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    if int(capabilities, 16) & _TRACES:
        return "permission denied by a security module, or since it is of another user namespace; run vpatch beside it"
    become = f"run vpatch as user {user}" if user else "run vpatch outside of the container"
    return f"permission denied: this root has no CAP_SYS_PTRACE, as in most containers; {become}, or add it"


@contextmanager
def _reading(one: Process) -> Iterator[None]:
    """Turn an error from reading a process into a failure that names the cause and a way out.

    Raises:
        UnknownName: it ended.
        Failure: another user's process, or one whose files do not answer.
    """
    try:
        yield
    except (FileNotFoundError, ProcessLookupError) as error:
        raise UnknownName(Problem("no such process", str(one.id), "it ended")) from error
    except OSError as error:
        why = remedy(one) if error.errno == errno.EACCES else cause(error)
        raise Failure(Problem("cannot read", f"process {one.id}", why)) from error


def _need_proc() -> None:
    if not there_is_proc():
        raise Failure(Problem("not supported", str(PROC), "processes can be examined on Linux only"))

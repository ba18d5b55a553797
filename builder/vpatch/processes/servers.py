"""The receipts of running processes: which overlays each proves that it runs, and whether that is still true."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vpatch.errors import Failure, Problem, UnknownName, cause
from vpatch.guest.vpatch_receipt import DIGEST, MANIFEST, differences, misled, parsed
from vpatch.processes import PROC, Process, names_vllm, process, running, there_is_proc

_DELETED = " (deleted)"  # how the system marks a name that is gone
_NAMES = (MANIFEST, f"memfd:{MANIFEST}")  # the second is of no folder: what `vpatch apply` or `vpatch build` wrote
_MOST = 1 << 22  # bytes of a manifest


@dataclass(frozen=True)
class Receipt:
    """A manifest that a process holds open: that of a farm, or of what `vpatch apply` or `vpatch build` wrote.

    Attributes:
        told: what it says, as `parsed` returns it.
        farm: the folder that it lies in, as the process sees it; None if it lies in none.
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
    def is_of_farm(self) -> bool:
        """Whether the process was started with a farm, and so for a digest."""
        return bool(self.told.get("farm", True))


@dataclass(frozen=True)
class Server:
    """A process of vLLM.

    Attributes:
        process: the process.
        receipt: what it proves; None if it proves nothing.
        asked: the digest that its environment asks for; None if it names none, or if a title has overwritten it.
    """

    process: Process
    receipt: Receipt | None
    asked: str | None


@dataclass(frozen=True)
class Servers:
    """The processes of vLLM on this machine.

    Attributes:
        seen: those that can be read.
        closed: those of other users, by their command lines.
    """

    seen: tuple[Server, ...]
    closed: tuple[Process, ...]


def servers() -> Servers:
    """Find vLLM's processes: those that hold a receipt, have a vLLM's extension mapped, or have its command line.

    Raises:
        Failure: this is no Linux.
    """
    _need_proc()
    seen, closed = list[Server](), list[Process]()
    for one in running():
        try:
            receipt = receipt_of(one)
            if receipt or names_vllm(one.words) or one.has_extension:
                seen.append(Server(one, receipt, _asked(one)))
        except PermissionError:
            if names_vllm(one.words):
                closed.append(one)
        except OSError:  # it ended
            continue
    return Servers(tuple(seen), tuple(closed))


def proved(number: int) -> tuple[Server, list[Problem]]:
    """Compare a running process with its receipt; return it, and what is wrong.

    Args:
        number: the id of the process.

    Raises:
        UnknownName: there is no such process.
        Failure: it cannot be read, or this is no Linux.
    """
    _need_proc()
    where = f"process {number}"
    try:
        one = process(number)
        found = Server(one, receipt_of(one), _asked(one))
        return found, list(_problems(found, where))
    except (FileNotFoundError, ProcessLookupError) as error:
        raise UnknownName(Problem("no such process", str(number), "none has this id")) from error
    except OSError as error:
        more = "; become its user, or root" if isinstance(error, PermissionError) else ""
        raise Failure(Problem("cannot read", where, cause(error) + more)) from error


def _problems(server: Server, where: str) -> Iterator[Problem]:
    receipt = server.receipt
    if receipt is None:
        asked = f"; it was started for {server.asked[:12]}" if server.asked else ""
        yield Problem("no receipt", where, f"it proves nothing of what it runs{asked}")
        return
    for problem in misled(receipt.told, server.asked or ""):
        yield Problem("another digest", where, problem)
    if receipt.farm is None and receipt.is_of_farm:
        yield Problem("no farm", where, "the farm that it was started with was removed or replaced")
        return
    top = server.process.top
    farm = receipt.farm or receipt.told["root"]  # without a farm, all files are the vLLM's
    for file, why in differences(receipt.told, Path(top + farm), top):
        yield Problem("changed", file, f"{why}, and {where} was started with it")


def receipt_of(one: Process) -> Receipt | None:
    """Return the receipt that a process holds; None if it holds none.

    The file is read through the process's own descriptor, so that it may be of a container, or removed since.

    Raises:
        OSError: it ended, or it belongs to another user.
    """
    for descriptor, name in one.opened():
        try:
            place, _, file = name.removesuffix(_DELETED).rpartition("/")
            manifest = _content(descriptor) if file in _NAMES else None
            if manifest is not None:
                return Receipt(parsed(manifest), None if name.endswith(_DELETED) else place)
        except (FileNotFoundError, ValueError, RecursionError):  # closed meanwhile; another file of this name
            continue
    return None


def _asked(one: Process) -> str | None:
    """Return the digest that a process was started for; None if its environment names none."""
    return (one.variable(DIGEST) or b"").decode("utf-8", "replace") or None


def _content(descriptor: Path) -> bytes | None:
    """Return a file's content; None of a pipe, which would block, or of what is too large: any may have the name."""
    about = descriptor.stat()
    return descriptor.read_bytes() if stat.S_ISREG(about.st_mode) and about.st_size <= _MOST else None


def _need_proc() -> None:
    if not there_is_proc():
        raise Failure(Problem("not supported", str(PROC), "processes can be examined on Linux only"))

"""Claim what this process has found that it runs: in sealed memory, in vLLM's log, and with vLLM's metrics.

`vpatch run` copies this file into its farms, and the overlay `receipt` adds it to vLLM, each time beside
`vpatch_receipt`: it needs the standard library only.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

RECEIPT = "vpatch-receipt"  # the name of the memory that a process holds as its receipt
SEALS = 0xF  # F_SEAL_SEAL, SHRINK, GROW and WRITE of linux/fcntl.h: nobody changes it any more

_ADD_SEALS = 1033  # F_ADD_SEALS, which Pythons that were built for an old Linux do not name
_FLAGS, _NOEXEC = 1 | 2, 8  # of memfd_create: closed by exec, sealable; not executable
_MODE: Final = "livemax"  # of the metric; of a process that vLLM ends, it removes those that are "live"


def hold(told: Mapping[str, Any], farm: Path | None) -> int:
    """Hold a receipt, also in forked processes; return its descriptor, or -1 if this system cannot hold one."""
    os.register_at_fork(after_in_child=lambda: _receipt(told, farm))
    return _receipt(told, farm)


def _receipt(told: Mapping[str, Any], farm: Path | None) -> int:
    """Write a receipt into sealed memory of this process, which no other process opens by a name, or changes.

    It names the process: it is none of another one that inherits the descriptor.
    """
    about = {"schema": 1, "pid": os.getpid(), "started": started(), "farm": farm and str(farm), "manifest": told}
    try:
        held = memory()
        os.write(held, json.dumps(about).encode())
        fcntl.fcntl(held, _ADD_SEALS, SEALS)
    except (OSError, AttributeError, ImportError) as error:  # the server runs the right code all the same
        logging.getLogger("vllm.vpatch").warning("vpatch: process %d holds no receipt: %s", os.getpid(), error)
        return -1
    return held


def memory() -> int:
    """Return a descriptor of a file in memory that can be sealed.

    Raises:
        OSError, AttributeError, ImportError: the system or its Python has none.
    """
    create = getattr(os, "memfd_create", None) or _by_the_c_library  # Pythons that uv installs lack it
    try:
        return int(create(RECEIPT, _FLAGS | _NOEXEC))
    except OSError:  # before 6.3, Linux does not know that nobody may execute it; later ones may insist on it
        return int(create(RECEIPT, _FLAGS))


def _by_the_c_library(name: str, flags: int) -> int:
    import ctypes

    made: int = ctypes.CDLL(None, use_errno=True).memfd_create(name.encode(), ctypes.c_uint(flags))
    if made < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return made


def started(process: str = "self") -> int | None:
    """Return when a process was started, in ticks of the system since it was; None where that cannot be read."""
    try:
        # Field 22, see proc(5); the second one may have any text in it.
        return int(Path("/proc", process, "stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def log(told: Mapping[str, Any]) -> None:
    """Write a line to vLLM's log; to stderr if vLLM has not configured it yet, as in its API server since 0.31."""
    what = ", ".join(told["overlays"]) or "no overlay"
    line = f"vpatch: process {os.getpid()} runs {what} (digest {told['digest'][:12]})"
    logger = logging.getLogger("vllm.vpatch")
    if logging.getLogger("vllm").level or (logger.isEnabledFor(logging.INFO) and logger.hasHandlers()):
        logger.info("%s", line)
    elif sys.stderr:
        sys.stderr.write(f"{line}\n")


def export(told: Mapping[str, Any]) -> None:
    """Export the digest with vLLM's metrics."""
    try:
        from prometheus_client import Gauge
    except ImportError:  # a vLLM without metrics
        return
    # A gauge, since an Info metric is lost where several API servers share their metrics.
    about = {"digest": told["digest"], "overlays": ",".join(told["overlays"])}
    try:
        _forget_ended()
        gauge = Gauge("vpatch_info", "Overlays that this server runs.", [*about], multiprocess_mode=_MODE)
        gauge.labels(**about).set(1)
    except ValueError:  # this module was loaded anew, and its metric is still registered
        return
    except OSError as error:  # the folder that API servers share; the server runs the right code all the same
        logging.getLogger("vllm.vpatch").warning("vpatch: no metric vpatch_info: %s", error)


def _forget_ended() -> None:
    """Remove the metric of ended processes from the folder that API servers share.

    vLLM does so when it stops by itself, and not when it is killed. Who lives has its file mapped: a new process may
    have the id of an ended one, and in containers it nearly always has.
    """
    shared = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if not shared or not Path("/proc/self/maps").exists():
        return
    for file in Path(shared).glob(f"gauge_{_MODE}_*.db"):
        try:
            mapped = Path("/proc", file.stem.rpartition("_")[2], "maps").read_bytes()
        except PermissionError:  # it lives
            continue
        except OSError:  # it ended
            mapped = b""
        with suppress(OSError):  # another process removed it first; or it is another user's
            if os.fsencode(f"/{file.name}") not in mapped and b"vpatch_info" in file.read_bytes():
                file.unlink()

"""Run modules in processes that `server.py` forks: one server for each environment, for all processes of a test run."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO

from tests.validation.cpu import server

HERE = Path(__file__).parent


def run(python: Path, request: server.Request) -> tuple[int, str, str]:
    """Run a module in the server of an environment's interpreter; return its exit status, output and errors.

    Raises:
        RuntimeError: the server died.
    """
    place = _leased(python, os.getpid())
    with _connected(place) as server_, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        socket.send_fds(server_, [json.dumps(request).encode()], [out.fileno(), err.fileno()])
        status = server_.recv(server.MOST)
        if not status:
            raise RuntimeError(f"the server of {python} died:\n{place.with_suffix('.log').read_text()[-2000:]}")
        return int(status), _text(out), _text(err)


@cache
def _leased(python: Path, _process: int) -> Path:
    """Return the socket of the environment's server, which serves as long as this process lives."""
    lease, place = _lease(python)
    atexit.register(lease.close)
    return place


def _lease(python: Path) -> tuple[socket.socket, Path]:
    environment = python.parents[1]
    code = b"".join((HERE / name).read_bytes() for name in ("server.py", "platform.py"))
    key = hashlib.sha256(str(HERE).encode() + code).hexdigest()[:12]
    place = environment.with_name(f"{environment.name}-{key}.socket")
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):
            lease = _connected(place)
            with contextlib.ExitStack() as closing:
                closing.callback(lease.close)
                lease.send(server.LEASE)
                if lease.recv(server.MOST):
                    closing.pop_all()
                    return lease, place
        lease, _ = _start(python, place)
        return lease, place


def _start(python: Path, place: Path) -> tuple[socket.socket, int]:
    """Start a server that listens at `place`; return a lease and the server's process."""
    from tests.paths import ROOT
    from tests.validation.cpu.environment import environ

    variables = environ(None, place.parent / "home")
    variables["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'patches'}"  # their probes
    place.unlink(missing_ok=True)
    with _socket() as listener, place.with_suffix(".log").open("w") as log:
        with _short(place) as address:
            listener.bind(address)
        listener.listen(128)
        mine, lease = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with lease:
            for passed in (listener, lease):
                passed.set_inheritable(True)
            numbers = (str(listener.fileno()), str(lease.fileno()))
            command = (str(python), "-P", "-m", "tests.validation.cpu.server", *numbers)
            outputs = [(os.POSIX_SPAWN_DUP2, log.fileno(), number) for number in (1, 2)]
            process = os.posix_spawn(command[0], command, variables, file_actions=outputs, setsid=True)
    return mine, process


def _connected(place: Path) -> socket.socket:
    connection = _socket()
    try:
        with _short(place) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextlib.contextmanager
def _short(place: Path) -> Iterator[str]:
    """Yield an address for a socket's path, which may be longer than the 107 bytes that an address has."""
    folder = os.open(place.parent, os.O_PATH)
    try:
        yield f"/proc/self/fd/{folder}/{place.name}"
    finally:
        os.close(folder)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")

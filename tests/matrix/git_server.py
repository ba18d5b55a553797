"""Git's own HTTP server on loopback, which can ask for passwords, speak an old protocol, or be silent."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.loopback import Quiet, listening


@dataclass
class Served:
    """A folder of repositories, how it is served, and the requests so far."""

    root: Path
    port: int = 0
    login: str = ""  # "user:password" if it requires a login
    modern: bool = True  # whether it supports protocol 2
    asked: list[str] = field(default_factory=list)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))  # released by each of them
    silent: threading.Event | None = None  # if not None, the server answers once it is set

    def url(self, repository: str, login: str = "") -> str:
        """Return the address of a repository, with a login in it."""
        return f"http://{login}{'@' * bool(login)}127.0.0.1:{self.port}/{repository}"


@contextmanager
def serving(root: Path) -> Iterator[Served]:
    served = Served(root)

    class Handler(Quiet):
        protocol_version = "HTTP/1.0"  # of a request that is refused, the body is not read

        def do_GET(self) -> None:  # noqa: N802 - the library's name
            served.asked.append(self.path)
            served.arrived.release()
            if served.silent is not None:
                served.silent.wait(60)
                self.close_connection = True
                return
            wanted = "Basic " + base64.b64encode(served.login.encode()).decode()
            if served.login and self.headers.get("Authorization") != wanted:
                self.send(401, b"", {"WWW-Authenticate": 'Basic realm="git"'})
                return
            self._run(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        do_POST = do_GET  # noqa: N815 - the name that http.server calls

        def _run(self, body: bytes) -> None:
            path, _, query = self.path.partition("?")
            environment = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(served.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", "") if served.modern else "",
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
            }
            command = ["git", "http-backend"]
            ran = subprocess.run(command, input=body, env=environment, capture_output=True, check=False)
            head, _, answer = ran.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self.send(int(fields.pop("Status", "200").split()[0]), answer, fields)

    with listening(Handler) as server:
        served.port = server.server_port
        yield served


def git(root: Path, *arguments: str) -> str:
    """Run git in a folder, as a test user; return its output."""
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main")
    command = ["git", "-C", str(root), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

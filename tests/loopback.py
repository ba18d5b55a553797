"""Servers on loopback, and one that is a package index and serves made-up wheels, correctly or not."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import ssl
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from vpatch.net import session

X86 = "cp38-abi3-manylinux_2_35_x86_64.whl"
NAME = f"vllm-1.0-{X86}"
SOURCES = {
    "vllm/__init__.py": b"__version__ = '1.0'\n",
    "vllm/engine/core.py": b"# -*- coding: latin-1 -*-\r\nname = 'caf\xe9'\r\n",
    "vllm/zz/last.py": b"",
    "vllm-1.0.dist-info/METADATA": b"Metadata-Version: 2.4\nName: vllm\nVersion: 1.0\n",
    "vllm-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\n",
    "vllm-1.0.dist-info/licenses/LICENSE": b"Apache-2.0\n",
}
BALLAST = hashlib.shake_256(b"ballast").digest(800_000)  # more than `ranges.GAP`, and than `ranges.TAIL`
RECORD = "vllm-1.0.dist-info/RECORD"


def record_of(files: dict[str, bytes], path: str = RECORD) -> bytes:
    """Return a correct RECORD of `files`."""
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return ("".join(lines) + f"{path},,\n").encode()


def make_wheel(
    files: dict[str, bytes] | None = None, record: bytes | None = None, *, release: str = "vllm-1.0"
) -> bytes:
    """Return a wheel of `files`, with ballast between them so that reading them takes several ranges."""
    files = {name.replace("vllm-1.0", release): data for name, data in {**SOURCES, **(files or {})}.items()}
    path = f"{release}.dist-info/RECORD"
    first, *rest = files.items()
    everything = {first[0]: first[1], "vllm/_C.abi3.so": BALLAST, **dict(rest)}
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in everything.items():
            info = zipfile.ZipInfo(name, (2026, 5, 4, 3, 2, 0))
            stored = zipfile.ZIP_STORED if name.endswith(".so") else zipfile.ZIP_DEFLATED
            archive.writestr(info, data, compress_type=stored)
        archive.mkdir(f"{release}.dist-info/empty")
        archive.writestr(zipfile.ZipInfo(path), record_of(everything, path) if record is None else record)
        archive.writestr(zipfile.ZipInfo("vllm/_moe.so"), BALLAST[:600_000])
    return body.getvalue()


_wheel = cache(make_wheel)


class IndexServer:
    """Settings of the server (content and faults), and the requests that it received."""

    def __init__(self) -> None:
        self.url = ""
        self.custom: tuple[str, bytes] | None = None  # the page, as a type and bytes
        self.page = "html"  # or json, garbage, picture, broken, 404, 403, 500
        self.ranges = "yes"  # or ignored, a status code that refuses ranges, or one of the faults in `serve_file`
        self.failures = 0  # how many times to answer `busy` before the first success
        self.busy = 503
        self.cuts = 0  # how many bodies to cut off half-way before the first complete one
        self.etag = '"one"'
        self.login = ""
        self.stalls = ""  # path prefix of requests that never get an answer
        self.projects = {"vllm"}
        self.only: dict[str, str] = {}  # by file that only one index has: the path prefix of that index
        self.mark = "#sha256={}"  # how the page marks a file's hash
        self.files: dict[str, bytes] = {}
        self.altered: dict[str, bytes] = {}  # bytes to send instead of a file's own
        self.stop: Callable[[], None] = lambda: None  # stop listening
        self.attributes: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []  # path and Range of each request
        self.headers: list[dict[str, str]] = []
        self.stalled = threading.Event()
        self.end = threading.Event()

    def publish(self, name: str, data: bytes = b"", attributes: str = "") -> None:
        """Add a file to the index."""
        self.files[name] = data
        self.attributes[name] = attributes

    def wanted(self) -> dict[str, bytes]:
        """Return the files of release 1.0 that a fetch must write."""
        with zipfile.ZipFile(io.BytesIO(self.files[NAME])) as archive:
            names = [name for name in archive.namelist() if not name.endswith(("/", ".so"))]
            return {name: archive.read(name) for name in names}

    def spans(self) -> list[str]:
        """Return the requested ranges of a file; an empty one is the whole file."""
        return [span for path, span in self.asked if path.startswith("/files/")]


class Quiet(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer takes 40 ms

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass

    def send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send an answer, of the length of its body unless the headers name another."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Handler(Quiet):
    index: IndexServer

    def do_GET(self) -> None:
        index = self.index
        index.asked.append((self.path, self.headers.get("Range", "")))
        index.headers.append(dict(self.headers))
        expected = "Basic " + base64.b64encode(index.login.encode()).decode()
        if index.stalls and self.path.startswith(index.stalls):
            index.stalled.set()
            index.end.wait()
            self.close_connection = True
        elif index.login and self.headers.get("Authorization") != expected:
            self.answer(401, b"", {})
        elif index.failures:
            index.failures -= 1
            self.answer(index.busy, b"", {"Retry-After": "3600"})
        elif self.path.startswith("/files/"):
            name = self.path.removeprefix("/files/").partition("?")[0]
            self.serve_file(index.altered.get(name, index.files[name]))
        elif self.path.split("/")[-2] not in index.projects or self.path.startswith("/empty/"):
            self.answer(404, b"", {})
        else:
            self.serve_page()

    def serve_page(self) -> None:
        index = self.index
        links = []
        files = []
        for name, data in index.files.items():
            if not self.path.startswith(index.only.get(name, "/")):
                continue
            digest = hashlib.sha256(data).hexdigest()
            attributes = index.attributes[name]
            mark = index.mark.format(digest)
            links.append(f'<a href="../../files/{name}{mark}" {attributes}>{name}</a><br/>')
            files.append({"filename": name, "url": f"{index.url}/files/{name}", "hashes": {"sha256": digest}})
        page = {"meta": {"api-version": "1.9"}, "name": "vllm", "files": files}
        kind, body = {
            "html": ("text/html", "<!DOCTYPE html><title>vllm</title>" + "".join(links)),
            "json": ("application/vnd.pypi.simple.v1+json", json.dumps(page)),
            "garbage": ("text/html", "<a href=><<<\0<a b=''>]]> <p" + "".join(map(chr, range(1, 256)))),
            "picture": ("image/png", "\x89PNG"),
            "broken": ("application/vnd.pypi.simple.v1+json", '{"files": ['),
            "nested": ("application/vnd.pypi.simple.v1+json", '{"files": ' + "[" * 200_000),
            "other": ("application/vnd.pypi.simple.v1+json", '{"files": 3}'),
            "newer": ("text/html", '<meta name="pypi:repository-version" content="2.0">'),
        }.get(index.page, ("text/plain", ""))
        if index.custom:
            kind, content = index.custom
            self.answer(200, content, {"Content-Type": kind})
            return
        self.answer(int(index.page) if index.page.isdecimal() else 200, body.encode(), {"Content-Type": kind})

    def serve_file(self, data: bytes) -> None:
        index = self.index
        size = len(data)
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        tag = {"ETag": index.etag} if index.etag else {}
        condition = self.headers.get("If-Range")
        fails = condition is not None and (condition != index.etag or condition.startswith("W/"))
        if index.ranges == "unmeasured":
            self.close_connection = True
            self.answer(200, data, {**tag, "Content-Length": "9" * 5000})
            return
        if not asked or index.ranges == "ignored" or fails:
            self.answer(200, data, tag)
            return
        if index.ranges.isdecimal():
            self.answer(int(index.ranges), b"", {})
            return
        if asked[1]:
            start, stop = int(asked[1]), int(asked[2]) + 1
        else:
            start, stop = max(0, size - int(asked[2])), size
        body = data[start:stop]
        headers = {**tag, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
        match index.ranges:
            case "elsewhere":
                headers["Content-Range"] = headers["Content-Range"].replace("bytes ", "bytes 1")
            case "unsaid":
                del headers["Content-Range"]
            case "grown":
                headers["Content-Range"] += "0"
            case "endless":
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{'9' * 5000}"
            case "replaced":
                headers["ETag"] = '"two"'
            case "overlong":
                body += b"more"
            case "short":
                body = body[:-1]
        self.answer(206, body, headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        headers = {"Content-Length": str(len(body)), **headers}
        if self.index.cuts > 0 and status in (200, 206) and self.path.startswith("/files/"):
            self.index.cuts -= 1
            self.close_connection = True
            body = body[: len(body) // 2]
        self.send(status, body, headers)


class Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing when a client hangs up."""


@contextmanager
def listening(
    handler: type[BaseHTTPRequestHandler],
    address: str = "127.0.0.1",
    context: ssl.SSLContext | None = None,
    **state: object,
) -> Iterator[Server]:
    """Serve in a thread, on a free port, with a handler that has this state; with a `context`, by HTTPS."""
    with Server((address, 0), type("BoundHandler", (handler,), state)) as server:
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the user's settings; return the empty home folder that replaces theirs."""
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_", "XDG_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(home / "system"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return home


@pytest.fixture
def index(settings: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IndexServer]:
    """Serve an index with one release, 1.0, which is the user's default index."""
    monkeypatch.setattr(session, "BACKOFF", 0)
    monkeypatch.setattr(session, "TIMEOUT", 5.0)
    state = IndexServer()
    with listening(Handler, index=state) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        state.publish(NAME, _wheel())
        monkeypatch.setenv("PIP_INDEX_URL", f"{state.url}/simple/")

        def stop() -> None:
            state.end.set()
            server.shutdown()
            server.server_close()

        state.stop = stop
        try:
            yield state
        finally:
            stop()

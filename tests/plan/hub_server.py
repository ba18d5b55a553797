"""A hub on loopback that serves one checkpoint, well or badly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from tests.loopback import listening

COMMIT = "1234567890abcdef1234567890abcdef12345678"
NAME = "somebody/Some-Model"


class Hub:
    """The files of the hub, how it misbehaves, and the requests that it got."""

    def __init__(self) -> None:
        self.url = ""
        self.files: dict[str, bytes] = {}
        self.revisions = {"main", COMMIT}
        self.refusals: dict[str, tuple[int, str]] = {}  # of a file, the status and the error code
        self.ranges = "yes"  # or ignored, another, unsaid, endless
        self.cut = ""  # the file that ends half-way
        self.redirects = False  # large files are on another server, as with the real hub
        self.asked: list[tuple[str, str]] = []  # file and range of each request
        self.of: list[str] = []  # the revision of each
        self.tokens: set[str | None] = set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: Hub

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass

    def do_GET(self) -> None:
        hub = self.hub
        hub.tokens.add(self.headers.get("Authorization"))
        found = re.fullmatch(r"/(?:elsewhere|(\S+)/resolve/([^/]+))/(\S+)", self.path)
        assert found
        name, revision, file = found.groups()
        hub.asked.append((file, self.headers.get("Range", "")))
        hub.of += [revision] if revision else []
        if name and name != NAME:
            return self.refuse(401, "RepoNotFound")
        if revision and revision not in hub.revisions:
            return self.refuse(404, "RevisionNotFound")
        if file in hub.refusals:
            return self.refuse(*hub.refusals[file])
        if file not in hub.files:
            return self.refuse(404, "EntryNotFound")
        if hub.redirects and name and file.endswith(".safetensors"):
            return self.answer(302, b"", {"Location": f"{hub.url}/elsewhere/{file}"}, file)
        return self.serve(hub.files[file], file)

    def serve(self, data: bytes, file: str) -> None:
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not span or self.hub.ranges in ("ignored", "endless"):
            return self.answer(200, data, {"X-Repo-Commit": COMMIT}, file)
        first, last = int(span[1]), min(int(span[2]), len(data) - 1)
        start = {"another": first + 1}.get(self.hub.ranges, first)
        total = "*" if self.hub.ranges == "unsaid" else len(data)
        return self.answer(206, data[first : last + 1], {"Content-Range": f"bytes {start}-{last}/{total}"}, file)

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, b"no", {"X-Error-Code": code}, "")

    def answer(self, status: int, body: bytes, headers: dict[str, str], file: str) -> None:
        self.send_response(status)
        endless = self.hub.ranges == "endless"
        self.close_connection = endless
        for name, value in (({} if endless else {"Content-Length": str(len(body))}) | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if file and file == self.hub.cut:
            self.close_connection = True
            body = body[: len(body) // 2]
        self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve a hub, and make huggingface_hub use it."""
    from huggingface_hub import constants

    state = Hub()
    with listening(Handler, hub=state) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", state.url)
        template = state.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield state

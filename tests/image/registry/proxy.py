"""A server in front of a real registry: it forwards everything, and injects faults.

It can also be the kind of registry that wants tokens, with a token server of its own, as the public ones are.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import secrets
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

from tests.loopback import Quiet, listening


@dataclass
class Fault:
    """A fault for matching requests, injected `times` times: answer `status`, or spoil the real answer."""

    method: str
    path: str  # a regular expression
    status: int = 0
    spoil: str = ""  # cut, corrupt, longer, short, stall or hang up
    times: int = 1 << 30
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    status: int = 0


class Proxy:
    """The state of the server: `faults` to inject, requests `asked`, and who may do what."""

    def __init__(self, behind: str) -> None:
        self.behind, self.host = behind, ""
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self.wants_tokens = False
        self.realm = ""
        self.users: dict[str, str] = {}  # none: everybody gets what is asked for
        self.identity = ""  # an identity token
        self.closed: set[str] = set()  # repositories for which no token is any good
        self.uses = 1 << 30  # requests that a token is good for
        self.end = threading.Event()
        self.left = 1 << 30  # requests until it hangs up for good
        self.tokens: dict[str, tuple[set[str], list[None]]] = {}

    def fail(self, method: str, path: str, **how: Any) -> None:
        self.faults.append(Fault(method, path, **how))

    def fail_after(self, answered: int) -> None:
        """Hang up on every request after this many."""
        self.asked.clear()
        self.left = answered

    def count(self, method: str, path: str) -> int:
        return sum(one.method == method and bool(re.search(path, one.path)) for one in self.asked)

    def fault(self, method: str, path: str) -> Fault | None:
        """Return the fault for a request, and count it as used."""
        for fault in self.faults:
            if fault.method == method and fault.times > 0 and re.search(fault.path, path):
                fault.times -= 1
                return fault
        return None


class Handler(Quiet):
    proxy: Proxy

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        self.seen = Asked(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        self.proxy.asked.append(self.seen)
        fault = self.proxy.fault(self.command, self.path)
        self.proxy.left -= 1
        if self.proxy.left < 0 or (fault and fault.spoil == "hang up"):
            self.close_connection = True
        elif fault and fault.spoil == "stall":
            self.swallow()
            self.proxy.end.wait()
            self.close_connection = True
        elif fault and fault.status:
            self.swallow()
            self.answer(fault.status, fault.body, fault.headers)
        elif urlsplit(self.path).path == "/token":
            self.give_token()
        elif self.proxy.wants_tokens and (wanted := self.unproven()):
            self.swallow()
            realm = self.proxy.realm or f"http://{self.proxy.host}/token"
            challenge = f'Bearer realm="{realm}",service="test",scope="{wanted}"'
            self.answer(401, b"{}", {"WWW-Authenticate": challenge})
        else:
            self.pass_on(fault)

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 - the library's names

    def swallow(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def unproven(self) -> str:
        """Return the scopes that a request lacks, as a challenge names them; empty if it may pass."""
        parts = urlsplit(self.path)
        repository = re.fullmatch(r"/v2/(.+?)/(?:blobs|manifests)/.*", parts.path)
        if not repository:
            return ""
        wanted = {f"repository:{repository[1]}:{'pull' if self.command in ('GET', 'HEAD') else 'pull,push'}"}
        if source := parse_qs(parts.query).get("from"):
            wanted.add(f"repository:{source[0]}:pull")
        scopes, uses = self.proxy.tokens.get(self.headers.get("Authorization", "").removeprefix("Bearer "), (set(), []))
        pushing = {scope.removesuffix(",push") for scope in scopes}
        if wanted <= scopes | pushing and len(uses) < self.proxy.uses:
            uses.append(None)
            return ""
        return " ".join(sorted(wanted))

    def give_token(self) -> None:
        form = parse_qs(self.swallow().decode())
        scopes = parse_qs(urlsplit(self.path).query).get("scope", [])
        if form:
            known = form["refresh_token"] == [self.proxy.identity]
            scopes = form["scope"][0].split()
        else:
            given = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
            user, _, password = given.partition(":")
            known = not self.proxy.users or self.proxy.users.get(user) == password
        if not known:
            self.answer(401, b'{"details": "incorrect"}', {})
            return
        token = secrets.token_hex()
        granted = {scope for scope in scopes if " " not in scope and scope.split(":")[1] not in self.proxy.closed}
        self.proxy.tokens[token] = (granted, [])
        self.answer(200, json.dumps({"access_token" if form else "token": token}).encode(), {})

    def pass_on(self, fault: Fault | None) -> None:
        behind = http.client.HTTPConnection(self.proxy.behind, timeout=20)
        names = [name for name in self.headers if name.lower() not in ("connection", "authorization")]
        behind.request(self.command, self.path, self.swallow(), {name: self.headers[name] for name in names})
        real = behind.getresponse()
        body = real.read()
        spoil = fault.spoil if fault else ""
        if spoil == "corrupt":
            body = body[:-1] + bytes([body[-1] ^ 1])
        if spoil == "longer":
            body += b"more"
        if spoil == "short":
            body = body[: len(body) // 2]
        headers = {name: value for name, value in real.getheaders() if name.lower() not in ("connection", "date")}
        headers |= dict(fault.headers) if fault else {}
        if self.command != "HEAD":
            headers["Content-Length"] = str(len(body))
        self.answer(real.status, body[: len(body) // 2] if spoil == "cut" else body, headers)
        self.close_connection |= spoil == "cut"
        behind.close()

    def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.seen.status = status
        self.send(status, body, headers)


@contextmanager
def proxying(behind: str, address: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> Iterator[Proxy]:
    """Serve in front of the registry `behind`, on a free port of a loopback address; with a `context`, by HTTPS."""
    proxy = Proxy(behind)
    with listening(Handler, address, context, proxy=proxy) as server:
        proxy.host = f"{address}:{server.server_port}"
        try:
            yield proxy
        finally:
            proxy.end.set()


DOMAIN = "example.org"


@contextmanager
def secured(behind: str, folder: Path, name: str = "registry") -> Iterator[Proxy]:
    """Serve in front of the registry `behind` as `<name>.example.org`, which this process trusts."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    if not key.exists():
        subject = ["-subj", f"/CN={DOMAIN}", "-addext", f"subjectAltName=DNS:*.{DOMAIN}"]
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        files = ["-keyout", str(key), "-out", str(certificate)]
        subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    resolve = socket.getaddrinfo
    with (
        proxying(behind, context=context) as proxy,
        patch.object(
            socket,
            "getaddrinfo",
            lambda host, *more, **how: resolve("127.0.0.1" if str(host).endswith(DOMAIN) else host, *more, **how),
        ),
        patch.dict(os.environ, {"REQUESTS_CA_BUNDLE": str(certificate)}),
    ):
        proxy.host = f"{name}.{DOMAIN}:{proxy.host.partition(':')[2]}"
        yield proxy

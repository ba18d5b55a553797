"""A server before a registry by HTTPS, under a name that leads to this machine for as long as it runs."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.image.registry.proxy import Proxy, proxying

DOMAIN = "example.org"


@contextmanager
def secured(behind: str, folder: Path, name: str = "registry") -> Iterator[Proxy]:
    """Serve before the registry `behind` as `<name>.example.org`, which this process trusts."""
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

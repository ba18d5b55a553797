"""A server on loopback that sends one byte after another, slowly and without end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat

PAUSE = 0.01  # seconds between two bytes
OK = b"HTTP/1.1 200 OK\r\n"
DRIPS = {
    "status": (b"", b"H"),
    "header": (OK, b"X"),
    "body": (OK + b"Content-Length: 9000000\r\nContent-Type: text/html\r\n\r\n", b" "),
    "chunk": (OK + b"Transfer-Encoding: chunked\r\nContent-Type: text/html\r\n\r\n1;", b"x"),
}


@contextmanager
def dripping(kind: str) -> Iterator[str]:
    """Serve one of the `DRIPS`; yields `host:port`."""
    end = threading.Event()
    first, more = DRIPS[kind]

    def answer(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.recv(1 << 16)
            for data in chain([first], repeat(more)):
                client.sendall(data)
                if end.wait(PAUSE):
                    return

    def accept() -> None:
        while not end.is_set():
            with suppress(TimeoutError):
                threading.Thread(target=answer, args=(server.accept()[0],)).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            end.set()
            thread.join()

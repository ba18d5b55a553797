"""A process that imports the libraries of vLLM once, forks one that imports a tree's vLLM, and that one for each probe.

`client.py` starts it and says when it is no longer needed. It computes nothing before a fork, and has no thread.
It imports with Triton's interpreter switched on, which only kernels notice.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from tests.validation.cpu import platform

LEASE, MOST = b"lease", 1 << 20
TREES = 10
"""Trees whose processes, of some 130 MB each, are kept; the one that was asked for longest ago goes first."""

LIBRARIES = (
    *("torch", "torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.pattern_matcher", "torch.distributed"),
    *("torch.profiler", "torchvision", "triton", "triton.language", "transformers", "transformers.modeling_utils"),
    *("transformers.image_processing_utils", "transformers.video_utils", "transformers.feature_extraction_utils"),
    *("openai", "openai.types.chat", "openai.types.responses", "xgrammar", "compressed_tensors", "pydantic", "aiohttp"),
    *("PIL.Image", "zmq.asyncio", "prometheus_client", "msgspec", "gguf", "llguidance", "uvloop", "einops", "psutil"),
)
"""What takes long to import, and does not depend on the vLLM that uses it."""

Request = dict[str, Any]


def main(listener: int, lease: int) -> NoReturn:
    """Serve until every client has closed its lease, then kill what still runs.

    Args:
        listener: the file descriptor of a listening socket.
        lease: that of the connection of the client that started this process.
    """
    platform.stand_in_for_torchvision()
    for name in LIBRARIES:
        with suppress(Exception):  # a probe that needs it gets the error
            importlib.import_module(name)
    with suppress(ImportError):  # as above
        spare_unused_checks()
    door, leases = socket.socket(fileno=listener), {socket.socket(fileno=lease)}
    trees: dict[tuple[str, ...], socket.socket] = {}
    with selectors.DefaultSelector() as ready:
        for one in (door, *leases):
            ready.register(one, selectors.EVENT_READ)
        while leases:
            for key, _ in ready.select():
                if key.fileobj is not door:
                    ready.unregister(key.fileobj)
                    leases.discard(key.fileobj)
                    continue
                client, _ = door.accept()
                message, files, *_ = socket.recv_fds(client, MOST, 2)
                if message == LEASE:
                    leases.add(client)
                    ready.register(client, selectors.EVENT_READ)
                    client.send(LEASE)
                    continue
                with suppress(OSError):  # the client is gone
                    _hand_over(trees, message, client, files)
                for number in files:
                    os.close(number)
                client.close()
    os.killpg(0, signal.SIGKILL)
    raise AssertionError


def spare_unused_checks() -> None:
    """Let Triton's interpreter not compute whether integers overflow: it drops the answers unless it debugs."""
    from triton.runtime.interpreter import interpreter_builder

    if not interpreter_builder.options.debug:
        interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)


def _hand_over(trees: dict[tuple[str, ...], socket.socket], message: bytes, client: socket.socket, files: Any) -> None:
    """Pass a request to the process of its tree, which is started if necessary."""
    if not message:
        return
    request = json.loads(message)
    key = (request["tree"], request["ready"])
    if key in trees:
        trees[key] = trees.pop(key)  # now the last
    else:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not _forked():
            _close_all_but(theirs.fileno())
            _serve_tree(theirs, request)
        theirs.close()
        trees[key] = ours
        for old in list(trees)[:-TREES]:
            trees.pop(old).close()
    socket.send_fds(trees[key], [message], [client.fileno(), *files])


def _serve_tree(parent: socket.socket, first: Request) -> NoReturn:
    """Import the vLLM of a tree, then fork a process for every request; end when the parent wants no more."""
    sys.path.insert(0, first["tree"])
    failed = ""
    try:
        getattr(platform, first["ready"])()
    except BaseException:
        failed = traceback.format_exc()
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(parent, selectors.EVENT_READ)
        while running or ready.get_map():
            for key, _ in ready.select():
                if key.fileobj is parent:
                    message, files, *_ = socket.recv_fds(parent, MOST, 3)
                    if not message:
                        ready.unregister(parent)
                        continue
                    client, out, err = socket.socket(fileno=files[0]), *files[1:]
                    if not (child := _forked()):
                        _run(json.loads(message), out, err, failed)
                    os.close(out)
                    os.close(err)
                    watch = os.pidfd_open(child)
                    running[watch] = child, client
                    ready.register(watch, selectors.EVENT_READ)
                else:
                    watch = key.fd
                    ready.unregister(watch)
                    child, client = running.pop(watch)
                    os.close(watch)
                    _, status = os.waitpid(child, 0)
                    with suppress(OSError):  # the client is gone
                        client.send(str(os.waitstatus_to_exitcode(status)).encode())
                    client.close()
    os._exit(0)


def _run(request: Request, out: int, err: int, failed: str) -> NoReturn:
    """Run a probe in this process; never return."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    _close_all_but(2)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    os.chdir(request["home"])
    gc.enable()
    code = 1
    try:
        if failed:
            sys.stderr.write(failed)
        else:
            from tests.validation.cpu.probing import report  # as it is now, not as when the server started

            report(request["module"], *request["arguments"])
            code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _close_all_but(number: int) -> None:
    """Close what a fork inherited: connections, of which others wait for the end."""
    os.closerange(3, number)
    os.closerange(max(number, 2) + 1, 1 << 12)


def _forked() -> int:
    """Fork with a heap that the collector leaves alone, so that both processes keep sharing it."""
    gc.freeze()
    return os.fork()


if __name__ == "__main__":
    gc.disable()
    main(*map(int, sys.argv[1:]))

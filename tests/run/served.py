"""A real vLLM server on the CPU: started, asked and ended."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

PROMPT, TOKENS = "hello", 8
UP = "Application startup complete"
FLAGS = ("--max-model-len", "128", "--max-num-seqs", "4")


@dataclass(frozen=True)
class Server:
    """A server that answers: the id of the API server's process, and the lines that all have written so far."""

    process: int
    url: str
    log: list[str] = field(default_factory=list)

    def tokens(self) -> list[int]:
        """Ask for a completion; return its token ids."""
        asked = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True}
        said = _session().post(f"{self.url}/v1/completions", json=asked, timeout=60)
        said.raise_for_status()
        ids: list[int] = said.json()["choices"][0]["token_ids"]
        return ids

    def metrics(self) -> str:
        return _session().get(f"{self.url}/metrics", timeout=60).text


def _session() -> requests.Session:
    """uvicorn says that it is up just before it listens."""
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Retry(connect=8, backoff_factor=0.1)))
    return session


def environ(home: Path) -> dict[str, str]:
    """Return the variables of a server that writes below `home` only, and asks no hub."""
    kept = {name: value for name, value in os.environ.items() if not re.match("VLLM|PYTHON|COVERAGE|HF_", name)}
    own = {"HOME": str(home), "TMPDIR": str(home), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    small = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}  # GiB; else it takes most of the memory
    return kept | own | small


@contextmanager
def serving(command: Sequence[str | Path], model: Path, variables: Mapping[str, str]) -> Iterator[Server]:
    """Run `COMMAND serve MODEL` until the block ends.

    Raises:
        AssertionError: it ends before it answers; with its log.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [*map(str, command), "serve", str(model), "--port", str(port), *FLAGS]
    process = subprocess.Popen(
        words,
        cwd=variables["HOME"],
        env=dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    server = Server(process.pid, f"http://127.0.0.1:{port}")
    rest = threading.Thread(target=server.log.extend, args=(process.stdout,))  # a full pipe would stop the server
    try:
        for line in process.stdout:
            server.log.append(line)
            if UP in line:
                break
        else:
            raise AssertionError("".join(server.log))
        rest.start()
        yield server
    finally:
        process.terminate()
        process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it left behind, which would keep the pipe open
        if rest.ident:
            rest.join()
        process.stdout.close()

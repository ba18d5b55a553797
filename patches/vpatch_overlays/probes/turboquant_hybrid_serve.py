"""A hybrid model served with a TurboQuant KV cache, and a prompt of several prefill chunks; needs a GPU.

The model has random weights and no tokenizer: prompt and answer are tokens. With a folder as argument, the script only
writes the model there, which needs no GPU.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from vpatch_overlays.probes.bare import TURBOQUANT, expect
from vpatch_overlays.probes.tiny_hybrid import VOCABULARY, write

CHUNK, CHUNKS, NEW = 512, 3, 16
START_S, ANSWER_S, END_S, LOG_LINES = 600, 120, 20, 40

ARGUMENTS = {
    "--host": "127.0.0.1",
    "--served-model-name": "tiny",
    "--kv-cache-dtype": TURBOQUANT,
    "--max-num-batched-tokens": str(CHUNK),
    "--max-model-len": "4096",
    "--max-num-seqs": "4",
    "--gpu-memory-utilization": "0.1",
    "--kv-cache-memory-bytes": str(1 << 30),
    # No torch.compile, which takes a minute, but CUDA graphs: their capture locks the workspace.
    "--compilation-config": '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}',
    "--additional-config": '{"gdn_prefill_backend": "triton"}',
}
FLAGS = ("--skip-tokenizer-init", "--language-model-only", "--enable-chunked-prefill", "--no-enable-prefix-caching")
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",  # there is no other network
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it would be compiled or downloaded
}


def serve(model: Path, port: int, log: Any) -> subprocess.Popen[bytes]:
    """Start `vllm serve` in a process group of its own."""
    options = (part for pair in ARGUMENTS.items() for part in pair)
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--port", str(port)]
    return subprocess.Popen(
        [*command, *options, *FLAGS],
        env=os.environ | SETTINGS,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def ask(port: int, path: str, body: dict[str, Any] | None = None, limit_s: float = 5) -> bytes:
    """Send a request to the server, bypassing any proxy.

    Raises:
        OSError: the server does not answer, or answers with an error.
    """
    data = body and json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data or None, {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=limit_s) as response:
        answer: bytes = response.read()
    return answer


def wait(server: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the server is ready.

    Raises:
        AssertionError: the server ends, or is not ready in time.
    """
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise AssertionError(f"the server was to start, and ended with {server.returncode}")
        try:
            ask(port, "/health")
        except OSError:
            time.sleep(1)
        else:
            return
    raise AssertionError(f"the server was to be ready within {START_S} s")


def complete(port: int) -> None:
    """Request a completion of a prompt of several chunks.

    Raises:
        AssertionError: the server fails, or its completion is too short.
    """
    prompt = [10 + number * 7919 % (VOCABULARY - 20) for number in range(CHUNKS * CHUNK)]
    wanted = {"max_tokens": NEW, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    try:
        answer = json.loads(ask(port, "/v1/completions", {"model": "tiny", "prompt": prompt} | wanted, ANSWER_S))
    except urllib.error.HTTPError as error:
        raise AssertionError(f"a completion was to be given: {error}: {error.read().decode()[:300]}") from None
    except OSError as error:
        raise AssertionError(f"a completion was to be given: {error}") from None
    usage = answer["usage"]
    expect("tokens of the prompt", len(prompt), usage["prompt_tokens"])
    expect("tokens of the completion", NEW, usage["completion_tokens"])
    expect("tokens that came back", NEW, len(answer["choices"][0]["token_ids"]))


def causes(log: str) -> list[str]:
    """Return the errors in the server's log."""
    return re.findall(r"\b\w+(?:Error|Exception): .+", log)


def stop(server: subprocess.Popen[bytes]) -> None:
    """Stop the server and all its processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(END_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def main() -> None:
    """Make the model, serve it, and request a completion."""
    folder = Path(tempfile.mkdtemp())
    write(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "log"
    with log.open("wb") as file:
        server = serve(folder / "model", port, file)
        try:
            wait(server, port)
            complete(port)
        except AssertionError as error:
            told = log.read_text("utf-8", "replace")
            sys.stderr.write("\n".join(told.splitlines()[-LOG_LINES:]) + "\n")
            raise AssertionError("; ".join((str(error), *causes(told)[-1:]))) from None
        finally:
            stop(server)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(Path(sys.argv[1]))
    else:
        main()

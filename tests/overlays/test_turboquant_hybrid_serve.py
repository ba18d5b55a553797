"""The GPU probe as far as it needs no GPU: how it talks with a server, and what it reports of a bad one."""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path

import pytest
from vpatch_overlays.probes import turboquant_hybrid_serve as probe

pytestmark = pytest.mark.deep

# A stand-in for vLLM: it answers with as many tokens as requested, except for the fault that `$FAULT` selects.
SERVER = """
import json, os, signal, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

fault = os.environ["FAULT"]
stubborn = "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", stubborn])
with open(os.environ["SEEN"], "w") as file:
    json.dump({"arguments": sys.argv[1:], "pids": [os.getpid(), child.pid], "hub": os.environ["HF_HUB_OFFLINE"]}, file)
if fault == "dies":
    sys.exit("INFO\\nValueError: too little memory\\nINFO ended")

class Handler(BaseHTTPRequestHandler):
    def answer(self, code, body):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        self.answer(503 if fault == "never ready" else 200, {})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if fault == "refuses":
            return self.answer(500, {"error": "locked"})
        if fault == "dies later":
            print("RuntimeError: CUDA error", flush=True)
            os._exit(1)
        if fault == "hangs":
            signal.pause()
        count = asked["max_tokens"] - (fault == "too few")
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": count}
        self.answer(200, {"usage": usage, "choices": [{"token_ids": [7] * count}]})

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""

FAULTS = {
    "dies": "the server was to start, and ended with 1; ValueError: too little memory",
    "never ready": "the server was to be ready within 3 s",
    "refuses": 'a completion was to be given: HTTP Error 500: Internal Server Error: {"error": "locked"}',
    "dies later": (
        "a completion was to be given: Remote end closed connection without response; RuntimeError: CUDA error"
    ),
    "hangs": "a completion was to be given: timed out",
    "too few": "tokens of the completion: 16 expected, 15 found",
}
# What each fault waits for in vain, in seconds; elsewhere a slow machine has the probe's own time.
LIMITS = {"never ready": ("START_S", 3), "hangs": ("ANSWER_S", 1)}


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the stand-in records what it received."""
    folder = tmp_path / "vllm/entrypoints/cli"
    folder.mkdir(parents=True)
    (folder / "main.py").write_text(SERVER)
    for name, value in {"PYTHONPATH": tmp_path, "SEEN": tmp_path / "seen", "http_proxy": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(probe, "write", lambda _folder: None)
    return tmp_path / "seen"


def gone(pid: int) -> bool:
    """Wait until a process has ended; nobody may have reaped it."""
    try:
        file = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended, _, _ = select.select([file], [], [], 60)
    os.close(file)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    return bool(ended)


def test_a_server_that_answers(seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "")
    probe.main()
    found = json.loads(seen.read_text())

    assert found["hub"] == "1"
    command, model, *options = found["arguments"]
    assert (command, Path(model).name) == ("serve", "model")
    said = dict(zip(options[::2], options[1::2], strict=False))
    assert said["--kv-cache-dtype"] == "turboquant_4bit_nc"
    assert probe.CHUNKS * int(said["--max-num-batched-tokens"]) < int(said["--max-model-len"]) - probe.NEW
    assert all(map(gone, found["pids"]))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_server(
    seen: Path, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAULT", fault)
    if fault in LIMITS:
        monkeypatch.setattr(probe, *LIMITS[fault])
    with pytest.raises(AssertionError) as failed:
        probe.main()

    assert str(failed.value) == FAULTS[fault]
    if fault == "dies":
        assert "ValueError: too little memory" in capsys.readouterr().err
    assert all(map(gone, json.loads(seen.read_text())["pids"]))


def test_the_overlay_declares_it_as_a_gpu_probe() -> None:
    from vpatch_overlays.turboquant_hybrid import overlay

    assert {one.name: one.gpu for one in overlay.probes} == {
        "turboquant_hybrid": False,
        "turboquant_hybrid_serve": True,
    }

"""The confinement of an image's scripts: they may compute and write below /tmp, and no more."""

from __future__ import annotations

import json
import re
from typing import Any

import docker
import pytest
from vpatch.image.engine import containers
from vpatch.net import size

from tests.image.standin import SITE, run_in
from tests.paths import ROOT
from tests.tiers import deep

LOOK = """
import json, os, site, subprocess, sys, tempfile
def tried(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__ + ": " + error.strerror
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
script = os.path.join(tempfile.gettempdir(), "run.sh")
with open(script, "w") as file:
    file.write("#!/bin/sh\\nexit 7\\n")
os.chmod(script, 0o755)
print(json.dumps({
    "capabilities": [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no new privileges": status["NoNewPrivs"],
    "root": tried(lambda: open("/new", "w")),
    "vllm": tried(lambda: open("/%s/vllm/new" % SITE, "w")),
    "owner": tried(lambda: os.chown(script, 1, 1)),
    "other user": tried(lambda: os.setuid(1)),
    "network": sorted(os.listdir("/sys/class/net")),
    "home": os.path.expanduser("~"),
    "runs": subprocess.run([script]).returncode,
    "arguments": sys.argv,
    "packages": os.environ["PYTHONUSERBASE"] == site.getuserbase(),
}))
"""
FORKS = """
import os, signal
made = []
try:
    while len(made) < 500:
        child = os.fork()
        if not child:
            signal.pause()
        made.append(child)
except OSError as error:
    print(len(made), error.strerror)
"""
WRITE = """
import os, sys
try:
    open(os.path.join("/", sys.argv[1], "x"), "w")
except OSError as error:
    print(error.strerror, os.path.exists(sys.argv[2]))
"""


def with_volume(image: str, engine: docker.DockerClient, path: str) -> str:
    """Make an image that declares a volume, as `VOLUME` in a Dockerfile does; return its ID."""
    container = engine.api.create_container(image, ["true"])["Id"]
    made = str(engine.api.commit(container, "try", "volumes", changes=f"VOLUME {path}")["Id"])
    engine.api.remove_container(container, force=True)
    return made


def volumes(engine: docker.DockerClient) -> list[str]:
    return [volume["Name"] for volume in engine.api.volumes()["Volumes"] or ()]


def test_confinement(base: str, engine: docker.DockerClient) -> None:
    ran = run_in(engine, base, f"SITE = {SITE!r}\n{LOOK}", "one", "two")
    assert (ran.code, ran.err) == (0, "")

    found: dict[str, Any] = json.loads(ran.out)
    assert found["capabilities"] == [0] * 5
    assert found["no new privileges"] == "1"
    assert found["root"] == found["vllm"] == "OSError: Read-only file system"
    assert found["owner"] == found["other user"] == "PermissionError: Operation not permitted"
    assert set(found["network"]) <= {"lo"}
    assert (found["home"], found["runs"]) == ("/tmp", 7)  # noqa: S108 - inside the image
    assert found["arguments"] == ["-c", "one", "two"]
    assert found["packages"]


FULL = "OSError: [Errno 28] No space left on device\n"
FILE = "open('/tmp/x', 'wb').write(b'x' * ({} << 20)); print(1)"
TRACEBACK = '"""Doc."""\nfrom __future__ import annotations\nassert __name__ == "__main__"\nraise AssertionError("x")'


@pytest.mark.parametrize(
    ("limit", "value", "volume", "code", "expected"),
    [
        ("PROCESSES", 40, "", FORKS, (0, r"[1-3]\d Resource temporarily unavailable\n", "")),
        deep("MEMORY", 100 << 20, "", "x = b'x' * (300 << 20)", (137, "", "")),
        ("MEMORY", 100 << 20, "", FILE.format(90), (137, "", "")),
        deep("SCRATCH", 10 << 20, "", FILE.format(11), (1, "", FULL)),
        *(deep("SCRATCH", 10 << 20, at, FILE.format(11), (1, "", FULL)) for at in ("/tmp", "/var/../tmp/")),  # noqa: S108
        # The answer is the last line.
        ("LOG", 1 << 20, "", "for _ in range(20_000): print('x' * 100)\nprint('end')", (0, r"(x*\n){,19999}end\n", "")),
        deep("LOG", 1 << 20, "", TRACEBACK, (1, "", 'File "<string>", line 4, in <module>\nAssertionError: x\n')),
    ],
)
def test_limits_of_a_script(
    base: str,
    engine: docker.DockerClient,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
    volume: str,
    code: str,
    expected: tuple[int, str, str],
) -> None:
    """Those of memory hold for files below /tmp, too, those of files also where the image declares a volume."""
    monkeypatch.setattr(containers, limit, value)
    ran = run_in(engine, with_volume(base, engine, volume) if volume else base, code)

    assert ran.code == expected[0]
    assert re.fullmatch(expected[1], ran.out)
    assert ran.err.endswith(expected[2])


@pytest.mark.parametrize(
    "volume",
    ["/data/../data", *map(deep, ("/data", "data", f"/{SITE}", "/tmp/x"))],  # noqa: S108
)
def test_volumes_of_an_image_are_read_only(base: str, engine: docker.DockerClient, volume: str) -> None:
    """An engine mounts a folder for each, with the image's content, writable without a limit."""
    declaring = with_volume(base, engine, volume)
    before = volumes(engine)
    ran = run_in(engine, declaring, WRITE, volume, f"/{SITE}/vllm/__init__.py")

    assert (ran.code, ran.out, ran.err) == (0, "Read-only file system True\n", "")
    assert volumes(engine) == before


def test_the_documents_state_the_limits() -> None:
    text = (ROOT / "docs/images.md").read_text()

    for limit in (containers.MEMORY, containers.SERVER_MEMORY, containers.SCRATCH, containers.LOG):
        assert size(limit) in text
    assert f"{containers.PROCESSES:,} processes and threads" in text

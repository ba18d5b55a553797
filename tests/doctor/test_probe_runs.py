"""Scripts of probes on an interpreter: what they see, and that none outlives the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from vpatch.doctor.probes import AT_ONCE, run
from vpatch.errors import Failure
from vpatch.script import Ending

from tests.conftest import contents_of
from tests.doctor.conftest import alone, put

__all__ = ["alone"]

FAILS = "raise AssertionError('wrong')"
SEEN = """
import os, sys, tempfile
here = os.getcwd()
open("file", "w").write("")
assert [os.environ["HOME"], tempfile.gettempdir(), os.path.expanduser("~")] == [here] * 3
assert not {name for name in os.environ if name.startswith(("VLLM_LOGGING", "CUDA_", "HTTP"))}
assert sys.dont_write_bytecode
import beside
raise AssertionError(here)
"""
# A child of its own that keeps a pipe open.
LEFT = "import os, signal\nif os.fork() == 0:\n    signal.pause()\n"


def ran(*scripts: str, limit_s: float = 60) -> list[Ending]:
    return run(Path(sys.executable), scripts, lambda _: None, limit_s)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, alone: Path) -> Iterator[None]:
    """No test leaves a temporary file."""
    yield
    assert contents_of(tmp_path / "temporary") == {}


def test_endings_in_order() -> None:
    """Much output is read at its end."""
    much = f"import sys\nsys.stderr.write('x' * (3 << 20) + '\\n')\n{FAILS}"
    found = ran("", FAILS, "import nothing_like_torch", "raise ValueError('no')", much)

    assert found == [
        Ending(ok=True),
        Ending(ok=False, because="wrong", asserted=True),
        Ending(ok=None, because="the environment lacks nothing_like_torch"),
        Ending(ok=False, because="ValueError: no"),
        Ending(ok=False, because="wrong", asserted=True),
    ]


def test_an_interpreter_that_is_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `./.venv`: a script runs in a folder of its own."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)

    assert run(Path("bin/python"), [FAILS], lambda _: None, 60) == [Ending(ok=False, because="wrong", asserted=True)]
    (tmp_path / "bin/python").unlink()
    with pytest.raises(Failure, match=r"cannot run a probe: bin/python: no such file"):
        run(Path("bin/python"), [FAILS], lambda _: None, 60)


def test_what_a_script_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own folder as home, the search path of the shell, no setting of vLLM; and no bytecode is written."""
    put(tmp_path / "modules/beside.py", "")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("HTTPS_PROXY", "http://localhost:1")
    one, other = ran(SEEN, SEEN)

    folders = {Path(one.because), Path(other.because)}
    assert len(folders) == 2
    assert {folder.parent.parent for folder in folders} == {tmp_path / "temporary"}
    assert contents_of(tmp_path / "modules").keys() == {"beside.py"}


def test_no_child_of_a_script_is_left(tmp_path: Path) -> None:
    """Of one that hangs, that is killed, or that leaves a child."""
    os.mkfifo(place := str(tmp_path / "pipe"))
    reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
    held = f"file = open({place!r}, 'w')\n{LEFT}"
    killed = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"
    found = ran(killed, held, "import sys\nsys.exit(3)", f"{held}signal.pause()\n", limit_s=2)

    assert [one.because for one in found] == [
        "it was ended by SIGSEGV",
        "",
        "it ended with 3: ",
        "it did not end within 2 s",
    ]
    os.set_blocking(reader, True)
    assert os.read(reader, 100) == b""  # its end: nobody holds the other one
    os.close(reader)


def test_at_most_two_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"import os\nfd = os.open({str(log)!r}, os.O_APPEND | os.O_CREAT | os.O_WRONLY)\n"
    script += "os.write(fd, b'+')\nimport json, argparse\nos.write(fd, b'-')\n"
    assert all(one.ok for one in ran(*[script] * 4))

    running = 0
    for sign in log.read_text():
        running += 1 if sign == "+" else -1
        assert running <= AT_ONCE


def test_no_interpreter(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"cannot run a probe: .*: no such file"):
        run(tmp_path / "python", ["", "", ""], lambda _: None, 60)

"""`vpatch run`: a command with overlays, which starts only if all is well, and is then the command alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from vpatch.run.launch import _plugins

from tests.conftest import Process, Program, untouched
from tests.forks import start
from tests.needs import need, root_only
from tests.run.conftest import Installed

FILE = "vllm/engine/arg_utils.py"
ONE = ("--overlay", "turboquant-skip-list")  # planned quickly
WHERE = "import importlib.util as u, os; print(u.find_spec('vllm').origin, os.environ['VPATCH_RUN'], os.getpid())"
SPAWNED = """
import multiprocessing, importlib.util
def where(_):
    return importlib.util.find_spec("vllm").origin
if __name__ == "__main__":
    for method in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(pool.map(where, [0])[0])
"""


def test_the_command_imports_the_farm_and_is_this_process(installed: Installed, child: Process) -> None:
    with tempfile.TemporaryFile() as out, untouched(installed.root):
        program = start(
            "run", "--cache", installed.cache, *ONE, "--", installed.python, "-c", WHERE, streams=(0, out.fileno(), 2)
        )
        assert os.waitpid(program, 0)[1] == 0
        out.seek(0)
        origin, digest, process = out.read().decode().split()

    assert int(process) == program
    assert Path(origin) == installed.cache / origin.split("/")[-3] / "vllm/__init__.py"
    assert re.fullmatch("[0-9a-f]{64}", digest)
    expected = (*ONE, "--expect", digest[:12])
    again = child("run", "--cache", installed.cache, *expected, "--", installed.python, "-c", "exit(7)")
    assert (again.code, again.out) == (7, "")
    assert f"vLLM 0.20.2 in {installed.root}\nRunning with 1 overlay: turboquant-skip-list" in again.err
    assert f"(digest {digest[:12]})" in " ".join(again.err.split())


def test_so_do_the_processes_that_it_starts(installed: Installed, child: Process, tmp_path: Path) -> None:
    (tmp_path / "spawned.py").write_text(SPAWNED)
    ran = child("run", "-q", "--cache", installed.cache, *ONE, "--", installed.python, tmp_path / "spawned.py")

    (origin,) = {*ran.out.split()}
    assert origin.startswith(str(installed.cache))
    assert (len(ran.out.split()), ran.err) == (3, "")


@contextmanager
def waiting(installed: Installed, code: str) -> Iterator[int]:
    """Run a program under `vpatch run` until the block ends, once it has said that it is up."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as said, os.fdopen(reading, "rb") as told:
        words = (installed.python, "-c", f"{code}\nprint('up', flush=True); import signal; signal.pause()")
        program = start(
            "run", "-q", "--cache", installed.cache, *ONE, "--", *words, streams=(0, writing, said.fileno())
        )
        os.close(writing)  # or the end of the program would not be the end of the pipe
        try:
            assert told.readline() == b"up\n"
            yield program
        finally:
            os.kill(program, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]) == -signal.SIGTERM


def test_a_command_is_that_process_and_proves_what_it_runs(installed: Installed, vpatch: Program) -> None:
    """A signal ends it. Here without vLLM, which would load the plugin: see tests/run/test_receipt.py."""
    with waiting(installed, "import vpatch_receipt; vpatch_receipt.register()") as program:
        assert Path(f"/proc/{program}/exe").resolve() == installed.python.resolve()
        listed = vpatch("ps", "--json").json["processes"]
        proof = vpatch("verify", "--pid", str(program))

    (one,) = (one for one in listed if one["pid"] == program)
    assert one["digest"] == one["asked"]
    assert (one["overlays"], proof.code) == (["turboquant-skip-list"], 0)


def test_apply_beside_a_running_server_breaks_nothing(own: Installed, vpatch: Program) -> None:
    """The same overlays: what the server runs is then what is installed, too. Others are other code."""
    register = "import vpatch_receipt; vpatch_receipt.register()"
    with waiting(own, register) as program:
        assert vpatch("apply", *ONE, own.root).code == 0
        proof = vpatch("verify", "--pid", str(program))
        farm = Path(f"/proc/{program}/environ").read_bytes().partition(b"PYTHONPATH=")[2].partition(b"\0")[0].decode()
        later = subprocess.run([own.python, "-c", register], env={"PYTHONPATH": farm}, capture_output=True, check=False)
        assert vpatch("apply", "--overlay", "hybrid-mtp-prefix", own.root).code == 0
        other = vpatch("verify", "--pid", str(program))

    assert (proof.code, later.returncode) == (0, 0), proof.err
    assert other.code == 1
    assert "RECORD: it has changed" in other.err


SHOWS = "import os, sys; e = os.environ; print(e['PYTHONPATH'], e.get('VLLM_PLUGINS'), sys.argv[1:])"


def shown(
    installed: Installed, child: Process, *words: str | Path, options: tuple[str | Path, ...] = (), **env: str
) -> tuple[list[str], list[str]]:
    """Run a command; return the entries of its PYTHONPATH, and what else it shows."""
    command = ("run", "-q", "--cache", installed.cache, *ONE, *options, "--", installed.python, "-c", SHOWS, *words)
    ran = child(*command, env=env)
    assert (ran.code, ran.err) == (0, "")
    path, *rest = ran.out.strip().split(" ", 2)
    return path.split(":"), rest


def test_the_environment_of_the_command(installed: Installed, child: Process, tmp_path: Path) -> None:
    """A run in a run begins at the installed vLLM; entries that nobody can read stay, and options are the command's."""
    long = "x" * 5000
    (farm, *others), rest = shown(installed, child, "--with", "-q", PYTHONPATH=f"/elsewhere::{long}")
    assert (others, rest) == (["/elsewhere", "", long], ["None", "['--with', '-q']"])  # "": the current folder
    assert shown(installed, child, PYTHONPATH=f"{farm}:/elsewhere")[0] == [farm, "/elsewhere"]
    (tmp_path / "link").symlink_to(tmp_path / "real")
    linked, _ = shown(installed, child, options=("--cache", tmp_path / "link/run"))
    assert linked[0].startswith(f"{tmp_path}/real/run/"), "the path of a farm has no links"


@pytest.mark.parametrize(
    ("named", "all_"),
    [
        ("", "vpatch_receipt"),
        ("mine", "mine,vpatch_receipt"),
        ("mine, vpatch_receipt", "mine, vpatch_receipt,vpatch_receipt"),  # vLLM strips nothing
        ("vpatch_receipt,mine", "vpatch_receipt,mine"),
    ],
)
def test_the_receipt_is_among_the_plugins_that_are_loaded(
    named: str, all_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", named)

    assert {"VLLM_PLUGINS": named, **_plugins()}["VLLM_PLUGINS"] == all_


def test_any_umask_will_do(installed: Installed, child: Process, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for _ in range(2):
            assert child("run", "--cache", tmp_path / "new/run", *ONE, "--", installed.python, "-c", "").code == 0
    finally:
        os.umask(before)


def test_files_of_the_current_folder_are_not_run(own: Installed, child: Process, tmp_path: Path) -> None:
    for name in ("py_compile.py", "traceback.py", "enum.py"):
        Path(name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "empty.py").touch()

    assert child("run", "--cache", own.cache, *ONE, "--", own.python, tmp_path / "empty.py").code == 0
    assert not (tmp_path / "ran").exists()


def test_the_selection_is_that_of_apply_and_counts_what_it_did(own: Installed, child: Process) -> None:
    words = ("run", "--cache", own.cache, *ONE, "--", own.python, "-c", "import os; print(os.environ['VPATCH_RUN'])")
    before = child(*words)
    assert child("apply", "--overlay", "hybrid-mtp-prefix", own.root).code == 0
    after = child(*words)

    assert "Running with 1 overlay: turboquant-skip-list (digest " in before.err
    assert after.out != before.out
    assert "Running with 2 overlays: hybrid-mtp-prefix and turboquant-skip-list" in after.err


def test_farms_are_in_the_users_cache(installed: Installed, child: Process, tmp_path: Path) -> None:
    ran = child("run", "-q", *ONE, "--", installed.python, "-c", WHERE, env={"XDG_CACHE_HOME": str(tmp_path)})

    assert ran.out.startswith(f"{tmp_path}/vpatch/run/")


def test_the_command_does_not_inherit_ignored_signals(installed: Installed, child: Process) -> None:
    words = ("--python", installed.python, "--", "grep", "SigIgn", "/proc/self/status")
    ran = child("run", "-q", "--cache", installed.cache, *ONE, *words)

    assert int(ran.out.split()[1], 16) & 1 << signal.SIGPIPE - 1 == 0


@pytest.mark.deep
@root_only
@pytest.mark.parametrize("cache", ["warm", "cold", "noexec"])
def test_read_only_files_and_no_capabilities(cache: str, own: Installed, process: Process, tmp_path: Path) -> None:
    """vLLM's files are mounted read-only; so is a cache that has the farm, or none can be made in it."""
    need("unshare", "setpriv")
    options = ("run", "-q", "--cache")
    code = ("--", own.python, "-c", "import importlib.util; print(importlib.util.find_spec('vllm').origin)")
    if cache == "warm":
        assert process(*options, own.cache, *code).code == 0
    memory = tmp_path / "memory"
    folder = {"warm": own.cache, "cold": own.root / "cache", "noexec": memory / "cache"}[cache]
    mounts = [f"mkdir {memory}", f"mount -t tmpfs -o noexec,nosuid,nodev none {memory}", f"chmod 700 {memory}"]
    for place in (own.root, *([own.cache] if cache == "warm" else [])):
        mounts += [f"mount --bind {place} {place}", f"mount -o remount,ro,bind {place}"]
    shell = " && ".join((*mounts, 'exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"'))
    command = ("unshare", "-m", "sh", "-c", shell, "sh", sys.executable, "-m", "vpatch", *options, folder, *code)
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)

    if cache == "cold":
        assert (ran.returncode, ran.stdout) == (1, "")
        assert f"cannot make the farm: {folder}: read-only file system; name a folder" in ran.stderr
    else:
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.startswith(str(folder))

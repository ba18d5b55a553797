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
from select import select

import pytest
from vpatch.farm import absence

from tests.conftest import Process, Program, untouched
from tests.farm.conftest import Installed
from tests.forks import start
from tests.needs import need, root_only
from tests.processes import PATIENCE
from tests.tiers import deep

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
            "run", "--cache", installed.cache, "--", installed.python, "-c", WHERE, streams=(0, out.fileno(), 2)
        )
        assert os.waitpid(program, 0)[1] == 0
        out.seek(0)
        origin, digest, process = out.read().decode().split()

    assert int(process) == program
    assert Path(origin) == installed.cache / origin.split("/")[-3] / "vllm/__init__.py"
    assert re.fullmatch("[0-9a-f]{64}", digest)
    again = child("run", "--cache", installed.cache, "--expect", digest[:12], "--", installed.python, "-c", "print(1)")
    assert (again.code, again.out) == (0, "1\n")
    assert re.search(rf"vLLM 0\.20\.2 in {installed.root}\n.*Running with 9 overlays: ct-fp8-lm-head,", again.err)
    assert f"(digest {digest[:12]})" in " ".join(again.err.split())


def test_so_do_the_processes_that_it_starts(installed: Installed, child: Process, tmp_path: Path) -> None:
    (tmp_path / "spawned.py").write_text(SPAWNED)
    ran = child("run", "-q", "--cache", installed.cache, "--", installed.python, tmp_path / "spawned.py")

    (origin,) = {*ran.out.split()}
    assert origin.startswith(str(installed.cache))
    assert (len(ran.out.split()), ran.err) == (3, "")


@pytest.mark.parametrize(("code", "status"), [("import sys; sys.exit(7)", 7), deep("1/0", 1)])
def test_the_exit_code_is_the_commands(code: str, status: int, installed: Installed, child: Process) -> None:
    assert child("run", "--cache", installed.cache, "--", installed.python, "-c", code).code == status


@contextmanager
def waiting(installed: Installed, code: str) -> Iterator[int]:
    """Run a program under `vpatch run` until the block ends, once it has said that it is up."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as said, os.fdopen(reading, "rb") as told:
        words = (installed.python, "-c", f"{code}\nprint('up', flush=True); import signal; signal.pause()")
        program = start("run", "-q", "--cache", installed.cache, "--", *words, streams=(0, writing, said.fileno()))
        os.close(writing)  # or the end of the program would not be the end of the pipe
        try:
            assert told.readline() == b"up\n"
            yield program
        finally:
            os.kill(program, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]) == -signal.SIGTERM


def test_a_signal_ends_the_command(installed: Installed) -> None:
    with waiting(installed, "") as program:
        assert Path(f"/proc/{program}/exe").resolve() == installed.python.resolve()


def test_a_command_proves_what_it_runs(installed: Installed, vpatch: Program) -> None:
    """Here without vLLM, which would load the plugin: see tests/farm/test_receipt.py."""
    with waiting(installed, "import vpatch_receipt; vpatch_receipt.register()") as program:
        listed = vpatch("ps", "--json").json["processes"]
        proof = vpatch("verify", "--pid", str(program))

    (one,) = (one for one in listed if one["pid"] == program)
    assert one["digest"] == one["asked"]
    assert (len(one["overlays"]), proof.code) == (9, 0)


@pytest.mark.deep
def test_apply_beside_a_running_server_breaks_nothing(own: Installed, vpatch: Program, child: Process) -> None:
    """The same overlays: what the server runs is then what is installed, too. Others are other code."""
    register = "import vpatch_receipt; vpatch_receipt.register()"
    with waiting(own, register) as program:
        assert vpatch("apply", own.root).code == 0
        proof = vpatch("verify", "--pid", str(program))
        farm = Path(f"/proc/{program}/environ").read_bytes().partition(b"PYTHONPATH=")[2].partition(b"\0")[0].decode()
        later = subprocess.run([own.python, "-c", register], env={"PYTHONPATH": farm}, capture_output=True, check=False)
        assert vpatch("apply", "--overlay", "turboquant-tiles", own.root).code == 0
        other = vpatch("verify", "--pid", str(program))

    assert (proof.code, later.returncode) == (0, 0), proof.err
    assert other.code == 1
    assert "RECORD: it has changed" in other.err


@pytest.mark.deep
def test_a_command_that_loses_the_farm_is_found(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here with a file that is mapped as vLLM's extension, and soon; tests/farm/test_absence.py has more."""
    monkeypatch.setattr(absence, "BETWEEN_S", 0.02)
    monkeypatch.setattr(absence, "LOOKS", 9999)
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/_C.abi3.so").write_text("compiled")
    maps = f"import mmap, signal\nfile = open({str(tmp_path / 'vllm/_C.abi3.so')!r}, 'rb')\n"
    maps += "mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\nsignal.pause()\n"
    (tmp_path / "start.py").write_text(
        f"import os, sys\nos.execv(sys.executable, [sys.executable, '-I', '-c', {maps!r}])\n"
    )
    reading, writing = os.pipe()
    with os.fdopen(reading) as told:
        words = (installed.python, tmp_path / "start.py")
        program = start("run", "-q", "--cache", installed.cache, "--", *words, streams=(0, 1, writing))
        os.close(writing)
        line = told.readline() if select([reading], [], [], PATIENCE)[0] else ""
        os.kill(program, signal.SIGTERM)
        os.waitpid(program, 0)

    assert re.match(rf"vpatch: process {program} runs vLLM and has no receipt \d+ seconds after its start: ", line)


def test_a_run_in_a_run_begins_at_the_installed_vllm(installed: Installed, child: Process) -> None:
    def path(before: str) -> list[str]:
        words = ("--", installed.python, "-c", "import os; print(os.environ['PYTHONPATH'])")
        ran = child("run", "-q", "--cache", installed.cache, *words, env={"PYTHONPATH": before})
        return ran.out.strip().split(":")

    farm, *others = path("/elsewhere:")

    assert others == ["/elsewhere", ""]  # the current folder
    assert path(f"{farm}:/elsewhere") == [farm, "/elsewhere"]


@pytest.mark.deep
def test_ray_would_call_the_hook_in_the_farm(installed: Installed, child: Process) -> None:
    code = "import os, vpatch_ray as v; h = v.hook({'env_vars': {'A': 'b'}}); "
    code += "print(os.environ['RAY_RUNTIME_ENV_HOOK'], h['env_vars'])"
    before = {"RAY_RUNTIME_ENV_HOOK": "builtins.dict", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    words = ("--", installed.python, "-c", code)
    ran = child("run", "-q", "--cache", installed.cache, *words, env=before)

    assert re.match(rf"vpatch_ray\.hook {{'A': 'b', 'PYTHONPATH': '{installed.cache}/\w+:", ran.out), ran.err


@pytest.mark.deep
@pytest.mark.parametrize("umask", [0o002, deep(0o000)])
def test_any_umask_will_do(umask: int, installed: Installed, child: Process, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        for _ in range(2):
            assert child("run", "--cache", tmp_path / "new/run", *ONE, "--", installed.python, "-c", "").code == 0
    finally:
        os.umask(before)


@pytest.mark.deep
def test_the_path_of_a_farm_has_no_links(installed: Installed, child: Process, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    ran = child("run", "-q", "--cache", tmp_path / "link/run", *ONE, "--", installed.python, "-c", WHERE)

    assert ran.out.startswith(f"{tmp_path}/real/run/")


@pytest.mark.deep
def test_files_of_the_current_folder_are_not_run(own: Installed, child: Process, tmp_path: Path) -> None:
    for name in ("py_compile.py", "traceback.py", "enum.py"):
        Path(name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "empty.py").touch()

    assert child("run", "--cache", own.cache, *ONE, "--", own.python, tmp_path / "empty.py").code == 0
    assert not (tmp_path / "ran").exists()


@pytest.mark.deep
def test_what_apply_did_before_is_in_the_digest(own: Installed, child: Process) -> None:
    words = ("run", "--cache", own.cache, *ONE)
    code = ("--", own.python, "-c", "import os; print(os.environ['VPATCH_RUN'])")
    before = child(*words, *code).out
    assert child("apply", "--overlay", "ct-fp8-lm-head", own.root).code == 0
    after = child(*words, *code)

    assert after.out != before
    assert "Running with 2 overlays: ct-fp8-lm-head and turboquant-skip-list" in after.err


@pytest.mark.parametrize(
    ("named", "all_"),
    [
        deep(None, None),
        deep("", "vpatch_receipt"),
        ("mine, vpatch_receipt", "mine, vpatch_receipt,vpatch_receipt"),  # vLLM strips nothing
        deep("vpatch_receipt,mine", "vpatch_receipt,mine"),
    ],
)
def test_the_receipt_is_among_the_plugins_that_are_loaded(
    named: str | None, all_: str | None, installed: Installed, child: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    code = "import os; print(os.environ.get('VLLM_PLUGINS'))"
    env = None if named is None else {"VLLM_PLUGINS": named}
    ran = child("run", "-q", "--cache", installed.cache, "--", installed.python, "-c", code, env=env)

    assert ran.out == f"{all_}\n"


def test_options_behind_the_command_are_its_own(installed: Installed, child: Process) -> None:
    ran = child(
        "run", "-q", "--cache", installed.cache, installed.python, "-c", "import sys; print(sys.argv)", "--with", "-q"
    )

    assert ran.out == "['-c', '--with', '-q']\n"


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", deep("HOME")])
def test_farms_are_in_the_users_cache(
    variable: str, installed: Installed, child: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    ran = child("run", "-q", *ONE, "--", installed.python, "-c", WHERE, env={variable: str(tmp_path)})

    assert ran.out.startswith(f"{tmp_path}/{'.cache/' if variable == 'HOME' else ''}vpatch/run/")


@pytest.mark.deep
def test_the_command_does_not_inherit_ignored_signals(installed: Installed, child: Process) -> None:
    ran = child(
        "run",
        "-q",
        "--cache",
        installed.cache,
        "--python",
        installed.python,
        "--",
        "grep",
        "SigIgn",
        "/proc/self/status",
    )

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

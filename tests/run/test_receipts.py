"""What running processes claim, and what of it is so: `vpatch ps` and `vpatch verify --pid`, on real processes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import vpatch.processes
from vpatch.guest.vpatch_receipt import MANIFEST

from tests.cli.test_bad_system import humble
from tests.conftest import Program
from tests.forks import output
from tests.needs import need, root_only
from tests.run.standin import ADDED, APPLIED, CHANGED, LOAD, MAPS, WAITS, WATCHING, Farm, started
from tests.tree.conftest import NOBODY

SHELL = ("vllm", "-c", "echo ready; read nothing")  # has vLLM's name, and is none


def of(number: int, program: Program) -> dict[str, Any] | None:
    """Return what `vpatch ps` says of a process; other servers may run on this machine."""
    ran = program("ps", "--json")
    assert (ran.code, ran.err) == (0, "")
    return next((one for one in ran.json["processes"] if one["pid"] == number), None)


def test_a_process_proves_its_digest(farm: Farm, vpatch: Program) -> None:
    with farm.serving() as server:
        found, lines = of(server, vpatch), vpatch("ps")
        proof = vpatch("verify", "--pid", str(server))
        as_json = vpatch("verify", "--pid", str(server), "--json").json

    about = {"pid": server, "overlays": ["one", "two"], "asked": farm.content.digest}
    assert found is not None
    assert found == {**about, "digest": farm.content.digest, "command": found["command"], "checked": None}
    assert found["command"].startswith("python")
    (line,) = (line for line in lines.out.splitlines() if line.split()[0] == str(server))
    assert line.split()[1] == farm.content.digest[:12]
    assert line.endswith("  claims 2 overlays: one and two")
    claim = f"process {server} claims 2 overlays: one and two (digest {farm.content.digest[:12]})"
    said = f"Verified: {claim}, and its files are as it claims.\n"
    assert (proof.code, proof.out, proof.err) == (0, "", said)
    assert as_json["processes"] == [found | {"checked": True}]


def test_a_process_without_a_receipt(vpatch: Program, farm: Farm) -> None:
    """It is named for what its environment asks for, which proves nothing, nor does a manifest that it has open."""
    for asked in (None, "0" * 64):
        env = {**os.environ, "VPATCH_RUN": asked} if asked else None
        with (
            (farm.path / MANIFEST).open() as held,
            started(*SHELL, executable="/bin/sh", env=env, opened=[held.fileno()]) as server,
        ):
            found, lines = of(server, vpatch), vpatch("ps")
            proof = vpatch("verify", "--pid", str(server))

        assert found is not None
        assert (found["digest"], found["overlays"], found["asked"]) == (None, [], asked)
        (line,) = (line for line in lines.out.splitlines() if line.split()[0] == str(server))
        assert ("started for 000000000000" in line, "no receipt" in line) == (bool(asked), True)
        assert " without a receipt." in lines.err
        assert proof.code == 1
        more = "; it was started for 000000000000" if asked else ""
        told = f"no receipt: process {server}: it claims nothing of what it runs{more}\n"
        assert proof.err == f"{told}Not verified: 1 problem.\n"


def test_what_is_a_vllm(vpatch: Program, tmp_path: Path) -> None:
    """A program may import vLLM under any name: what it has mapped counts. An environment named vllm is no vLLM."""
    commands: dict[str, tuple[tuple[str, ...], bool]] = {"waits": ((sys.executable, "-c", WAITS, "vllm"), False)}
    for file, shown in (("site-packages/vllm/_C.abi3.so", True), ("vllm/lib/python3.11/torch/_C.abi3.so", False)):
        extension = tmp_path / file
        extension.parent.mkdir(parents=True)
        extension.write_bytes(b"compiled")
        commands[file] = (sys.executable, "-c", MAPS.format(file=str(extension))), shown
    for command, shown in commands.values():
        with started(*command) as program:
            assert bool(of(program, vpatch)) == shown


def replace(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"x = 1\n")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)  # nobody writes to it


HARM: dict[str, tuple[Callable[[Farm], Path], Callable[[Path], object], str]] = {
    "of the farm": (lambda farm: farm.path / CHANGED, replace, "it has changed"),
    "that it replaces": (lambda farm: farm.root / CHANGED, replace, "it has changed"),
    "that apply changed": (lambda farm: farm.root / APPLIED, replace, "it has changed"),
    "that is gone": (lambda farm: farm.path / ADDED, Path.unlink, "no such file or directory"),
    "that is a pipe": (lambda farm: farm.path / ADDED, pipe, "it is no file of code"),
}


def test_files_that_change_while_it_runs(farm: Farm, vpatch: Program) -> None:
    """One after another, each put back; then the farm is removed, and the receipt is still read."""
    with farm.serving(VPATCH_RUN="") as server:
        for name, (of_farm, harm, why) in HARM.items():
            file = of_farm(farm)
            before = file.read_bytes()
            harm(file)
            proof = vpatch("verify", "--pid", str(server))
            assert proof.code == 1, name
            assert proof.err.startswith(f"changed: {file}: {why}, and process {server} was started with it\n")
            file.unlink(missing_ok=True)
            file.write_bytes(before)
        whole = vpatch("verify", "--pid", str(server))
        shutil.rmtree(farm.path)
        found, gone = of(server, vpatch), vpatch("verify", "--pid", str(server))

    assert whole.code == 0
    # As of an exported farm, or of a process that has set its title.
    assert "note: Its environment does not name a digest, or its title has overwritten it.\n" in whole.err
    assert (found and found["digest"], gone.code) == (farm.content.digest, 1)
    why = "the farm that it was started with was removed or replaced"
    assert gone.err.startswith(f"no farm: process {server}: {why}\n")


def test_a_process_that_was_started_for_another_digest(farm: Farm, vpatch: Program) -> None:
    before = f"import os\nos.environ['VPATCH_RUN'] = {farm.content.digest!r}\n"
    with farm.serving(before, VPATCH_RUN="0" * 64) as server:
        proof = vpatch("verify", "--pid", str(server))

    assert proof.code == 1
    finds = f"started for 000000000000, and finds {farm.content.digest[:12]}"
    assert proof.err.startswith(f"another digest: process {server}: {finds}\n")


@pytest.mark.deep
@root_only
def test_a_process_of_a_container(farm: Farm, vpatch: Program, tmp_path: Path) -> None:
    """Its farm lies in a file system that only it has mounted."""
    need("unshare")
    aside, name = tmp_path / "aside", farm.path.name
    farm.path.rename(aside)
    mounts = f"mount -t tmpfs none {farm.path.parent} && cp -a {aside} {farm.path.parent}/{name}"
    command = ("unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh", sys.executable, "-c", LOAD + WAITS)
    with started(*command, env=farm.environment()) as server:
        assert not farm.path.exists()
        found = of(server, vpatch)
        proof = vpatch("verify", "--pid", str(server))
        replace(Path(f"/proc/{server}/root{farm.path}", CHANGED))
        spoiled = vpatch("verify", "--pid", str(server))

    assert found is not None
    assert found["digest"] == farm.content.digest
    assert (proof.code, spoiled.code) == (0, 1)
    assert spoiled.err.startswith(f"changed: /proc/{server}/root{farm.path}/{CHANGED}: it has changed")


@root_only
def test_processes_of_other_users_are_named() -> None:
    with started(*SHELL, executable="/bin/sh", user=NOBODY) as one:
        alone = output("ps", first=lambda: humble(WATCHING))
        with started(*SHELL, executable="/bin/sh", user=NOBODY) as two:
            both = output("ps", first=lambda: humble(WATCHING))
            proof = output("verify", "--pid", str(two), first=lambda: humble(WATCHING))

    shown = "vllm -c echo ready; read nothing"
    assert (alone[0], both[0]) == (0, 0)
    assert f"{one} ({shown})" in alone[2]
    assert f"{two} ({shown})" in both[2]
    why = f"permission denied: this root has no CAP_SYS_PTRACE, as in most containers; run vpatch as user {NOBODY}, or "
    assert f": {why}add it.\n" in both[2]
    assert proof == (1, "", f"cannot read: process {two}: {why}add it\n")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc without processes, but this one."""
    monkeypatch.setattr(vpatch.processes, "PROC", tmp_path)
    (tmp_path / "self").mkdir()
    (tmp_path / "self/stat").touch()
    (tmp_path / str(os.getpid())).mkdir()
    return tmp_path


def test_no_process(proc: Path, vpatch: Program) -> None:
    """None at all, those that end meanwhile, an id that none has; and a system without /proc."""
    none = "No vLLM process runs on this machine.\n"
    ran = vpatch("ps")
    assert (ran.code, ran.out, ran.err) == (0, "", none)
    (proc / "7").mkdir()  # it has no command line any more
    (proc / "8").mkdir()
    (proc / "8/cmdline").write_bytes(b"vllm\0serve\0")  # and no descriptors
    assert vpatch("ps").err == none
    assert vpatch("verify", "--pid", "8").code == 2
    assert vpatch("verify", "--pid", str(1 << 30)).err == f"no such process: {1 << 30}: none has this id\n"
    (proc / "self/stat").unlink()
    for words in (("ps",), ("verify", "--pid", "7")):
        ran = vpatch(*words)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.endswith("processes can be examined on Linux only\n")


@pytest.mark.parametrize("words", ["TREE", "--python PY", "--overlay turboquant-mtp", "--with turboquant-tiles"])
def test_a_process_and_a_tree_are_two_things(words: str, vpatch: Program, tmp_path: Path) -> None:
    given = words.replace("TREE", str(tmp_path)).replace("PY", sys.executable).split()
    ran = vpatch("verify", "--pid", str(os.getpid()), *given)

    assert (ran.code, ran.out) == (2, "")
    assert "--pid names a process: leave out TREE, --python and overlays" in ran.err

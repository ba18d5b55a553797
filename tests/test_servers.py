"""Which processes hold a receipt, and which only have something that looks like one; real processes hold it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vpatch.guest.vpatch_receipt import SCHEMA, combined
from vpatch.processes import process
from vpatch.processes.servers import Receipt, identity, receipt_of, server, servers, wrong

from tests.cli.test_bad_system import humble
from tests.forks import output
from tests.needs import root_only
from tests.run.standin import started
from tests.tree.conftest import NOBODY

RELEASE = {"info": "", "modules": ""}  # of a vLLM without a dist-info

# What a process does before it holds a claim: `claim` is what it says, `write` puts it into memory and seals that.
HOLDS = """
import fcntl, json, os, sys
from vpatch.guest.vpatch_claim import memory, started
def fresh():
    told = json.loads(sys.argv[1])
    return {"schema": 1, "pid": os.getpid(), "started": started(), "farm": None, "manifest": told}
claim = fresh()
def write(held, text=None, seals=15):
    os.write(held, (text or json.dumps(claim)).encode())
    seals and fcntl.fcntl(held, 1033, seals)
    return held
"""
NOBODYS = f"os.setgroups([])\nos.setresgid(*[{NOBODY}] * 3)\nos.setresuid(*[{NOBODY}] * 3)\nwrite(memory())"
ENDS = "\nprint('ready', flush=True)\nsys.stdin.read()\n"


def manifest(root: str = "/", **applied: str) -> dict[str, Any]:
    about = {"schema": SCHEMA, "digest": combined(applied, RELEASE), "overlays": ["one"], "root": root, "farm": False}
    return {**about, "release": RELEASE, "files": {}, "replaced": {}, "applied": applied}


@contextmanager
def holding(code: str, told: Any = None, *arguments: str) -> Iterator[int]:
    """Run a process that holds what the code makes; yield its id."""
    command = (sys.executable, "-c", f"{HOLDS}{code}{ENDS}", json.dumps(told or manifest()), *arguments)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with started(*command, env=env) as number:
        yield number


def test_a_receipt() -> None:
    with holding("write(memory())") as number:
        found = server(number)

        assert found.receipt == Receipt(manifest(), None)
        assert (found.receipt.digest, found.receipt.overlays, found.receipt.root) == (
            combined({}, RELEASE),
            ("one",),
            "/",
        )
        assert number in {one.process.id for one in servers()}
        assert wrong(found) == []


# A claim about another process, or one that anybody could have made.
NO_RECEIPTS = {
    "the manifest is open": (
        "path = sys.argv[2] + '/vpatch.json'\nwrite(os.open(path, os.O_RDWR | os.O_CREAT), sys.argv[1], seals=0)"
    ),
    "a file of that name": (
        "path = sys.argv[2] + '/memfd:vpatch-receipt'\nwrite(os.open(path, os.O_RDWR | os.O_CREAT), seals=0)\n"
        "os.unlink(path)"
    ),
    "memory that may change": "write(memory(), seals=0)",
    "memory that may grow": "write(memory(), seals=1 | 2 | 8)",
    "another process": "claim['pid'] += 1\nwrite(memory())",
    "an earlier process of that number": "claim['started'] -= 1\nwrite(memory())",
    "another form": "claim['schema'] = 2\nwrite(memory())",
    "no claim": "write(memory(), '[1]')",
    "no object": "write(memory(), '7')",
    "no text": "write(memory(), '{')",
    "deep": "write(memory(), '[' * 100_000)",
    "much": "held = memory(); os.truncate(held, 1 << 40); fcntl.fcntl(held, 1033, 15)",
    "no manifest": "claim['manifest'] = 1\nwrite(memory())",
    "a deep manifest": "write(memory(), json.dumps(claim)[:-1] + ', \"x\": ' + '[' * 900 + ']' * 900 + '}')",
    "another digest than that of its files": "claim['manifest']['digest'] = '0' * 64\nwrite(memory())",
    "a file elsewhere": "claim['manifest']['replaced'] = {'../x': '0'}\nwrite(memory())",
    "a farm that is no name": "claim['farm'] = 7\nwrite(memory())",
    "a sentence as an overlay": "claim['manifest']['overlays'] = ['Verified: it runs all']\nwrite(memory())",
    "more overlays than anybody has": "claim['manifest']['overlays'] = ['one'] * 1001\nwrite(memory())",
    "a text that cannot be printed": "claim['manifest']['overlays'] = ['\\ud800']\nwrite(memory())",
}


def test_what_is_no_receipt(tmp_path: Path) -> None:
    """One process holds all of them, and a child of it what it has inherited."""
    code = "\n".join(f"claim = fresh()\n{one}" for one in NO_RECEIPTS.values())
    with holding(f"{code}\nos.fork() and os.wait()", None, str(tmp_path)) as number:
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        for one in (process(number), *(process(int(child)) for child in children)):
            held = {descriptor for descriptor, name in one.opened() if "vpatch" in name}
            assert (len(held), receipt_of(one)) == (len(NO_RECEIPTS), None)


def test_a_receipt_behind_others() -> None:
    """As after a fork: the process has inherited one, and has its own."""
    code = "other = dict(claim, pid=1)\nwrite(memory(), json.dumps(other))\nwrite(memory())"
    with holding(code) as number:
        assert receipt_of(process(number))


@root_only
def test_memory_that_another_user_made() -> None:
    """A program that changes its user would else be read with more rights than who wrote the claim has."""
    code = f"write(memory())\nos.setresuid({NOBODY}, {NOBODY}, {NOBODY})"
    with holding(code) as number:
        assert receipt_of(process(number)) is None


ALTERNATES = """
import threading
os.mkfifo(sys.argv[2] + "/pipe")
good, pipe = write(memory()), os.open(sys.argv[2] + "/pipe", os.O_RDONLY | os.O_NONBLOCK)
os.set_inheritable(pipe, True)
place = os.dup2(good, 50)
def alternate():
    while True:
        os.dup2(pipe, place)
        os.dup2(good, place)
threading.Thread(target=alternate, daemon=True).start()
"""


def test_a_descriptor_that_alternates_between_memory_and_a_pipe(tmp_path: Path) -> None:
    with holding(ALTERNATES, None, str(tmp_path)) as number:
        one = process(number)
        for _ in range(300):
            receipt_of(one)  # none of them waits for the pipe


NO_CODE = "it is no file of code"
NAMED = {
    "etc/shadow": "permission denied",
    "proc/kmsg": NO_CODE,
    "proc/self/environ": NO_CODE,
    "sys/kernel/uevent_seqnum": NO_CODE,
    "sys/kernel/tracing/trace_pipe": f"{NO_CODE}|permission denied|no such file or directory",
    "dev/zero": NO_CODE,
    "dev/tty": NO_CODE,
}


@root_only
def test_files_that_another_user_names() -> None:
    """Root compares them with that user's rights, and opens none of the kernel's."""
    with holding(NOBODYS, manifest("/", **dict.fromkeys(NAMED, "0" * 64))) as number:
        found = server(number)
        problems = wrong(found)

    assert found.receipt
    assert {(problem.what, problem.where) for problem in problems} == {("changed", f"/{file}") for file in NAMED}
    for problem in problems:
        cause = problem.cause.removesuffix(f", and process {number} was started with it")
        assert cause in NAMED[problem.where.lstrip("/")].split("|")


@root_only
def test_a_process_that_may_not_be_read() -> None:
    """Each way out is one that is there: root may lack a capability, as in a container."""
    with holding(NOBODYS) as number:
        as_root = output("verify", "--pid", str(number), first=lambda: humble(1 << 19))
        as_user = output("verify", "--pid", str(number), first=lambda: os.setresuid(1, 1, 1))
    with holding("write(memory())") as number:
        of_root = output("verify", "--pid", str(number), first=lambda: humble(1 << 19))

    start = "permission denied: this root has no CAP_SYS_PTRACE, as in most containers"
    assert as_root[2].endswith(f"{start}; run vpatch as user {NOBODY}, or add it\n")
    assert as_user[2].endswith(f"permission denied; become its user ({NOBODY}), or root\n")
    assert of_root[2].endswith(f"{start}; run vpatch outside of the container, or add it\n")


def test_the_identity_of_a_folder(tmp_path: Path) -> None:
    of = tmp_path.stat()
    with holding("write(memory())") as number:
        assert identity(process(number), str(tmp_path)) == (of.st_dev, of.st_ino)

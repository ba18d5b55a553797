"""The options of `vpatch matrix`, its output, its errors and its interruption."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from vpatch.core import catalogue
from vpatch.matrix import run

from tests.conftest import Program, Trees, contents_of
from tests.hybrid import COMPANION, CONFIG, HYBRID, ONLY
from tests.processes import PATIENCE, UNWATCHED, printed
from tests.releases import FACTS, FIRST, fact
from tests.terminals import written
from tests.tiers import deep

DEFAULT = tuple(item.id for item in catalogue.select(catalogue.discover()) if item.id in FACTS)


def drifted(tree: Path) -> Path:
    """Rename what the overlay looks for."""
    text = (tree / CONFIG).read_text()
    (tree / CONFIG).unlink()
    (tree / CONFIG).write_text(text.replace("def get_boundary_skip_layers(", "def get_border_skip_layers("))
    return tree


def test_trees_are_rows(vpatch: Program, slim: Trees, tmp_path: Path) -> None:
    """As text, as Markdown, and on a page; one that cannot be read hides no other. No tree is written to."""
    tree, other, empty, page = slim("0.20.2"), slim("0.21.0"), tmp_path / "empty", tmp_path / "page.html"
    empty.mkdir()
    copy = shutil.copytree(tree, tmp_path / "copy")
    before = contents_of(copy)
    one = vpatch("matrix", "--tree", copy, *ONLY, "--html", page)
    table = vpatch("matrix", "--tree", tree, "--tree", other, "--tree", empty, *ONLY, "--markdown")
    (bad := tmp_path / "no.whl").write_text("no wheel")
    rows = vpatch("matrix", "--tree", tree, "--tree", empty, "--wheel", bad, *ONLY, "--json")

    assert one.code == 0
    assert one.out.startswith(f"{copy}: {HYBRID}: pending: boundary-layers: matches the 0.20 layout; ")
    assert one.out.count("\n") == 1
    assert one.err.startswith("1 vLLM in ")
    assert f"{HYBRID} on vLLM" in page.read_text()
    assert contents_of(copy) == before
    *lines, unread = table.out.splitlines()
    assert lines == [f"| vLLM | `{HYBRID}` |", "|---|---|", f"| {tree} | pending |", f"| {other} | merged |"]
    assert unread.startswith(f"| {empty} | **cannot be read**: ")
    assert (rows.code, table.code) == (1, 1)
    assert [len(row["overlays"]) for row in rows.json["rows"]] == [0, 1, 0]
    names = [problem["file"].partition(":")[0] for problem in rows.json["problems"]]
    assert names == ["no.whl", str(empty)]


def test_what_drifted_is_named(vpatch: Program, slim: Trees, linked: Trees) -> None:
    bad = drifted(linked("0.20.2"))
    ran = vpatch("matrix", "--tree", slim("0.20.2"), "--tree", bad, *ONLY, "--json")

    assert ran.code == 1
    assert f"drifted: {bad}: {HYBRID}: {CONFIG}" in ran.err
    assert slim("0.20.2").as_posix() not in ran.err
    good, row = (row["overlays"][0] for row in ran.json["rows"])
    assert (good["state"], row["state"]) == ("pending", "drifted")
    assert row["problems"]
    assert "get_boundary_skip_layers" in row["because"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--rev main", 2, "--rev is a revision of --git"),
        ("--markdown --json", 2, "leave one out"),
        ("--git a --rev x --git b --rev y", 2, "--git is one repository"),
        ("--overlay nothing", 2, "no such overlay: nothing: known: "),
        ("--tree TREE --tree TREE", 1, "asked for twice: TREE: two rows would have this name\n"),
        ("--tree TREE --html TREE/no/page.html", 1, "cannot write: TREE/no/page.html: no such file or directory\n"),
    ],
)
def test_what_is_refused_before_anything_is_done(
    words: str, code: int, message: str, vpatch: Program, slim: Trees
) -> None:
    tree = str(slim("0.20.2"))
    ran = vpatch("matrix", *words.replace("TREE", tree).split())

    assert (ran.code, ran.out) == (code, "")
    assert message.replace("TREE", tree) in ran.err


def test_on_a_terminal(slim: Trees, linked: Trees, tmp_path: Path) -> None:
    """People see a short table; or progress, if the results go to a file."""
    bad = drifted(linked("0.20.2", "x"))
    seen = written("matrix", "--tree", slim("0.21.0"), "--tree", bad, *ONLY, env={**UNWATCHED, "NO_COLOR": "1"})
    with (tmp_path / "out").open("wb") as out:
        progress = written("matrix", "--tree", slim("0.21.0"), *ONLY, "--json", env=UNWATCHED, stdout=out.fileno())

    for text in ("overlay", " #39931", "get_boundary_skip_layers"):
        assert text in seen
    assert "1 vLLM " in progress
    assert json.loads((tmp_path / "out").read_text())["command"] == "matrix"


ENDLESS = """
import os, signal
from vpatch import AddFile, Overlay, Part, Shape

class Endless:
    files = ("vllm/engine/arg_utils.py",)  # which differs from row to row

    def ask(self, files):
        os.write(os.open(os.environ["WORKING"], os.O_WRONLY), b"%d\\n" % os.getpid())
        while True:
            signal.pause()

shape = Shape("1", (AddFile("vllm/_vpatch/x.py", ""),))
overlay = Overlay("Never judged.", (Part("part", (shape,), merged=Endless()),))
"""


@dataclass(frozen=True)
class Running:
    """A run, and a pipe that its worker processes write their ids to, and keep open until they end."""

    process: subprocess.Popen[str]
    pipe: int

    def read(self) -> bytes:
        assert select.select([self.pipe], [], [], PATIENCE)[0], "no sign of life"
        return os.read(self.pipe, 1 << 10)

    def workers(self) -> None:
        told = b""
        while told.count(b"\n") < min(run.WORKERS, len(os.sched_getaffinity(0))):
            told += self.read()

    def wait_for_the_end_of_all(self) -> None:
        while self.read():
            continue


@pytest.fixture
def running(slim: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_pool: None) -> Iterator[Running]:
    """A run whose worker processes never finish, with more rows than processes."""
    (tmp_path / "endless-1.dist-info").mkdir()
    (tmp_path / "endless-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: endless\nVersion: 1\n")
    (tmp_path / "endless-1.dist-info/entry_points.txt").write_text("[vpatch.overlays]\nendless = endless\n")
    (tmp_path / "endless.py").write_text(ENDLESS)
    os.mkfifo(tmp_path / "working")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("WORKING", str(tmp_path / "working"))
    rows = [word for release in FIRST for word in ("--tree", str(slim(release)))]
    command = [sys.executable, "-m", "vpatch", "matrix", *rows, "--overlay", "endless"]
    pipe = os.open(tmp_path / "working", os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        yield Running(process, pipe)
        process.kill()
    os.close(pipe)


@pytest.mark.usefixtures("heeding_interrupts")
@pytest.mark.parametrize(
    ("send", "number"), [deep(os.kill, signal.SIGINT), deep(os.kill, signal.SIGTERM), (os.killpg, signal.SIGINT)]
)
def test_an_interrupt(running: Running, send: Callable[[int, int], None], number: int) -> None:
    """Of the process alone, or of all its processes by the terminal."""
    running.workers()
    send(running.process.pid, number)
    out, err = running.process.communicate(timeout=PATIENCE)

    assert (running.process.returncode, out, err) == (130, "", "\ninterrupted\n")
    running.wait_for_the_end_of_all()


SILENT = """
import os, signal, threading
from vpatch.matrix.run import run

class Silent:
    name = "silent"

    def read(self, files):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait()

try:
    run([Silent()], [], [], print)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.usefixtures("heeding_interrupts")
def test_an_interrupt_while_a_server_is_silent() -> None:
    """Nothing waits for the server's answer."""
    assert printed(SILENT) == "interrupted\n"


@pytest.mark.deep
def test_nothing_is_left_of_a_run_that_is_killed(running: Running) -> None:
    running.workers()
    running.process.kill()
    running.wait_for_the_end_of_all()


def die(*_: object) -> None:
    """What a worker process does instead of its work."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("real_pool")
def test_no_thread_outlives_a_run_whose_worker_was_killed(
    vpatch: Program, slim: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Python ends together with the pool's thread, it prints a traceback: "OSError: handle is closed"."""
    monkeypatch.setattr(run, "work", die)
    before = {thread for thread in threading.enumerate() if not thread.daemon}
    ran = vpatch("matrix", "--tree", slim("0.20.2"), *ONLY)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[-1].startswith("cannot go on: a process that looks at overlays: it was killed"), ran.err
    assert {thread for thread in threading.enumerate() if not thread.daemon} == before


@pytest.mark.deep
def test_a_patched_tree(vpatch: Program, patched: Trees) -> None:
    ran = vpatch("matrix", "--tree", patched("0.20.2"), "--json")

    assert (ran.code, ran.json["problems"]) == (0, [])
    (row,) = ran.json["rows"]
    states = {cell["id"]: cell["state"] for cell in row["overlays"]}
    assert {states[name] for name in DEFAULT if fact(name, "0.20.2") == "pending"} == {"applied"}


def test_a_tree_that_is_patched_in_part(vpatch: Program, linked: Trees) -> None:
    """Applied overlays stay, and the others are tried. `apply` would heal one that lost a companion."""
    tree, both = linked("0.20.2"), ("--overlay", "turboquant-skip-list", *ONLY)
    assert vpatch("apply", tree, *both).code == 0
    (tree / COMPANION).unlink()
    ran = vpatch("matrix", "--tree", tree, *both, "--json")

    assert (ran.code, ran.json["problems"]) == (0, [])
    states = {cell["id"]: cell["state"] for cell in ran.json["rows"][0]["overlays"]}
    assert states == {"turboquant-skip-list": "applied", HYBRID: "pending"}

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vpatch.core import catalogue
from vpatch.matrix import run

from tests.cli.test_terminal import on_terminal
from tests.conftest import contents_of
from tests.hybrid import COMPANION, CONFIG, HYBRID, ONLY
from tests.processes import PATIENCE, UNWATCHED, printed
from tests.releases import FACTS, FIRST, fact
from tests.tiers import deep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Program, Trees

DEFAULT = tuple(item.id for item in catalogue.select(catalogue.discover()) if item.id in FACTS)


def drifted(tree: Path) -> Path:
    """Rename what the overlay looks for."""
    text = (tree / CONFIG).read_text()
    (tree / CONFIG).unlink()
    (tree / CONFIG).write_text(text.replace("def get_boundary_skip_layers(", "def get_border_skip_layers("))
    return tree


def test_a_tree_is_a_row(vpatch: Program, slim: Trees) -> None:
    ran = vpatch("matrix", "--tree", slim("0.20.2"), *ONLY)

    assert ran.code == 0
    assert ran.out.startswith(f"{slim('0.20.2')}: {HYBRID}: pending: boundary-layers: matches the 0.20 layout; ")
    assert ran.out.count("\n") == 1
    assert ran.err.startswith("1 vLLM in ")


def test_rows_in_markdown(vpatch: Program, slim: Trees) -> None:
    ran = vpatch("matrix", "--tree", slim("0.20.2"), "--tree", slim("0.21.0"), *ONLY, "--markdown")

    assert ran.out.splitlines() == [
        f"| vLLM | `{HYBRID}` |",
        "|---|---|",
        f"| {slim('0.20.2')} | pending |",
        f"| {slim('0.21.0')} | merged |",
    ]


@pytest.mark.usefixtures("real_pool")
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


def test_a_row_that_cannot_be_read_does_not_hide_the_others(vpatch: Program, slim: Trees, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    rows = ("--tree", slim("0.20.2"), "--tree", tmp_path / "empty", "--wheel", tmp_path / "no.whl")

    ran = vpatch("matrix", *rows, *ONLY, "--json")
    assert ran.code == 1
    assert [len(row["overlays"]) for row in ran.json["rows"]] == [0, 1, 0]
    names = [problem["file"].partition(":")[0] for problem in ran.json["problems"]]
    assert names == ["no.whl", str(tmp_path / "empty")]
    table = vpatch("matrix", *rows, *ONLY, "--markdown").out
    assert f"| {tmp_path / 'empty'} | **cannot be read**: " in table
    assert f"| {slim('0.20.2')} | pending |" in table


def test_a_page_is_written(vpatch: Program, slim: Trees, tmp_path: Path) -> None:
    page = tmp_path / "page.html"

    assert vpatch("matrix", "--tree", slim("0.20.2"), *ONLY, "--html", page).code == 0
    assert f"{HYBRID} on vLLM" in page.read_text()


def test_a_page_that_cannot_be_written(vpatch: Program, slim: Trees, tmp_path: Path) -> None:
    ran = vpatch("matrix", "--tree", slim("0.20.2"), *ONLY, "--html", tmp_path / "no" / "page.html")

    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"cannot write: {tmp_path}/no/page.html: no such file or directory\n", "before anything is done"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--rev", "main"), "--rev is a revision of --git"),
        (("--markdown", "--json"), "leave one out"),
        (("--git", "a", "--rev", "x", "--git", "b", "--rev", "y"), "--git is one repository"),
    ],
)
def test_usage(vpatch: Program, arguments: tuple[str, ...], says: str) -> None:
    ran = vpatch("matrix", *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_an_overlay_that_is_not_there(vpatch: Program) -> None:
    ran = vpatch("matrix", "--overlay", "nothing")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("no such overlay: nothing: known: ")


def test_people_see_a_short_table(slim: Trees, linked: Trees) -> None:
    bad = drifted(linked("0.20.2", "x"))
    seen = on_terminal("matrix", "--tree", slim("0.21.0"), "--tree", bad, *ONLY, env={**UNWATCHED, "NO_COLOR": "1"})

    assert "overlay" in seen
    assert " #39931" in seen
    assert "get_boundary_skip_layers" in seen


def test_progress_on_a_terminal_and_results_in_a_file(slim: Trees, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        seen = on_terminal("matrix", "--tree", slim("0.21.0"), *ONLY, "--json", env=UNWATCHED, stdout=out.fileno())

    assert "1 vLLM " in seen
    assert json.loads((tmp_path / "out").read_text())["command"] == "matrix"


ENDLESS = """
import os, signal
from vpatch import AddFile, Overlay, Part, Shape

class Endless:
    reach = (("vllm/engine/arg_utils.py", ""),)  # which differs from row to row

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

    def workers(self) -> list[int]:
        """Return the ids of the worker processes, once all of them work."""
        told = b""
        while told.count(b"\n") < min(run.WORKERS, len(os.sched_getaffinity(0))):
            told += self.read()
        return [int(line) for line in told.splitlines()]

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
    ("send", "number"), [deep(os.kill, signal.SIGINT), (os.kill, signal.SIGTERM), (os.killpg, signal.SIGINT)]
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


def test_a_process_that_is_killed(running: Running) -> None:
    os.kill(running.workers()[0], signal.SIGKILL)
    out, err = running.process.communicate(timeout=PATIENCE)

    assert (running.process.returncode, out) == (1, ""), err
    assert err.splitlines()[-1].startswith("cannot go on: a process that looks at overlays: it was killed"), err


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
    assert {thread for thread in threading.enumerate() if not thread.daemon} == before


def test_nothing_is_left_of_a_run_that_is_killed(running: Running) -> None:
    running.workers()
    running.process.kill()

    running.wait_for_the_end_of_all()


@pytest.mark.parametrize("only", [ONLY, deep(())], ids=["one", "all"])
def test_a_patched_tree(vpatch: Program, patched: Trees, only: tuple[str, ...]) -> None:
    ran = vpatch("matrix", "--tree", patched("0.20.2"), *only, "--json")

    assert (ran.code, ran.json["problems"]) == (0, [])
    (row,) = ran.json["rows"]
    states = {cell["id"]: cell["state"] for cell in row["overlays"]}
    assert {states[name] for name in only[1:] or DEFAULT if fact(name, "0.20.2") == "pending"} == {"applied"}


def test_a_tree_that_is_patched_in_part(vpatch: Program, linked: Trees) -> None:
    """Applied overlays stay; the others are tried."""
    tree = linked("0.26.0")
    assert vpatch("apply", tree, "--overlay", "turboquant-auto-dtype").code == 0

    both = ("--overlay", "turboquant-auto-dtype", "--overlay", "turboquant-skip-list")
    ran = vpatch("matrix", "--tree", tree, *both, "--json")
    assert (ran.code, ran.json["problems"]) == (0, [])
    states = {cell["id"]: cell["state"] for cell in ran.json["rows"][0]["overlays"]}
    assert (states["turboquant-auto-dtype"], states["turboquant-skip-list"]) == ("applied", "pending")


def test_a_tree_that_lost_a_companion_is_one_that_apply_heals(vpatch: Program, linked: Trees) -> None:
    tree = linked("0.20.2")
    assert vpatch("apply", tree, *ONLY).code == 0
    (tree / COMPANION).unlink()

    ran = vpatch("matrix", "--tree", tree, *ONLY, "--json")
    assert (ran.code, ran.json["problems"]) == (0, [])
    assert ran.json["rows"][0]["overlays"][0]["state"] == "pending"


def test_rows_of_one_name(vpatch: Program, slim: Trees) -> None:
    tree = slim("0.20.2")
    ran = vpatch("matrix", "--tree", tree, "--tree", tree)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"asked for twice: {tree}: two rows would have this name\n"


def test_nothing_is_written_into_a_tree(vpatch: Program, slim: Trees, tmp_path: Path) -> None:
    copy = shutil.copytree(slim("0.20.2"), tmp_path / "copy")
    before = contents_of(copy)

    assert vpatch("matrix", "--tree", copy, *ONLY).code == 0
    assert contents_of(copy) == before

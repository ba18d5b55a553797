"""Packages of others that misbehave when they are imported: the package is named, and no command hangs or lies."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from vpatch import trial

from tests.conftest import Ran
from tests.forks import CLOSED, ended, output, start
from tests.tiers import deep

FINE = """
from vpatch import AddFile, Overlay, Part, Shape
FILE = AddFile("vllm/_vpatch/x.py", "")
overlay = Overlay(summary="What.", parts=(Part("part", (Shape("shape", (FILE,)),)),), opt_in=True)
"""
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Write a distribution with one module and its entry point; return the folder to import it from."""

    def write(source: str, point: str = "foreign = foreign", name: str = "foreign", **metadata: bytes) -> Path:
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_bytes(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n".encode())
        (info / "entry_points.txt").write_bytes(f"[vpatch.overlays]\n{point}\n".encode())
        for file, content in metadata.items():
            (info / file).write_bytes(content)
        (tmp_path / f"{name}.py").write_text(source + FINE)
        return tmp_path

    return write


InstallAll = Callable[[Iterable[str]], dict[str, str]]


@pytest.fixture
def install_all(install: Install) -> InstallAll:
    """Write a distribution for each source, with the module `foreign_N`; return the sources by these names."""

    def write(sources: Iterable[str]) -> dict[str, str]:
        named = {f"foreign_{number}": source for number, source in enumerate(sources)}
        for name, source in named.items():
            install(source, f"{name} = {name}", name)
        return named

    return write


def run(folder: Path, *arguments: str) -> Ran:
    def first() -> None:
        faulthandler.disable()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        sys.path.insert(0, str(folder))

    return Ran(*output(*arguments, first=first))


PRINTS = {
    "print": "print('hello')",
    "stdout": "import sys; sys.__stdout__.write('hello\\n')",
    "os.write": "import os; os.write(1, b'hello\\n')",
    "a program": "import subprocess; subprocess.run(['echo', 'hello'])",
}
CLOSES = {
    "sys.stdout": "import sys; sys.stdout.close()",
    "sys.__stdout__": "import sys; sys.__stdout__.close()",
    "both streams": "import sys; sys.stdout.close(); sys.stderr.close()",
    "the descriptors": "import os; os.close(1); os.close(2)",
    "none": "import sys; sys.stdout = sys.stderr = sys.__stdout__ = None",
    "another": "import io, sys; sys.stdout = sys.stderr = io.StringIO()",
    "kept": "import logging, sys; logging.basicConfig(stream=sys.stdout); logging.error('hello')",
}


@pytest.mark.parametrize("sources", [PRINTS, CLOSES])
def test_standard_output_is_vpatchs(tmp_path: Path, install_all: InstallAll, sources: dict[str, str]) -> None:
    named = install_all(sources.values())

    ran = run(tmp_path, "list", "--json")

    assert ran.code == 0
    assert {name.replace("_", "-") for name in named} <= {one["id"] for one in ran.json["overlays"]}
    assert ran.err.count("hello") >= len(sources) or sources is not PRINTS
    assert "Traceback" not in ran.err


RAISES = {
    "raise GeneratorExit": "GeneratorExit (line 1)",
    "class Odd(BaseException): pass\nraise Odd('why')": "Odd: why (line 2)",
    "class Odd(KeyboardInterrupt): pass\nraise Odd('why')": "Odd: why (line 2)",
    "class Odd(Exception):\n  def __str__(self): 1 / 0\nraise Odd": "Odd (line 3)",
    "raise SystemExit": "SystemExit (line 1)",
    "import not_there": "ModuleNotFoundError: No module named 'not_there' (line 1)",
    "def broken(:": "SyntaxError: invalid syntax (MODULE.py, line 1)",
    "raise ValueError('x' * 5_000)": f"ValueError: {'x' * 988} (line 1)",
}
DIES = {
    "import os; os._exit(0)": "ends the program with exit code 0",
    "import os; os._exit(3)": "ends the program with exit code 3",
    "raise KeyboardInterrupt": "ends the program with exit code 130",
    "import os; os.kill(os.getpid(), 9)": "ends the program by SIGKILL",
    "import os; os.abort()": "ends the program by SIGABRT",
    "import ctypes; ctypes.string_at(0)": "ends the program by SIGSEGV",
}


def test_what_it_raises_and_its_death_are_its_problem(tmp_path: Path, install_all: InstallAll) -> None:
    causes = {**RAISES, **{source: f"importing it {how}" for source, how in DIES.items()}}
    named = install_all(causes)

    says = (f"cannot load overlays: {name}: {causes[source]}\n" for name, source in sorted(named.items()))
    assert run(tmp_path, "list") == Ran(1, "", "".join(line.replace("MODULE", line.split(": ")[1]) for line in says))


def test_the_module_that_dies_is_named(install: Install) -> None:
    folder = install("", "foreign = several")
    (folder / "several").mkdir()
    for name, source in {"__init__": "", "fine": FINE, "m_dies": "import os; os._exit(0)", "z": FINE}.items():
        (folder / f"several/{name}.py").write_text(source)

    ran = run(folder, "list")

    assert ran == Ran(1, "", "cannot load overlays: several.m_dies: importing it ends the program with exit code 0\n")


def test_one_that_never_ends(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "PATIENCE", 0.2)

    ran = run(install("import threading; threading.Event().wait()"), "list")

    assert ran == Ran(1, "", "cannot load overlays: foreign: importing it does not end within 0.2 seconds\n")


@pytest.mark.deep
def test_a_thread_that_never_ends(install: Install) -> None:
    folder = install("import multiprocessing, threading; threading.Thread(target=threading.Event().wait).start()")
    command = [sys.executable, "-m", "vpatch", "list", "--json"]
    ran = subprocess.run(command, env={"PYTHONPATH": str(folder)}, capture_output=True, timeout=60, check=True)

    assert "foreign" in [one["id"] for one in json.loads(ran.stdout)["overlays"]]


@pytest.mark.parametrize("closed", [(0, CLOSED, 2), (CLOSED, CLOSED, CLOSED)])
def test_streams_that_were_closed_stay_so(install: Install, closed: tuple[int, int, int]) -> None:
    folder = install("print('hello')")

    code = ended(start("list", streams=closed, first=lambda: sys.path.insert(0, str(folder))))

    assert code == (1 if closed[1] == CLOSED else 0)


def test_the_users_interrupt_is_no_problem_of_the_package(install: Install, heeding_interrupts: None) -> None:
    read, write = os.pipe()
    folder = install(f"import os, threading; os.write({write}, b'x'); threading.Event().wait()")
    with subprocess.Popen(
        [sys.executable, "-m", "vpatch", "list"],
        env={"PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[write],
        start_new_session=True,
    ) as program:
        os.read(read, 1)
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does: the fork gets it, too
        _, err = program.communicate(timeout=60)
    os.close(read)
    os.close(write)

    assert (program.returncode, err.strip()) == (130, "interrupted")


POINTS = {
    "foreign =": "cannot load overlays: foreign = : it names no module",
    "foreign = :x": "cannot load overlays: foreign = :x: it names no module",
    "foreign = .": "cannot load overlays: .: ",
    "foreign = foreign:overlay": "cannot load overlays: foreign:overlay: AttributeError: ",
    "foreign = foreign:none": "cannot load overlays: foreign:none: AttributeError: ",
    "foreign = foreign:FILE.file.upper": "cannot load overlay: upper: ModuleNotFoundError: ",
    "foreign = ..foreign": "cannot load overlays: ..foreign: ",
    "foreign = foreign [extra": "cannot load overlays: foreign = foreign [extra: it names no module",
    "foreign": "cannot read entry points: ",
}


@pytest.mark.parametrize("point", [point if not n % 4 else deep(point) for n, point in enumerate(POINTS)])
def test_an_entry_point_that_names_nothing(install: Install, point: str) -> None:
    ran = run(install("", point), "list")

    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert ran.err.startswith(POINTS[point])


@pytest.mark.parametrize("metadata", [b"\xff\xfe\0", deep(b""), deep(b"Version: 1\n")])
def test_a_package_without_a_name(install: Install, metadata: bytes) -> None:
    ran = run(install("", METADATA=metadata), "list", "--json")

    assert ran.code == 0
    assert "foreign" in [one["id"] for one in ran.json["overlays"]]


THREADS = """
import os, threading
from vpatch.trial import death
gone = threading.Event()
thread = threading.Thread(target=gone.wait)
thread.start()
print(death("not_there", lambda note: os._exit(0)))
gone.set()
thread.join()
print(*death("not_there", lambda note: (note("it"), os._exit(0))))
"""


def test_nothing_is_tried_where_there_are_threads() -> None:
    """A fork could wait for their locks for ever. The process is a new one, because pytest's may have threads."""
    printed = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True).stdout
    assert printed == "None\nit ends the program with exit code 0\n"


ODD = {
    "overlay = Overlay(summary=1, parts=overlay.parts)": "its `summary` is not",
    "overlay = Overlay(summary='x', parts=overlay.parts, symptoms=5)": "its `symptoms` is not",
    "overlay = Overlay(summary='x', parts=(Part('p', overlay.parts[0].shapes, errors='x'),))": "the `errors` of a part",
    "overlay = Overlay(summary='x', parts=overlay.parts, upstream=[5])": "its `upstream` is not",
    "overlay = Overlay(summary='x', parts=overlay.parts, releases=None)": "its `releases` is not",
    "overlay = Overlay(summary='x', parts=5)": "object is not iterable",
    "overlay = Overlay(summary='x', parts=(5,))": "has no attribute 'shapes'",
    "overlay = Overlay(summary='x', parts=(Part('part', (Shape('shape', (5,)),)),))": "has no attribute 'file'",
    "overlay = type('O', (), {'__class__': property(lambda _: 1 / 0)})()": "ZeroDivisionError",
    "def __getattr__(name): raise GeneratorExit\ndel overlay": "GeneratorExit",
}


def test_an_overlay_of_other_types(tmp_path: Path, install_all: InstallAll) -> None:
    named = install_all([""] * len(ODD))
    for name, source in zip(named, ODD, strict=True):
        (tmp_path / f"{name}.py").write_text(f"{FINE}{source}\n")

    ran = run(tmp_path, "list")

    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", len(ODD))
    for line, name, cause in zip(ran.err.splitlines(), named, ODD.values(), strict=True):
        assert re.match(f"cannot load overlays?: {name}: ", line)
        assert cause in line

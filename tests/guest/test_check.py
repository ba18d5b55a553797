"""The guest script that checks an image's files reports every kind of fault."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import marshal
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch import guest
from vpatch.core import nesting
from vpatch.guest import record
from vpatch.guest.check import answer_files, check_interpreter, check_tree
from vpatch.tree.bytecode import refusal

INFO = "vllm-0.20.2.dist-info"
MODULE, ADDED = "vllm/engine.py", "vllm/_vpatch/added.py"
CACHE = "vllm/__pycache__"
FINE = {"files": True, "compile": True, "bytecode": True, "record": True}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    contents = {"vllm/__init__.py": b"", MODULE: b"x = 1\n", ADDED: b"y = 2\n"}
    said = {path: {"after": [hashlib.sha256(data).hexdigest()]} for path, data in contents.items()}
    contents[f"{INFO}/vpatch-image.json"] = json.dumps({"files": said}).encode()
    rows = "".join(record.entry(path, data).raw + "\n" for path, data in contents.items())
    for path, data in (*contents.items(), (f"{INFO}/RECORD", rows.encode())):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    return tmp_path


def asked(tree: Path) -> str:
    return (tree / INFO / "vpatch-image.json").read_text()


def look(tree: Path, said: str) -> dict[str, tuple[bool | None, str]]:
    return {name: (ok, because) for name, ok, because in check_tree(str(tree), INFO, said)}


def compiled(source: bytes, magic: bytes = importlib.util.MAGIC_NUMBER, flags: int = 0) -> bytes:
    return magic + bytes([flags]) + bytes(11) + marshal.dumps(compile(source, "engine.py", "exec", dont_inherit=True))


def pyc(content: bytes, name: str = "engine.cpython-311.pyc") -> Callable[[Path], None]:
    def put(tree: Path) -> None:
        (tree / CACHE).mkdir()
        (tree / CACHE / name).write_bytes(content)

    return put


def written(path: str, data: bytes) -> Callable[[Path], object]:
    return lambda tree: (tree / path).write_bytes(data)


def piped(tree: Path) -> None:
    (tree / MODULE).unlink()
    os.mkfifo(tree / MODULE)


def recorded(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda tree: (tree / INFO / "RECORD").write_bytes(change((tree / INFO / "RECORD").read_bytes()))


Expected = dict[str, tuple[bool | None, str]]


def lost(path: str) -> Expected:
    said = {"files": "is not what was built", "record": "has no true row in RECORD"}
    return {name: (False, f"{path} {because}") for name, because in said.items()}


STALE: Expected = {"bytecode": (False, f"{CACHE}/engine.cpython-311.pyc is not compiled from the source beside it")}
UNTOLD: Expected = {"bytecode": (None, f"{CACHE}/engine.cpython-311.pyc is of another interpreter: not told")}
UNTRUE: Expected = {"record": (False, "")}
MAGIC = importlib.util.MAGIC_NUMBER
FAULTS: dict[str, tuple[Callable[[Path], object], Expected]] = {
    "changed": (written(MODULE, b"x = 2\n"), lost(MODULE)),
    "gone": (lambda tree: (tree / ADDED).unlink(), lost(ADDED)),
    "another provenance": (written(f"{INFO}/vpatch-image.json", b"{}"), lost(f"{INFO}/vpatch-image.json")),
    "no RECORD": (lambda tree: (tree / INFO / "RECORD").unlink(), UNTRUE),
    "old bytecode": (pyc(compiled(b"x = 0\n")), STALE),
    "a pipe": (piped, lost(MODULE)),
    "RECORD in no encoding": (written(f"{INFO}/RECORD", b"\xff\n"), UNTRUE),
    "RECORD without an end": (written(f"{INFO}/RECORD", b"x" * 200_000), UNTRUE),
    "hostile bytecode": (pyc(MAGIC + bytes(12) + b"(\xff\xff\xff\x7f"), STALE),
    "damaged bytecode": (pyc(MAGIC + bytes(12)), STALE),
    "bytecode of it": (pyc(compiled(b"x = 1\n")), {}),
    # As `vpatch verify` sees it: Python compares this one itself, and runs no old code.
    "old bytecode that Python compares": (pyc(compiled(b"x = 0\n", flags=3)), {}),
    "old bytecode of another hash": (pyc(compiled(b"x = 0\n", flags=1)), STALE),
    "bytecode cut short": (pyc(MAGIC), {}),
    "RECORD with a name in another encoding": (recorded(lambda rows: b"caf\xe9.py,,\n" + rows), {}),
    "RECORD with padded hashes": (recorded(lambda rows: re.sub(rb"(,\d+\n)", rb"=\1", rows)), {}),
    "RECORD with a second row": (recorded(lambda rows: rows + f"{MODULE},,\n".encode()), {}),
    "bytecode of another": (pyc(b"old", "other.cpython-311.pyc"), {}),
    "bytecode of another interpreter": (pyc(compiled(b"x = 0\n", b"\0\0\r\n")), UNTOLD),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_reported(tree: Path, fault: str) -> None:
    said = asked(tree)
    spoil, expected = FAULTS[fault]
    spoil(tree)
    found = look(tree, said)

    assert {name: ok for name, (ok, _) in found.items()} == FINE | {name: ok for name, (ok, _) in expected.items()}
    for name, (_, because) in expected.items():
        assert because in found[name][1]


def test_a_module_that_does_not_compile_or_must_not_be_compiled(tree: Path) -> None:
    """In a registry, it is anybody's: `vpatch verify` has the same bound."""
    (tree / MODULE).write_bytes(b"(\n")
    assert look(tree, asked(tree))["compile"] == (False, f"{MODULE}: '(' was never closed (engine.py, line 1)")

    (tree / MODULE).write_bytes(b"x = " + b"not " * 5_000 + b"1\n")
    assert look(tree, asked(tree))["compile"] == (False, f"{MODULE}: nested too deeply")

    (tree / MODULE).write_bytes(b"a;" * nesting.TOKENS)
    found = {name: because for name, _, because in check_tree(str(tree), INFO, asked(tree), error=refusal)}
    assert found["compile"].startswith(f"{MODULE}: too large")


def test_which_modules_this_interpreter_would_import(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "modules", dict(sys.modules))
        patched.syspath_prepend(str(tree))
        assert check_interpreter(str(tree), ["vllm/__init__.py", MODULE, ADDED])[1]
        assert check_interpreter("/elsewhere", [MODULE])[2].startswith(
            f"{MODULE}: {sys.executable} would import {tree}/{MODULE}"
        )
        assert "no such module" in check_interpreter(str(tree), ["vllm/none.py"])[2]
        assert "no such module" in check_interpreter(str(tree), ["vllm_none/none.py"])[2]


def test_the_script_answers_in_one_line(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    question = {"root": str(tree), "dist_info": INFO, "provenance": asked(tree)}
    command = [sys.executable, "-c", guest.check_script("answer_files"), json.dumps(question)]
    ran = subprocess.run(command, env={"PYTHONPATH": str(tree)}, capture_output=True, text=True, check=True)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "modules", dict(sys.modules))
        patched.setattr(sys, "path", [str(tree), *sys.path])
        answer_files(json.dumps(question))

    assert [answer[:2] for answer in json.loads(ran.stdout)] == [*map(list, FINE.items()), ["interpreter", True]]
    assert json.loads(capsys.readouterr().out) == json.loads(ran.stdout)

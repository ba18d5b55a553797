"""What scripts rely on: the JSON of every command, the exit codes, and what goes to which stream."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
from vpatch.core.verdict import State
from vpatch.doctor.subject import Level
from vpatch.tree.guard import lock
from vpatch.tree.locate import locate

from tests.conftest import Process, Program, Ran, Trees, contents_of
from tests.forks import ended, start
from tests.hybrid import CHANGED, HYBRID, ONLY, WRITTEN

COMMANDS = (
    *("fetch", "status", "diff", "apply", "revert", "verify", "ps", "doctor", "list", "show", "new", "matrix", "cache"),
)
OTHERS = (
    "plan",
    "find",
    "build",
    "test",
    "inspect",
    "tag",
    "capture",
    "rebase",
)  # see tests/plan, tests/known, tests/image and tests/porting
RUN = "run"  # its output is that of another command, so it has no --json: see test_run.py

STATES = {str(state) for state in State}
PART = {"name": str, "state": STATES, "because": str, "shape": (str, NoneType), "files": [str]}
VERDICT = {"id": str, "state": STATES, "because": str, "parts": [PART]}
PROBLEM = {"code": str, "what": str, "file": str, "scope": (str, NoneType), "cause": str}
ENTRY = {
    "id": str,
    "summary": str,
    "opt_in": bool,
    "symptoms": [str],
    "errors": [str],
    "upstream": [str],
    "origin": str,
}
ENTRY |= {"sha256": (str, NoneType)}
DETAIL = ENTRY | {
    "why": str,
    "links": [str],
    "releases": {"*": str},
    "parts": [
        {
            "name": str,
            "shapes": [{"name": str, "files": [str]}],
            "state": STATES,
            "because": str,
            "changes": [{"file": str, "diff": str}],
        }
    ],
}
SHAPE = {
    "schema": {1},
    "command": str,
    "tree": (str, NoneType),
    "vllm": (str, NoneType),
    "overlays": [VERDICT],
    "changed": [str],
    "problems": [PROBLEM],
    "notes": [str],
}
ROW = {
    "vllm": str,
    "name": str,
    "origin": (str, NoneType),
    "problems": [PROBLEM],
    "overlays": [VERDICT | {"problems": [PROBLEM]}],
}
FINDING = {"name": str, "level": {str(level) for level in Level}, "what": str, "where": str, "do": str}
PROBED = {"overlay": str, "name": str, "ok": (bool, NoneType), "because": str}
CLAIM = {"digest": (str, NoneType), "overlays": [str], "asked": (str, NoneType)}
SERVER = CLAIM | {"pid": int, "command": str, "checked": (bool, NoneType)}
DIGEST = {"digest": (str, NoneType)}
EDITED = {"edited": {"*": str}}
GONE = {"not_installed": [{"id": str, "files": [str]}]}
SHAPES: dict[str, dict[str, Any]] = {
    "status": SHAPE | GONE | DIGEST | EDITED | {"upgradable": [str]},
    "apply": SHAPE | DIGEST | EDITED | {"added": [str], "removed": [str], "upgraded": [str]},
    "revert": SHAPE | GONE | {"added": [str], "removed": [str]},
    "verify": SHAPE | GONE | DIGEST | EDITED,
    "ps": SHAPE | {"processes": [SERVER]},
    "doctor": SHAPE | {"findings": [FINDING], "probes": [PROBED]},
    "diff": SHAPE | EDITED | {"diff": str, "files": [str], "upgradable": [str]},
    "fetch": SHAPE | {"wheel": str, "files": int, "bytes_read": int, "wheel_bytes": int},
    "list": SHAPE | {"overlays": [ENTRY]},
    "show": SHAPE | {"overlays": [DETAIL]},
    "new": SHAPE | {"files": [str]},
    "matrix": SHAPE | {"rows": [ROW], "bytes_read": int, "wheel_bytes": int, "seconds": float},
    "cache": SHAPE
    | {
        "folder": str,
        "files": int,
        "bytes": int,
        "releases": [str],
        "farms": [{"folder": str, "digest": str, "bytes": int, "used": str, "processes": [int]}],
        "removed": {"files": int, "bytes": int, "farms": int},
    },
}


def fits(value: object, shape: Any, where: str = "") -> None:
    """Assert that a JSON value has exactly these fields, of these types, or one of these values."""
    match shape:
        case {"*": inner}:
            assert isinstance(value, dict), where
            for key, item in value.items():
                fits(item, inner, f"{where}.{key}")
        case dict():
            assert isinstance(value, dict), where
            assert value.keys() == shape.keys(), where
            for key, inner in shape.items():
                fits(value[key], inner, f"{where}.{key}")
        case [inner]:
            assert isinstance(value, list), where
            for index, item in enumerate(value):
                fits(item, inner, f"{where}[{index}]")
        case set():
            assert value in shape, where
        case _:
            assert type(value) in (shape if isinstance(shape, tuple) else (shape,)), where


def test_json_of_every_command(vpatch: Program, tree: Path, tmp_path: Path) -> None:
    runs: dict[str, tuple[str | Path, ...]] = {
        "fetch": ("0.20.2", tmp_path / "fetched"),
        "status": (tree, *ONLY),
        "diff": (tree, *ONLY),
        "apply": (tree, *ONLY),
        "verify": (tree, *ONLY),
        "ps": (),
        "doctor": (tree, *ONLY),
        "revert": (tree, *ONLY),
        "list": (),
        "show": (HYBRID, tree),
        "new": ("my-fix", tmp_path),
        "matrix": ("--tree", tree, "--no-cache", *ONLY),
        "cache": (),
    }
    assert runs.keys() == set(COMMANDS)
    for command, arguments in runs.items():
        ran = vpatch(command, *arguments, "--json")

        assert ran.code == 0, command
        assert ran.err.startswith("1 vLLM in ") if command == "matrix" else ran.err == "", command
        assert ran.out.count("\n") == 1, "one object on one line"
        fits(ran.json, SHAPES[command], command)
        assert ran.json["command"] == command
        nowhere = dict.fromkeys(("ps", "list", "new", "matrix", "cache"))
        where = {**nowhere, "fetch": str(tmp_path / "fetched")}.get(command, str(tree))
        assert (ran.json["tree"], ran.json["vllm"]) == (where, where and "0.20.2")
        assert ran.json["problems"] == []
        assert ran.json["changed"] == (WRITTEN if command in {"apply", "revert"} else [])


def test_json_of_a_failure(vpatch: Program, tmp_path: Path) -> None:
    for command in ("status", "diff", "apply", "revert", "verify", "doctor"):
        ran = vpatch(command, tmp_path, "--json")

        assert ran.code == 1
        fits(ran.json, SHAPE, command)
        (problem,) = ran.json["problems"]
        assert ran.json["tree"] == problem["file"] == str(tmp_path)
        assert ran.err == f"{problem['what']}: {problem['file']}: {problem['cause']}\n"


def test_json_of_a_hint(vpatch: Program, tmp_path: Path) -> None:
    """What to do is a field of its own, and stands behind the cause for people."""
    (tmp_path / "plan.yaml").touch()
    ran = vpatch("plan", "--preset", "qwen3.6-35b-5090-32k", "--compose", tmp_path / "plan.yaml", "--json")

    (problem,) = ran.json["problems"]
    fits(problem, PROBLEM | {"hint": str})
    assert ran.err == f"exists already: {problem['file']}: {problem['cause']}; {problem['hint']}\n"


@pytest.mark.parametrize("command", [*COMMANDS, *OTHERS])
def test_help(vpatch: Program, command: str) -> None:
    ran = vpatch(command, "--help")

    assert ran == vpatch(command, "-h") == vpatch("help", command)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: vpatch {command} [OPTIONS]")
    assert "--json" in ran.out


def test_help_of_the_program(vpatch: Program) -> None:
    ran = vpatch("-h")

    assert ran == vpatch("help")
    assert (ran.code, ran.err) == (0, "")
    assert {line.split()[0] for line in ran.out.splitlines() if line.startswith("  ") and line.strip()} > {
        *COMMANDS,
        *OTHERS,
        RUN,
    }
    assert "..." not in ran.out.partition("Options:")[2], "each fits its line"


def test_version_and_module(process: Process) -> None:
    says = f"vpatch {version('vpatch')}\n"

    assert process("--version") == Ran(0, says, "")
    script = subprocess.run([Path(sys.executable).with_name("vpatch"), "--version"], capture_output=True, check=True)
    assert script.stdout.decode() == says


def test_usage(vpatch: Program) -> None:
    two_trees = [f"{command} TREE --python PY" for command in ("status", "diff", "apply", "revert")]
    for arguments in ("nonsense", "", "status --nonsense", "fetch 0.20.2", "show", *two_trees):
        ran = vpatch(*arguments.split())

        assert (ran.code, ran.out) == (2, ""), arguments
        assert ran.err.startswith("Usage: vpatch")


def test_a_bug_is_reported_as_one(vpatch: Program, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("vpatch.api.status", fault)

    ran = vpatch("status", "-q", tree)

    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("Traceback")
    assert "ZeroDivisionError: a fault" in ran.err
    assert re.search(r"this is a bug in vpatch: please report it, .* at https://\S+/issues\n$", ran.err)


def test_interrupt(tree: Path, tmp_path: Path) -> None:
    before = contents_of(tree)
    read, write = os.pipe()

    def tell() -> None:
        real = time.sleep
        time.sleep = lambda seconds: (os.write(write, b"waiting"), real(seconds))[1]

    with lock(locate(tree)), (tmp_path / "out").open("w+b") as out, (tmp_path / "err").open("w+b") as err:
        streams = (read, out.fileno(), err.fileno())
        child = start("apply", "-q", tree, *ONLY, streams=streams, first=tell)
        os.close(write)
        assert os.read(read, 7) == b"waiting"
        os.kill(child, signal.SIGINT)
        assert ended(child) == 130
    os.close(read)

    assert [(tmp_path / name).read_text() for name in ("out", "err")] == ["", "\ninterrupted\n"]
    assert contents_of(tree) == before


@pytest.mark.parametrize(
    ("overlay", "code", "state"), [("turboquant-auto-dtype", 1, "not_applicable"), (HYBRID, 0, "pending")]
)
def test_a_named_overlay_must_apply(vpatch: Program, tree: Path, overlay: str, code: int, state: str) -> None:
    """By default, an overlay that does not apply is fine: see `test_outcomes.py`."""
    for command in ("status", "diff", "apply"):
        ran = vpatch(command, tree, "--overlay", overlay, "--json")

        assert ran.code == code, command
        assert [item["state"] for item in ran.json["overlays"]] == ["applied" if ran.json["changed"] else state]
        assert [problem["what"] for problem in ran.json["problems"]] == ["not applicable"] * code


def test_an_unknown_overlay(vpatch: Program, slim: Trees) -> None:
    for command in ("status", "diff", "apply", "revert", "verify", "doctor", "show"):
        named = ("nonsense",) if command == "show" else ("--overlay", "nonsense", "--overlay", "rubbish")
        ran = vpatch(command, *named, *([] if command == "show" else [slim("0.20.2")]))

        assert (ran.code, ran.out) == (2, "")
        lines = [f"no such overlay: {name}: known: " for name in named if name != "--overlay"]
        assert all(told.startswith(line) for told, line in zip(ran.err.splitlines(), lines, strict=True))
        assert HYBRID in ran.err


def test_list_and_show(vpatch: Program) -> None:
    assert re.search(rf"^{HYBRID}: \S", vpatch("list").out, re.MULTILINE)
    shown = vpatch("show", HYBRID).out
    assert shown.startswith(f"{HYBRID}: ")
    for told in (
        "From vpatch ",
        "You see\n  NotImplementedError: TurboQuant KV cache is not supported",
        "https://github.com/vllm-project/vllm/pull/39931",
        "  vLLM >=0.20,<0.21: pending",
        *CHANGED,
    ):
        assert told in shown
    listed = [(item["id"], " (opt-in)" * item["opt_in"]) for item in vpatch("list", "--json").json["overlays"]]
    assert [line.partition(":")[0] for line in vpatch("list").out.splitlines()] == [f"{k}{v}" for k, v in listed]

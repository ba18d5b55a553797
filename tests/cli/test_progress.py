"""A line shows that a command still works, once it was silent for a second, and is gone in the end."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from vpatch import api
from vpatch.cli import progress

from tests.conftest import Trees
from tests.terminals import on_terminal
from tests.tiers import deep

ONE = ("--overlay", "turboquant-skip-list")
COMPARING = "comparing vLLM with the overlays"
COMPUTING = "computing and checking the changes"


def slow(owner: Any, name: str, then: Callable[[], object] = bool) -> Callable[[], None]:
    """Return what makes a function of the program take a second and a half; then `then` is called."""

    def first() -> None:
        verb = getattr(owner, name)
        progress._SILENT = 0.3
        signal.signal(signal.SIGINT, signal.default_int_handler)

        def slowly(*given: Any, **more: Any) -> Any:
            time.sleep(1.0)
            then()
            return verb(*given, **more)

        setattr(owner, name, slowly)

    return first


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(9)


@pytest.mark.parametrize(
    ("words", "owner", "name", "line"),
    [
        (("status", *ONE), api, "status", COMPARING),
        deep(("diff", *ONE), api, "diff", COMPARING),
        (("apply", "--dry-run", *ONE), api, "diff", COMPUTING),
        deep(("verify", *ONE), api, "verify", "checking what is applied"),
        (("revert",), api, "revert", "restoring the originals"),
    ],
    ids=["status", "diff", "apply", "verify", "revert"],
)
def test_a_silent_command_shows_that_it_works(
    slim: Trees, words: tuple[str, ...], owner: object, name: str, line: str
) -> None:
    tree = slim("0.20.2")
    quick = on_terminal(*words, tree, columns=150)
    ran = on_terminal(*words, tree, columns=150, first=slow(owner, name))

    assert line not in quick.raw
    assert re.search(rf"\r⠙ {line} \d s\x1b\[K", ran.raw)
    assert f" {line} 1 s\x1b[K" in ran.raw
    assert (ran.code, ran.screen) == (quick.code, quick.screen)


def test_run_shows_it_too_and_leaves_nothing_to_its_command() -> None:
    first = slow(import_module("vpatch.cli.run"), "_prepared")
    ran = on_terminal("run", *ONE, "--python", sys.executable, "--", "true", columns=150, first=first)

    assert f" {COMPUTING} 1 s\x1b[K" in ran.raw
    assert not any(COMPUTING in line for line in ran.screen)


@pytest.mark.parametrize(
    ("env", "words"),
    [({"TERM": "dumb"}, ()), ({}, ("--quiet",)), ({}, ("--json",))],
    ids=["a dumb terminal", "quiet", "JSON"],
)
def test_it_stays_away(slim: Trees, env: dict[str, str], words: tuple[str, ...]) -> None:
    ran = on_terminal("status", slim("0.20.2"), *ONE, *words, env=env, first=slow(api, "status"))

    assert (ran.code, COMPARING in ran.raw) == (0, False)
    assert ("\x1b" in ran.raw) is (words == ("--quiet",))  # a color


def test_an_interrupt_leaves_no_line(slim: Trees) -> None:
    ran = on_terminal("status", slim("0.20.2"), *ONE, columns=150, first=slow(api, "status", interrupt))

    assert COMPARING in ran.raw
    assert (ran.code, [*filter(None, ran.screen[1:])]) == (130, ["interrupted"])


@pytest.mark.parametrize("columns", [20, 8])
def test_a_narrow_terminal(slim: Trees, columns: int) -> None:
    """The line never wraps, or it could not be erased."""
    tree = slim("0.20.2")
    ran = on_terminal("revert", tree, "-q", columns=columns)
    slowly = on_terminal("revert", tree, columns=columns, first=slow(api, "revert"))
    lines = re.findall("\r([⠙⠹][^\x1b]*)\x1b", slowly.raw)

    assert ran.code == slowly.code == 0
    assert lines
    assert max(map(len, lines)) < columns


def test_it_is_ascii_where_the_terminal_is(slim: Trees) -> None:
    env = {"PYTHONIOENCODING": "ascii"}

    def first() -> None:
        sys.stderr.reconfigure(encoding="ascii")  # type: ignore[union-attr]
        slow(api, "status")()

    ran = on_terminal("status", slim("0.20.2"), *ONE, env=env, first=first)
    assert re.search(rf"\r\\ {COMPARING} \d s", ran.raw)

"""Every command that a message names works when it is pasted."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.cli.conftest import rewrite
from tests.conftest import Program, Trees
from tests.test_imports import TOOL
from tests.test_project import ID, PATCH

SKIP, AUTO = "turboquant-skip-list", "turboquant-workspace"
ONE, PATCHED = f"--overlay {SKIP}", f"--patches {ID}.vpatch --overlay {ID}"
ARG_UTILS = "vllm/engine/arg_utils.py"
DRIFT = (b"existing | set(boundary)", b"existing.union(boundary)")
_COMMAND = re.compile("`(vpatch(?: [^`]+)?)`")


@dataclass(frozen=True)
class Situation:
    """What a user types, and the commands that its output must have.

    Attributes:
        typed: the command, without its first word.
        offers: each of them without its first word, in order.
        before: what was typed before. `drift` changes code that an overlay knows.
        codes: the exit codes of those among the offers that do not end with 0, by what they are.
    """

    typed: str
    offers: tuple[str, ...]
    before: tuple[str, ...] = ()
    codes: Mapping[str, int] = field(default_factory=dict)


LINE = "find \"invalid literal for int() with base 10: 'sliding_window'\""
SITUATIONS = (
    Situation(f"status {ONE}", (f"apply {ONE}",)),
    Situation(f"status {ONE} .venv", (f"apply {ONE} .venv",)),
    Situation(f"apply {ONE} --dry-run", (f"apply {ONE}",)),
    Situation(f"apply {ONE} .venv", ("revert .venv",)),
    Situation(f"verify {ONE}", (f"apply {ONE}",)),
    Situation(f"diff {ONE}", (f"apply {ONE}",)),
    Situation("status", ("show compile-cache-key", "apply --with compile-cache-key", "plan --help", "apply")),
    Situation(
        "status .venv",
        ("show compile-cache-key .venv", "apply --with compile-cache-key .venv", "plan --help", "apply .venv"),
    ),
    Situation(f"status --overlay {SKIP},{AUTO}", (f"status --overlay {SKIP} --overlay {AUTO}",)),
    Situation(f"status {SKIP}", (f"status --overlay {SKIP}",)),
    Situation(f"apply {SKIP} {AUTO}", (f"apply --overlay {SKIP} --overlay {AUTO}",)),
    Situation(f"apply {ONE} --overlay turboquant-workspace", ("apply --overlay turboquant-workspace",), ("drift",)),
    Situation("list", ("ps", "show ampere-fp8")),
    Situation(f"show {SKIP}", (f"apply {ONE}",)),
    Situation(f"show {SKIP}", (f"revert {ONE}",), (f"apply {ONE}",)),
    Situation(f"show {SKIP} .venv", (f"apply {ONE} .venv",)),
    Situation(LINE, (f"apply {ONE}", f"show {SKIP}")),
    Situation(LINE, ("doctor", f"show {SKIP}"), (f"apply {ONE}",)),
    Situation(LINE, (f"status -v {ONE}", f"show {SKIP}"), ("drift",), {f"status -v {ONE}": 1}),
    Situation("find zzzz", ("list", "doctor")),
    Situation(f"doctor {ONE}", (f"apply {ONE}",)),
    Situation("new My_Fix", ("new my-fix",)),
    # The commands before it install the overlay.
    Situation("new my-fix", ("show my-fix",), codes={"show my-fix": 2}),
    Situation("list --patches fix.py", ("new fix",)),
    Situation(f"status {PATCHED}", (f"apply {PATCHED}",)),
)
_SLOW = {"apply", "apply .venv", "doctor"}  # with all overlays


def case(one: Situation) -> ParameterSet:
    """Return a situation with its name."""
    marks = [pytest.mark.deep] if _SLOW.intersection(one.offers) else []
    return pytest.param(one, id=" after ".join([one.typed, *one.before]), marks=marks)


@pytest.fixture
def here(linked: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a virtual environment that has a vLLM, and with files that a user may name."""
    site = linked("0.20.2", ".venv/lib/python3.11/site-packages")
    (tmp_path / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    (tmp_path / f"{ID}.vpatch").write_text(PATCH)
    (tmp_path / "fix.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return site


@pytest.mark.parametrize("situation", [case(one) for one in SITUATIONS])
def test_a_command_in_a_message_works(vpatch: Program, here: Path, situation: Situation) -> None:
    """They are pasted one after the other, as a user would."""
    for words in situation.before:
        if words == "drift":
            file = here / ARG_UTILS
            rewrite(file, file.read_bytes().replace(*DRIFT))
        else:
            assert vpatch(*shlex.split(words)).code == 0
    ran = vpatch(*shlex.split(situation.typed))
    offers = _COMMAND.findall(ran.out + ran.err)

    assert offers == [f"vpatch {words}" for words in situation.offers], ran
    for offered in offers:
        pasted = vpatch(*shlex.split(offered)[1:])
        assert pasted.code == situation.codes.get(offered.removeprefix("vpatch "), 0), (offered, pasted)


def test_no_command_in_a_message_has_a_word_to_replace() -> None:
    assert [file for file in modules() if replaceable(ast.parse((TOOL / file).read_text()))] == []


def modules() -> list[str]:
    return [str(file.relative_to(TOOL)) for file in sorted(TOOL.rglob("*.py"))]


def replaceable(module: ast.Module) -> list[int]:
    """List the lines with commands that have a word in capitals, such as DIR; help texts are for reading."""
    help_texts = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(module):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in help_texts:
                found += [node.lineno] * len(re.findall(r"`vpatch [^`]*\b[A-Z]+\b[^`]*`", text))
            case ast.Call(func=ast.Name("command" | "shell") | ast.Attribute(attr="command" | "again"), args=words):
                texts = [word.value for word in words if isinstance(word, ast.Constant)]
                found += [node.lineno for text in texts if isinstance(text, str) and re.fullmatch("[A-Z/:]+", text)]
    return found

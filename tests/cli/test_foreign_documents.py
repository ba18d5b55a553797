"""Documents that users pass on from others: whatever they hold, one line says what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.test_foreign_trees import HARMS, bounded, holding
from tests.conftest import Ran
from tests.forks import output
from tests.tiers import deep

TOML = {
    "deep": holding(b"base = ", b"[" * 5_000),
    "other types": holding(b"project = 1\ntags = 2\nbase = [3]\nindex = 4\n"),
    "inner types": holding(b"[project]\nentry-points = [1]\n[[index]]\nurl = 1\n"),
}
FILES = {name: harm for name, harm in HARMS.items() if name not in {"lines", "folder"}}
JSON = {
    **FILES,
    "deep rows": holding(b'{"schema": 1, "command": "matrix", "rows": [', b"[" * 900, b"]" * 900, b"]}"),
    "infinity": holding(b'{"schema": Infinity}'),
}
KINDS = {
    "baseline": (JSON, ("matrix", "--vllm", "9.9.9", "--baseline")),
    "definition": (TOML | FILES, ("build",)),
    "project": (TOML | FILES, ("new", "my-fix")),
    "settings": (TOML | FILES, ("fetch", "9.9.9", "new")),
    "log": (FILES, ("plan", "--log")),
    "config": (JSON, ("plan", "--model")),
}
EVERY = [(kind, harm) for kind, (harms, _) in KINDS.items() for harm in harms]
NAMES = {"project": "pyproject.toml", "definition": "one.toml", "config": "config.json"}


def ran(kind: str, harm: str, folder: Path) -> Ran:
    harms, command = KINDS[kind]
    file = folder / NAMES.get(kind, "file")
    harms[harm](file)
    last = [] if kind == "settings" else [folder if kind in {"project", "config"} else file]
    env = {"UV_CONFIG_FILE": str(file) if kind == "settings" else "", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}

    def first() -> None:
        os.chdir(folder)
        bounded()

    return Ran(*output(*command, *last, "--json", env=env, first=first))


def fine(one: Ran) -> bool:
    return one.code in {0, 1, 2} and "Traceback" not in one.err and len(one.err) < 4_000


@pytest.mark.parametrize(("kind", "harm"), [case if not n % 11 else deep(*case) for n, case in enumerate(EVERY)])
def test_no_command_hangs_or_breaks_on_a_document(tmp_path: Path, kind: str, harm: str) -> None:
    found = ran(kind, harm, tmp_path)

    assert fine(found), found

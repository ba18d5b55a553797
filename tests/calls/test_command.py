"""`python -m vpatch.calls` answers what it cannot do in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from vpatch.calls.__main__ import main
from vpatch.core.verdict import UNPROVED

from tests.conftest import Program
from tests.hybrid import INTERFACE
from tests.releases import tree_of

CALLING = f"""Format: 1
Subject: Call a method of the module
Base: 0.20.2

--- {INTERFACE}
@@ Platform.get_cpu_architecture
-machine = platform.machine().lower()
+machine = platform.machine().lower() if cls.is_cuda() else ""
"""

CASES = {
    "no such overlay": (["nope"], "Error: no such overlay: nope: "),
    "no version": (["receipt", "-r", "abc"], "Error: not a version: abc: a release reads like 0.20.2\n"),
    "no vLLM there": (["receipt", "-r", "/nowhere/"], "Error: no vllm: /nowhere: no such folder\n"),
    "not pending": (
        ["hybrid-mtp-prefix", "-r", "RELEASE"],
        "hybrid-mtp-prefix: nothing recorded: by its `releases`, it is pending on none of these releases\n",
    ),
}


@pytest.mark.parametrize(("arguments", "says"), CASES.values(), ids=CASES)
def test_what_it_cannot_do(arguments: list[str], says: str) -> None:
    ran = CliRunner().invoke(main, [str(tree_of("0.33.0")) if one == "RELEASE" else one for one in arguments])

    assert says in ran.output
    assert ran.exit_code == 1


def test_without_jedi(tmp_path: Path) -> None:
    """Only `--help` works; the message has the command that adds it."""
    (tmp_path / "jedi.py").write_text("raise ImportError('no jedi')\n")
    program = [sys.executable, "-m", "vpatch.calls"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    for words, code, says in ((["--help"], 0, ""), (["receipt"], 1, "Error: cannot record: jedi: not installed: `")):
        ran = subprocess.run([*program, *words], env=environment, capture_output=True, text=True, check=False)

        assert (ran.returncode, ran.stderr[: len(says) or None]) == (code, says)
        assert ("[calls]" in ran.stderr, ran.stderr.count("\n")) == (code == 1, code)


PATCH = """\
Format: 1
Subject: Say what is known.
Base: 1.0
{}
--- vllm/names.py
@@ known
+print(len(name), add(name))
 return name
"""
MODULES = {
    "vllm/__init__.py": "",
    "vllm/config/__init__.py": "",
    "vllm/names.py": "def add(name: str) -> None: ...\ndef known(name: str) -> str:\n    return name\n",
}
NONE = "names: nothing recorded: by its `Releases` and `Base`, it is pending on none of these releases\n"


@pytest.mark.parametrize(
    ("field", "words", "code", "says"),
    [
        ("", (), 0, "patches/_calls/names.json\nnames: 1 callee on 1.0\n"),
        ("", ("-r", "1.0"), 0, "patches/_calls/names.json\nnames: 1 callee on 1.0\n"),
        ("Releases: 2.0 merged\n", (), 0, "patches/_calls/names.json\nnames: 1 callee on 1.0\n"),
        ("Releases: 1.0 merged\n", (), 1, NONE),
        ("", ("-r", "2.0"), 1, NONE),
    ],
)
def test_a_patch_file_is_pending_on_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, words: tuple[str, ...], code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for version in ("1.0", "2.0"):
        info = {f"vllm-{version}.dist-info/METADATA": "Name: vllm\n"}
        for path, text in {**MODULES, **info}.items():
            (file := tmp_path / version / path).parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    Path("patches").mkdir()
    Path("patches/names.vpatch").write_text(PATCH.format(field))
    Path("vpatch.toml").write_text('patches = ["patches"]\n')

    ran = CliRunner().invoke(main, ["names", "--trees", str(tmp_path), *words])

    assert (ran.exit_code, ran.output.partition(" ...\n")[2]) == (code, says)
    assert Path("patches/_calls/names.json").exists() == (code == 0)


def test_the_list_of_a_patch_file_in_the_current_folder(
    vpatch: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies beside the patch file. That a callee has a new body is a note of `-v`."""
    (tmp_path / "mine.vpatch").write_text(CALLING)
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(main, ["--patches", str(tmp_path), "mine", "-r", str(tree_of("0.20.2"))])
    assert ran.exit_code == 0, ran.output
    known = json.loads((path := tmp_path / "_calls/mine.json").read_text())
    (call,) = known["code"]["patch 0.20.2"]["calls"].values()
    call["interfaces"] = {key: ["00000000"] for key in call["interfaces"]}
    path.write_text(json.dumps({**known, "known": {}}))

    words = ("status", "--patches", "mine.vpatch", tree_of("0.20.2"), "--overlay", "mine")
    note = f"mine: `Platform.is_cuda` of {INTERFACE}, which it calls, {UNPROVED}"
    assert "note: " not in vpatch(*words).err
    assert f"note: {note}\n" in vpatch(*words, "-v").err
    assert vpatch(*words, "--json").json["notes"] == [note]

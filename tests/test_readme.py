"""README's tables, diff and pictures are what vpatch makes today, and its first command is quick when repeated."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vpatch import api

from tests.blocks import put
from tests.conftest import Trees
from tests.hybrid import COUNT
from tests.paths import ROOT
from tests.readme import README, STALE, overlays
from tests.recording import THEMES, drawn, path, recorded, texts
from tests.releases import FACTS, RELEASES

PYTHON = ROOT / "docs/python.md"


def test_patching_from_python(
    linked: Trees, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The interpreter that runs the example imports vLLM from a copy of the release."""
    monkeypatch.setenv("PYTHONPATH", str(linked("0.20.2")))
    names: dict[str, Any] = {}
    (code,) = re.findall(r"^```python\n(.*?)^```$", PYTHON.read_text(), re.MULTILINE | re.DOTALL)
    exec(code, names)  # noqa: S102 - the example
    for changed in (r"[1-9]\d*", "0"):
        names["patch_vllm"]()
        assert re.fullmatch(rf"vLLM 0\.20\.2: {changed} files changed\n", capsys.readouterr().out)


def test_the_diff_is_what_vpatch_makes(pristine: Trees) -> None:
    """README shows a hunk of a real diff."""
    (shown,) = re.findall(r"^```diff\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)

    made = "\n".join(api.diff(pristine("0.20.2"), ["turboquant-skip-list"]).lines)
    header, hunk = shown.split("@@", 1)
    assert header in made
    assert f"@@{hunk}" in f"{made}\n"


@pytest.mark.deep
def test_the_recording_is_what_vpatch_prints() -> None:
    """The pictures show what the commands print today, in the colors of both themes, and load nothing."""
    screen = recorded()

    for theme in THEMES:
        picture = path(theme).read_text()
        assert list(texts(picture)) == list(texts(drawn(screen, theme))), "run `python -m tests.recording`"
        assert not re.search(r"url\((?!#)|@import|@font-face|href=|<script", picture)


@pytest.mark.deep
def test_the_first_command_does_its_work_once(tmp_path: Path, slim: Trees) -> None:
    """Repeated, README's first command neither installs nor downloads: both programs may be missing."""
    (command,) = re.findall(r"<!-- demo -->\n```sh\n(.*?)```", README.read_text(), re.DOTALL)
    shutil.copytree(slim("0.20.2"), tmp_path / "vllm-0.20.2")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    refuse = tmp_path / "bin/python3"
    refuse.parent.mkdir()
    refuse.write_text("#!/bin/sh\necho it installs >&2\nexit 1\n")
    refuse.chmod(0o755)

    environment = {**os.environ, "PATH": f"{refuse.parent}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path)}
    ran = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)  # noqa: PLW1510

    assert ran.returncode == 0, ran.stderr
    assert "it installs" not in ran.stderr
    assert f"Applied {COUNT} overlays" in ran.stderr


def test_the_picture_of_the_matrix_has_every_overlay_and_release() -> None:
    """`vpatch matrix --html PAGE.html` and `python -m tests.matrix.browser PAGE.html docs/matrix.png` make it."""
    says = f"a heat map of {len(FACTS)} overlays on {len(RELEASES)} releases, with the reason behind one cell]"

    assert f"{says}(matrix.png)" in (ROOT / "docs/matrix.md").read_text()


def test_it_is_short_and_its_table_of_overlays_is_fresh() -> None:
    text = README.read_text()
    stale = text.replace("| `turboquant-hybrid` | 0", "| `turboquant-hybrids` | 0", 1)

    assert len(text.splitlines()) <= 150
    assert stale != text == put(stale, "overlays", overlays()), STALE

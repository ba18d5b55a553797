"""README's tables agree with the overlays, and its Python examples do what the text says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from vpatch import Overlay
from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State
from vpatch.tree.locate import locate

from tests.blocks import put
from tests.conftest import Trees
from tests.readme import README, STALE, overlays


def example(containing: str) -> str:
    """Return the one Python example that contains a text."""
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    found: str
    (found,) = (block for block in blocks if containing in block)
    return found


def test_patching_from_python(
    linked: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The interpreter that runs the example imports vLLM from a copy of the release."""
    monkeypatch.setenv("PYTHONPATH", str(linked("0.21.0")))
    names: dict[str, Any] = {}
    exec(example("vpatch.apply("), names)  # noqa: S102 - the example
    for changed in (r"[1-9]\d*", "0"):
        names["patch_vllm"]()
        assert re.fullmatch(rf"vLLM 0\.21\.0: {changed} files changed\n", capsys.readouterr().out)


def test_the_example_of_an_overlay(pristine: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "third_party")
    names: dict[str, Any] = {}
    code = example("overlay = Overlay(").replace("my_overlays.companions", "vpatch_machine_names.companions")
    exec(code, names)  # noqa: S102 - the example
    made: Overlay = names["overlay"]

    for release in ("0.18.0", "0.26.0", "0.33.0"):
        changeset = Engine([Catalogued("my-fix", made, "")]).plan(locate(pristine(release)).read)
        assert [verdict.state for verdict in changeset.after] == [State.APPLIED]
    assert "my-fix" not in {item.id for item in discover()}


def test_the_table_of_overlays_is_fresh() -> None:
    text = README.read_text()

    assert text == put(text, "overlays", overlays()), STALE


def test_a_stale_table_is_found() -> None:
    text = README.read_text()
    stale = text.replace("| `turboquant-hybrid` |", "| `turboquant-hybrids` |", 1)

    assert stale != text
    assert put(stale, "overlays", overlays()) == text

"""The plan beside the starts of vLLM that people published: docs/starts, and what docs/plan.md says of them."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from vpatch.errors import Failure

from benchmarks.calibrate import STARTS, Row, line, rows
from tests.paths import ROOT

FOLDERS = ("held-out", "calibration")
OTHER_LAYOUT = {
    # The author's sentence has the KV cache with two digits, and the tokens of another start.
    "idx61972307986-qwen3.8-27b-fp8-l40s-seqs16",
    "repofile-61316607224-qwen3.8-27b-gb10-32k",
}


@cache
def planned(folder: str) -> tuple[Row, ...]:
    return tuple(row for row in rows(STARTS / folder) if isinstance(row, Row))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_record_has_its_source_and_the_lines(folder: str) -> None:
    records = [json.loads(path.read_text()) for path in (STARTS / folder).glob("*.json")]

    assert all(record["source"] and record["log"] and record["vllm"] and record["gpu"] for record in records)


def test_no_start_is_in_both() -> None:
    held, others = ({path.name for path in (STARTS / folder).glob("*.json")} for folder in FOLDERS)

    assert not held & others


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_vllm_counted_is_within_the_bounds(folder: str) -> None:
    assert [row.name for row in planned(folder) if row.within is False] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_layout_is_exact(folder: str) -> None:
    assert {row.name for row in planned(folder) if row.exact is False} <= OTHER_LAYOUT


def test_no_false_fit() -> None:
    assert [row.name for row in planned("held-out") if row.false_fit or not row.right] == []


def test_the_page_has_the_table() -> None:
    """The page joins families; each number is that of a line of the command."""
    page = (ROOT / "docs/plan.md").read_text()
    found = planned("held-out")
    joined = {
        "dense and MoE, data center": [row for row in found if row.cards.startswith("data center")],
        "dense, consumer and workstation cards": [row for row in found if row.cards.startswith("consumer")],
        "hybrid, GB10": [row for row in found if row.cards.startswith("unified")],
    }
    for name, some in joined.items():
        _, count, middle, most, worst, inside, *_ = line(name, some)
        (cells,) = re.findall(rf"^\| {name} \| (.*) \|$", page, re.MULTILINE)
        shown = [cell.replace(" %", "%") for cell in cells.split(" | ")]
        assert shown[:5] == [count, middle, most, worst.partition(" ")[0], inside]
    assert sum(map(len, joined.values())) == len(found)
    counts = [len(list((STARTS / folder).glob("*.json"))) for folder in FOLDERS]
    assert f"`docs/starts` has {sum(counts)} starts" in page
    assert f"{len(found)} of the {counts[0]} held-out" in " ".join(page.split())


def test_a_record_that_is_of_no_use_says_why(tmp_path: Path) -> None:
    record = json.loads(next((STARTS / "held-out").glob("tokenkaki*.json")).read_text())
    (tmp_path / "one.json").write_text(json.dumps(record | {"log": []}))
    (tmp_path / "two.json").write_text(json.dumps(record | {"shape": None}))

    failures = [str(found) for found in rows(tmp_path) if isinstance(found, Failure)]
    assert failures[0] == "cannot use this log: one: it is empty"
    assert failures[1].startswith("unknown shape: ")

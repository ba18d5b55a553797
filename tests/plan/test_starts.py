"""The plan beside the starts of vLLM that people published: docs/starts, and what docs/plan.md says of them."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.calibrate import STARTS, Row, line, rows
from tests.paths import ROOT

FOLDERS = ("held-out", "calibration")
# Starts that the plan's bounds do not contain, each with the cause as far as it is known; the plan's page names them.
OUTSIDE = {
    "recipes-831-qwen3.8-27b-bf16-pro6000-refused": "a build of vLLM's own, which takes 7 GiB more than 0.27.1 does",
    "recipes-831-qwen3.8-27b-fp8-pro6000-refused": "the same",
    "repofile-60879798178-gemma-4-31b-l4-refused": "the embeddings were copied, as if the model had no vision tower",
    "repofile-69080973712-qwen3.5-0.8b-a100-serve": "2.5 GiB besides tensors, of a model of 1.7 GiB",
}
# A start that was refused, and the plan says `tight`; and one that the plan refuses, for 0.44 GiB.
TIGHT, REFUSED = {"recipes-831-qwen3.8-27b-fp8-pro6000-refused"}, {"repofile-60879798178-gemma-4-31b-l4-eager"}


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
    assert {row.name for row in planned(folder) if row.within is False} <= set(OUTSIDE)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_layout_is_exact(folder: str) -> None:
    assert [row.name for row in planned(folder) if row.exact is False] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_false_fit(folder: str) -> None:
    wrong = {row.name for row in planned(folder) if row.right is False}

    assert not any(row.false_fit for row in planned(folder))
    assert wrong <= TIGHT | REFUSED


def test_the_page_has_the_table() -> None:
    """The page joins families; each number is that of a line of the command."""
    page = (ROOT / "docs/plan.md").read_text()
    found = planned("held-out")
    places = {"data center": "data center", "consumer": "consumer and workstation cards", "unified": "GB10"}
    joined = {
        f"{kind}, {place}": [
            row for row in found if row.cards.startswith(start) and row.cards.endswith("hybrid") is hybrid
        ]
        for start, place in places.items()
        for kind, hybrid in (("dense and MoE", False), ("hybrid", True))
        if (start, hybrid) != ("unified", False)
    }
    for name, some in joined.items():
        _, count, middle, most, worst, inside, _, right = line(name, some)
        (cells,) = re.findall(rf"^\| {name} \| (.*) \|$", page, re.MULTILINE)
        shown = [cell.replace(" %", "%") for cell in cells.split(" | ")]
        assert shown == [
            count,
            middle,
            most,
            worst.partition(" ")[0],
            inside,
            right.replace(" 1 false fits", " 1 false fit"),
        ]
    assert sum(map(len, joined.values())) == len(found)
    counts = [len(list((STARTS / folder).glob("*.json"))) for folder in FOLDERS]
    assert f"`docs/starts` has {sum(counts)} starts" in page
    assert f"{len(found)} of the {counts[0]} held-out" in " ".join(page.split())


RECORD = STARTS / "held-out/tokenkaki-qwen3-8b-a100-40.json"
BLOCKS = {"arguments": json.loads(RECORD.read_text())["arguments"] | {"block_size": 32}}
WORDS = {"told": {"kv_cache_gib": 19.36}, "vllm": "0.1.dev3+gabc", "planned_as": "0.19.1", "log": ["19.36 GiB"]}


@pytest.mark.parametrize(
    ("change", "numbers"),
    [
        (BLOCKS, {"weights", "KV cache"}),  # blocks of another size are compared by their memory alone
        (WORDS, {"KV cache"}),  # a record of an author's words has the numbers in them
    ],
)
def test_a_record_that_has_less(tmp_path: Path, change: dict[str, Any], numbers: set[str]) -> None:
    (tmp_path / "one.json").write_text(json.dumps(json.loads(RECORD.read_text()) | change))

    (row,) = rows(tmp_path)
    assert isinstance(row, Row)
    assert (row.error is not None, row.exact) == (True, None)
    assert {one.name for one in row.found.numbers} & {"weights", "KV cache", "tokens"} == numbers

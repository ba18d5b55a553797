"""The server of the processes in which probes run, and environments that cannot be built."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.validation.cpu import client, environment

pytestmark = pytest.mark.deep


def test_a_server_ends_with_its_last_client(tmp_path: Path) -> None:
    lease, process = client._start(environment.interpreter("0.20.2"), tmp_path / "socket")
    lease.close()

    _, status = os.waitpid(process, 0)
    assert status


def test_what_cannot_be_fetched_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "CACHE", tmp_path)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {"CONFIG_FILE": os.devnull, "INDEX_URL": "http://127.0.0.1:9/simple", "RETRIES": "0"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)

    message = r"cannot install requirements\.txt for the tests on the real vLLM: No matching distribution found for \w+"
    with pytest.raises(RuntimeError) as failed:
        environment._build.__wrapped__(*environment.SHARED)
    assert re.fullmatch(message, str(failed.value))

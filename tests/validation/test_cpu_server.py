"""The processes in which probes run, and the environments that cannot be built."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.releases import tree_of
from tests.validation.cpu import client, environment
from tests.validation.cpu.comparison import ran
from tests.validation.cpu.trees import patched_tree

RELEASE = "0.20.2"


def test_a_probe_that_fails_is_reported_with_what_it_wrote() -> None:
    with pytest.raises(AssertionError, match=r"(?s)no_such_probe on .*No module named"):
        ran("no_such_probe", RELEASE, tree_of(RELEASE))


def test_a_vllm_that_cannot_be_imported_is_reported(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("raise ImportError('of no use')")

    with pytest.raises(AssertionError, match="of no use"):
        ran("nothing", RELEASE, tmp_path)


@pytest.mark.deep
def test_a_server_ends_with_its_last_client(tmp_path: Path) -> None:
    lease, process = client._start(environment.interpreter(RELEASE), tmp_path / "socket")
    lease.close()

    _, status = os.waitpid(process, 0)
    assert status


def test_a_patched_tree_shares_what_overlays_leave_alone() -> None:
    pristine, patched = tree_of(RELEASE), patched_tree(RELEASE, "turboquant-hybrid")
    alone, changed = Path("vllm/envs.py"), Path("vllm/engine/arg_utils.py")

    assert (patched / alone).samefile(pristine / alone)
    assert (patched / changed).read_bytes() != (pristine / changed).read_bytes()


@pytest.mark.deep
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

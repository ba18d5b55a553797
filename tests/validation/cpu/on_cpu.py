"""Run pytest on vLLM's own tests without their conftest.py, which has many more requirements."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator

import pytest

from tests.paths import ROOT
from tests.validation.cpu.platform import single_rank, stand_in_for_torchvision


class Fixtures:
    """The fixtures of vLLM's conftest.py for tests that need no model and no GPU."""

    @pytest.fixture
    def default_vllm_config(self) -> Iterator[None]:
        from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

        with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
            yield

    @pytest.fixture
    def dist_init(self, default_vllm_config: None) -> Iterator[None]:
        from vllm.distributed import parallel_state

        with tempfile.TemporaryDirectory() as folder:
            single_rank(folder)
            yield
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()


def main(_home: str, *arguments: str) -> None:
    """Run pytest, which writes a report.

    Raises:
        SystemExit: it did not run all tests.
    """
    stand_in_for_torchvision()
    # vLLM's tests are a package `tests`, too.
    sys.path[:] = [folder for folder in sys.path if folder != str(ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    if (status := pytest.main(["--noconftest", *arguments], plugins=[Fixtures()])) not in (0, 1):
        raise SystemExit(f"pytest: exit status {status}")

"""Fixtures of the tests of overlays on the real vLLM."""

from __future__ import annotations

import pytest

from tests.validation.cpu import models


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the models' configs: one for all tests, since its path is part of what vLLM makes of them."""
    return str(models.write(tmp_path_factory.mktemp("models")))

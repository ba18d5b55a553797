"""The machine that recipes run on: its programs, an index, a repository, and nothing of the user who runs the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Trees
from tests.docs.packages import VPATCH, instead, package_index, repository

Machine = dict[str, str]
"""The variables of a shell's environment."""


@contextmanager
def machine_in(folder: Path, trees: Callable[[str], Path]) -> Iterator[Machine]:
    """Set up a machine; its index has releases of vLLM from `trees`, and git takes a copy of vpatch for its address."""
    sources = repository(folder / "vpatch")
    with package_index(trees) as index:
        yield {
            "PATH": programs(folder / "bin"),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_INDEX_URL": index,
            "PIP_NO_COMPILE": "1",  # most modules are never imported
            "PIP_REQUIRE_VIRTUALENV": "1",  # nothing is installed outside of a page's environments, whatever fails
            "UV_CACHE_DIR": str(folder / "uv"),
            "UV_DEFAULT_INDEX": index,
            "UV_NO_CONFIG": "1",
            "UV_NO_GITHUB_FAST_PATH": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            **{name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},  # of the Python
            **instead({VPATCH: sources}),
        }


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory, slim: Trees) -> Iterator[Machine]:
    """A machine whose vLLMs have the files that overlays read."""
    with machine_in(tmp_path_factory.mktemp("machine"), slim) as made:
        yield made


def programs(folder: Path) -> str:
    """Return a PATH with `python3`, uv and the system's programs: no other Python, and no vpatch."""
    folder.mkdir()
    (folder / "python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    for name in ("uv", "uvx"):
        (folder / name).symlink_to(Path(sys.executable).with_name(name))
    return f"{folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

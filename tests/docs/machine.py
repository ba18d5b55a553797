"""The machine that recipes run on: its programs, a package index on loopback, a repository, and nothing of the user."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from urllib.parse import unquote

import pytest

from tests.conftest import Trees
from tests.loopback import Handler, IndexServer, listening
from tests.matrix.git_server import git
from tests.paths import ROOT, copy_sources
from tests.releases import tree_of
from tests.test_package import BUILDING, hatch
from tests.wheels import wheel_of, wheel_of_installed

Machine = dict[str, str]
"""The variables of a shell's environment."""

RELEASES = ("0.20.2", "0.26.0")
"""The releases of vLLM on the index: their Python files that overlays read, without dependencies."""

OF_WALKS = ("0.20.2", "0.22.1", "0.24.0", "0.26.0")
"""The releases on the index of the pages of first hours: whole, but for compiled code and dependencies."""

KERNELS = "vllm/third_party/deep_gemm/include/deep_gemm/impls"
"""A folder of the wheel by whose names an overlay tells what the release needs."""

VPATCH = "https://github.com/vpatch/vpatch"


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory, slim: Trees) -> Iterator[Machine]:
    """A machine whose vLLMs have the files that overlays read."""
    with machine_in(tmp_path_factory.mktemp("machine"), slim) as made:
        yield made


@contextmanager
def walking_machine_in(folder: Path) -> Iterator[Machine]:
    """Set up a machine for the pages of first hours: with whole vLLMs, and with the tests of vpatch in its clone."""
    with machine_in(folder, tree_of, OF_WALKS, named=KERNELS, more=("tests", "CONTRIBUTING.md")) as made:
        yield made


@contextmanager
def machine_in(
    folder: Path,
    trees: Callable[[str], Path],
    releases: Sequence[str] = RELEASES,
    *,
    named: str = "",
    more: Sequence[str] = (),
) -> Iterator[Machine]:
    """Set up a machine.

    Args:
        folder: where its files are.
        trees: returns a release of vLLM, which its index has.
        releases: those of the index.
        named: of these, a folder of which the names of the files count, see `wheel_of`.
        more: what the copy of vpatch, which git takes for its address, has beside the sources.
    """
    sources, programs = folder / "vpatch", folder / "bin"
    copy_sources(sources, ("builder", "patches", *BUILDING, *more))
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "Sources")):
        git(sources, *words)
    programs.mkdir()  # no other Python, and no vpatch
    (programs / "python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    for name in ("uv", "uvx"):
        (programs / name).symlink_to(Path(sys.executable).with_name(name))
    with package_index(trees, releases, named) as index:
        yield {
            "PATH": f"{programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
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
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.file://{sources}.insteadOf",
            "GIT_CONFIG_VALUE_0": VPATCH,
            **{name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},  # of the Python
        }


@contextmanager
def package_index(trees: Callable[[str], Path], releases: Sequence[str] = RELEASES, named: str = "") -> Iterator[str]:
    """Serve vLLM, vpatch and the packages of this environment; yield the URL of the index."""
    state = IndexServer()
    for release in releases:
        state.publish(f"vllm-{release}-py3-none-any.whl", wheel_of(trees(release), named))
    with listening(_OnDemand, index=state, one_at_a_time=Lock()) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        yield f"{state.url}/simple/"


class _OnDemand(Handler):
    """Packs a project of this environment when it is asked for first."""

    one_at_a_time: Lock

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        self.path = unquote(self.path)
        with self.one_at_a_time:  # a page lists all files
            _, kind, project, *_ = self.path.split("/")
            if kind == "simple" and project not in self.index.projects:
                with suppress(PackageNotFoundError):
                    self.index.publish(*_wheel(project))
                    self.index.projects.add(project)
            super().do_GET()

    def do_HEAD(self) -> None:  # noqa: N802 - the library's name
        """uv asks for a file's size before it reads the metadata by a range."""
        data = self.index.files[self.path.rpartition("/")[2]]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()


def _wheel(project: str) -> tuple[str, bytes]:
    if project != "vpatch":
        return wheel_of_installed(project)
    with TemporaryDirectory() as folder:
        hatch(ROOT, "build", "-t", "wheel", "-d", folder)
        (wheel,) = Path(folder).iterdir()
        return wheel.name, wheel.read_bytes()

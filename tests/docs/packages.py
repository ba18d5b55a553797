"""A package index on loopback and a git server's stand-in: they have what recipes install, and need no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from urllib.parse import unquote

from tests.loopback import Handler, IndexServer, listening
from tests.matrix.git_server import git
from tests.paths import ROOT, copy_sources
from tests.test_package import BUILDING, hatch
from tests.wheels import wheel_of, wheel_of_installed

RELEASES = ("0.20.2", "0.26.0")
"""The releases of vLLM on the index: their Python files that overlays read, without dependencies."""

VPATCH = "https://github.com/vpatch/vpatch"
SOURCES = ("builder", "patches", *BUILDING)


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


@contextmanager
def package_index(trees: Callable[[str], Path]) -> Iterator[str]:
    """Serve vLLM, vpatch and the packages of this environment; yield the URL of the index."""
    state = IndexServer()
    for release in RELEASES:
        state.publish(f"vllm-{release}-py3-none-any.whl", wheel_of(trees(release)))
    with listening(_OnDemand, index=state, one_at_a_time=Lock()) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        yield f"{state.url}/simple/"


def repository(folder: Path) -> Path:
    """Commit what vpatch is built from, as it is in the working tree, to a new git repository."""
    copy_sources(folder, SOURCES)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Sources")
    return folder


def instead(urls: Mapping[str, Path]) -> dict[str, str]:
    """Return the environment variables by which git takes folders for URLs."""
    found = {"GIT_CONFIG_COUNT": str(len(urls)), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    for number, (url, folder) in enumerate(urls.items()):
        found |= {f"GIT_CONFIG_KEY_{number}": f"url.file://{folder}.insteadOf", f"GIT_CONFIG_VALUE_{number}": url}
    return found

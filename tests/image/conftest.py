"""Fixtures for images: an engine with a base, and registries, started for the tests and stopped at the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import docker
import pytest

from tests.image.dockerd import docker_engine, missing
from tests.image.registries import serving
from tests.image.standin import SITE, archive, imported, python_root

BASE = "vllm/vllm-openai:v0.20.2"

Tar = Callable[..., Path]


@pytest.fixture(scope="session")
def engine_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start an engine for this test process."""
    if lacks := missing():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(lacks)
    with docker_engine(tmp_path_factory.mktemp("engine")) as address:
        yield address


@pytest.fixture(scope="session")
def client(engine_address: str) -> Iterator[docker.DockerClient]:
    """Return a client of the engine."""
    made = docker.DockerClient(base_url=engine_address)
    yield made
    made.close()


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay out a Python for images."""
    root = tmp_path_factory.mktemp("standin") / "root"
    python_root(root)
    return root


@pytest.fixture(scope="session")
def base(
    client: docker.DockerClient,
    interpreter: Path,
    pristine: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """Make the stand-in for vllm/vllm-openai:v0.20.2; return its name."""
    tar = archive(tmp_path_factory.mktemp("base") / "base.tar", (interpreter, ""), (pristine("0.20.2"), SITE))
    imported(client, tar, BASE)
    tar.unlink()
    return BASE


@pytest.fixture
def engine(engine_address: str, client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch) -> docker.DockerClient:
    """Let the program find the engine; return a client of it."""
    monkeypatch.setenv("DOCKER_HOST", engine_address)
    return client


@pytest.fixture
def small(
    engine: docker.DockerClient, interpreter: Path, slim: Callable[[str], Path], tmp_path: Path
) -> Iterator[Callable[..., str]]:
    """`small("try:two", ("0.20.2", "opt/venv/lib/python3.12/site-packages"))`: an image of a few files; returns its ID.

    It has no interpreter unless `python` is true, so it can be read but not run.
    """
    made: list[str] = []

    def make(name: str, *trees: tuple[str | Path, str], python: bool = False) -> str:
        parts = [(tree if isinstance(tree, Path) else slim(tree), at) for tree, at in trees]
        root = tmp_path / "root"
        (root / "usr/bin").mkdir(parents=True, exist_ok=True)
        (root / "usr/bin/python3").touch()
        tar = archive(tmp_path / "small.tar", (interpreter if python else root, ""), *parts)
        made.append(name)
        return imported(engine, tar, name)

    yield make
    for name in made:
        engine.api.remove_image(name, force=True)
    shutil.rmtree(tmp_path / "root", ignore_errors=True)


@pytest.fixture
def left(engine: docker.DockerClient) -> Callable[[], tuple[list[str], list[object]]]:
    """Return what `docker ps -a` and `docker images -a` would show."""

    def look() -> tuple[list[str], list[object]]:
        containers = sorted(one["Id"] for one in engine.api.containers(all=True))
        images = sorted((one["Id"], one["RepoTags"]) for one in engine.api.images(all=True))
        return containers, list(images)

    return look


@pytest.fixture(scope="session")
def start_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """`start_registry("auth: ...")`: start another registry, with more configuration; return `host:port`."""
    if not shutil.which("docker-registry"):
        pytest.skip("there is no docker-registry: .ci/run installs one")
    with ExitStack() as running:
        yield lambda more: running.enter_context(serving(tmp_path_factory.mktemp("registry"), more))


@pytest.fixture(scope="session")
def registry(start_registry: Callable[[str], str]) -> str:
    """A registry without access control, as `host:port`; each test uses its own repository."""
    return start_registry("")

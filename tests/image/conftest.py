"""Fixtures for images: an engine with a base, and registries, started for the tests and stopped at the end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import docker
import pytest

from tests.conftest import Program, Ran, Trees
from tests.engines import engine_of
from tests.image.servers import ENGINE, docker_engine, docker_registry
from tests.image.standin import BASE, SITE, archive, imported, layered, python_root
from tests.needs import need
from tests.paths import link

PYTHON = "try:python"

Small = Callable[..., str]
Left = Callable[[], tuple[list[str], list[object]]]


@pytest.fixture(scope="session", autouse=True)
def _one_engine_of_overlays() -> Iterator[None]:
    """Let builds in this process share what they have parsed."""
    with pytest.MonkeyPatch.context() as patch:
        for way in ("engine", "registry"):
            patch.setattr(f"vpatch.image.{way}.build.Engine", engine_of)
        yield


@pytest.fixture(scope="session")
def engine_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start an engine for this test process."""
    need(*ENGINE)
    folder = tmp_path_factory.mktemp("engine")
    with docker_engine(folder) as address:
        yield address
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def client(engine_address: str) -> Iterator[docker.DockerClient]:
    made = docker.DockerClient(base_url=engine_address)
    yield made
    made.close()


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("standin") / "root"
    python_root(root)
    return root


@pytest.fixture(scope="session")
def python(client: docker.DockerClient, interpreter: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make an image with an interpreter and without vLLM, for others to build on; return its name."""
    tar = archive(tmp_path_factory.mktemp("python") / "python.tar", (interpreter, ""))
    imported(client, tar, PYTHON)
    tar.unlink()
    return PYTHON


@pytest.fixture(scope="session")
def sources(slim: Trees, pristine: Trees, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vLLM 0.20.2: the files that overlays read, and those that an import runs before it finds no torch."""
    tree = shutil.copytree(slim("0.20.2"), tmp_path_factory.mktemp("sources") / "tree", copy_function=link)
    for name in ("version.py", "_version.py", "env_override.py"):
        if not (tree / "vllm" / name).exists():
            link(str(pristine("0.20.2") / "vllm" / name), str(tree / "vllm" / name))
    return tree


@pytest.fixture(scope="session")
def base(client: docker.DockerClient, python: str, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make the stand-in for vllm/vllm-openai:v0.20.2; return its name."""
    layered(client, archive(tmp_path_factory.mktemp("base") / "base.tar", (sources, SITE)), python, BASE)
    return BASE


@pytest.fixture
def engine(engine_address: str, client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch) -> docker.DockerClient:
    """Let the program find the engine; return a client of it."""
    monkeypatch.setenv("DOCKER_HOST", engine_address)
    return client


@pytest.fixture
def small(engine: docker.DockerClient, slim: Trees, tmp_path: Path) -> Small:
    """`small("try:two", ("0.20.2", "opt/venv/lib/python3.12/site-packages"))`: an image of a few files; returns its ID.

    It has no interpreter, so it can be read but not run, unless it is built on the image `below`.
    """

    def make(name: str, *trees: tuple[str | Path, str], below: str = "") -> str:
        parts = [(tree if isinstance(tree, Path) else slim(tree), at) for tree, at in trees]
        if below:
            return layered(engine, archive(tmp_path / "small.tar", *parts), below, name)
        root = tmp_path / "root"
        (root / "usr/bin").mkdir(parents=True, exist_ok=True)
        (root / "usr/bin/python3").touch()
        return imported(engine, archive(tmp_path / "small.tar", (root, ""), *parts), name)

    return make


@pytest.fixture
def left(engine: docker.DockerClient) -> Left:
    """Return what `docker ps -a` and `docker images -a` would show."""

    def look() -> tuple[list[str], list[object]]:
        containers = sorted(one["Id"] for one in engine.api.containers(all=True))
        images = sorted((one["Id"], one["RepoTags"]) for one in engine.api.images(all=True))
        return containers, list(images)

    return look


@pytest.fixture
def refused(vpatch: Program, left: Left) -> Program:
    """`refused("build", ...)`: run the program, which must fail, leave nothing in the engine, and print the error."""

    def run(*arguments: str | Path) -> Ran:
        before = left()
        ran = vpatch(*arguments, "--quiet")
        assert ran.code == 1
        assert left() == before
        return ran

    return run


@pytest.fixture(scope="session")
def start_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """`start_registry("auth: ...")`: start another registry, with more configuration; return `host:port`."""
    need("docker-registry", "setpriv")
    with ExitStack() as running:
        yield lambda more: running.enter_context(docker_registry(tmp_path_factory.mktemp("registry"), more))


@pytest.fixture(scope="session")
def registry(start_registry: Callable[[str], str]) -> str:
    """A registry without access control, as `host:port`; each test uses its own repository."""
    return start_registry("")

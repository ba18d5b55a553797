"""A user with empty settings, and servers in front of the registry that can fail."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from vpatch.image.registry.image import RemoteImage
from vpatch.net import session

from tests.conftest import Program, Ran, Trees
from tests.image.registry.images import BALLAST, Base, build, opened, parents, put_base, put_image, tar
from tests.image.registry.proxy import Proxy, proxying
from tests.image.standin import SITE, archive

USER, SECRET = "user", "s3cret-of-the-tests"
CODED = base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
# Only bcrypt is known to the registry, and Python has none.
HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuuCvXHTKpGQnEpy6W23.dXnnhxlVKjkCa\n"

Put = Callable[..., RemoteImage]
Refused = Callable[..., Ran]


@pytest.fixture(autouse=True)
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the settings of the user who runs the tests, shorten waits, and return the path of the Docker config."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NETRC"):
            monkeypatch.delenv(name)
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(session, "BACKOFF", 0)
    monkeypatch.setattr(session, "TIMEOUT", 5.0)
    return folder / "config.json"


@pytest.fixture
def proxy(registry: str) -> Iterator[Proxy]:
    """A server in front of the registry, which forwards everything until a fault is set."""
    with proxying(registry) as state:
        yield state


@pytest.fixture
def elsewhere(registry: str) -> Iterator[Proxy]:
    """A server in front of the same registry, on another host."""
    with proxying(registry, "127.0.0.2") as state:
        yield state


@pytest.fixture(scope="session")
def second_registry(start_registry: Callable[[str], str]) -> str:
    return start_registry("")


@pytest.fixture(scope="session")
def locked_registry(start_registry: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A registry that demands a user's name and password."""
    file = tmp_path_factory.mktemp("htpasswd") / "htpasswd"
    file.write_text(HTPASSWD)
    return start_registry(f"auth: {{htpasswd: {{realm: test, path: {file}}}}}\n")


@pytest.fixture(scope="session")
def layers(slim: Trees, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Three layers like vllm-openai's: everything below vLLM, vLLM, and files copied in above."""
    folder = tmp_path_factory.mktemp("layers")
    vllm = archive(folder / "1.tar", *parents(folder), (slim("0.20.2"), SITE)).read_bytes()
    copied = tar(("vllm-workspace", None), ("vllm-workspace/examples", None), ("vllm-workspace/examples/a.py", b"1"))
    return [tar(("opt/ballast", os.urandom(BALLAST))), vllm, copied]


@pytest.fixture(scope="session")
def remote(
    registry: str, layers: list[bytes], interpreter: Path, sources: Path, tmp_path_factory: pytest.TempPathFactory
) -> Base:
    """The base with an interpreter in its lowest layer, so that it can run."""
    folder = tmp_path_factory.mktemp("remote")
    lowest = archive(folder / "0.tar", (interpreter, "")).read_bytes()
    vllm = archive(folder / "1.tar", *parents(folder), (sources, SITE)).read_bytes()
    return put_base(registry, [lowest, vllm, layers[2]])


@pytest.fixture
def nothing_is_tagged(registry: str) -> Callable[[str], bool]:
    def look(repository: str) -> bool:
        tags = requests.get(f"http://{registry}/v2/{repository}/tags/list", timeout=5).json().get("tags")
        return not tags

    return look


@pytest.fixture
def refused_on(vpatch: Program, nothing_is_tagged: Callable[[str], bool], request: pytest.FixtureRequest) -> Refused:
    """`refused_on("host/base:x", *options)`: build on a base, which must fail, push no tag, and print the error."""

    def run(base: str, *options: str) -> Ran:
        target = f"refused/{abs(hash(request.node.name))}"
        host = base.partition("/")[0]
        ran = build(vpatch, base, "--tag", f"{host}/{target}:one", "--quiet", *options)
        assert (ran.code, ran.out == "") == (1, "--json" not in options)
        assert nothing_is_tagged(target)
        return ran

    return run


@pytest.fixture
def put(registry: str, request: pytest.FixtureRequest) -> Put:
    """`put(tar, tar, ...)`: push an image of these layers, the lowest first, and open it through the server `host`."""
    name = f"put/{abs(hash(request.node.name))}"

    def give(*tars: bytes, host: str = registry, **how: Any) -> RemoteImage:
        put_image(registry, name, "x", tars, **how)
        return opened(f"{host}/{name}:x")

    return give

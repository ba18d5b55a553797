"""A failing registry is reported in one line, after a few attempts where another may help."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from vpatch.image.registry.layers import LayeredFiles
from vpatch.net import session

from tests.failures import problem_of
from tests.image.registry.images import opened, put_image, tar
from tests.image.registry.proxy import Proxy

NAME = "faults/one:x"


@pytest.fixture(autouse=True)
def _image(registry: str) -> None:
    put_image(registry, "faults/one", "x", [tar(("a.py", b"a"))])


def refusal(host: str, name: str = NAME) -> str:
    problem = problem_of(opened, f"{host}/{name}")
    assert (problem.what, problem.where) == ("cannot read", f"{host}/{name}")
    return problem.cause


@pytest.mark.parametrize(
    ("status", "tries", "why"),
    [
        (404, 1, "no such image"),
        (418, 1, "the server answers 418"),
        (429, 4, "too many requests: wait, or log in with `docker login HOST`"),
        (500, 4, "the server answers 500 internal server error"),
        (503, 4, "the server answers 503 service unavailable"),
    ],
)
def test_an_answer_with_an_error_status(proxy: Proxy, status: int, tries: int, why: str) -> None:
    proxy.fail("GET", "/manifests/", status=status, body=b'{"errors": [{"code": "X"}]}')

    assert refusal(proxy.host).startswith(why.replace("HOST", proxy.host))
    assert len(proxy.asked) == tries


def test_a_missing_image(registry: str) -> None:
    assert refusal(registry, "faults/none:x") == "no such image"
    assert refusal(registry, "faults/one:none") == "no such image"
    assert refusal(registry, f"faults/one@sha256:{'0' * 64}") == "no such image"


@pytest.mark.parametrize(
    "fault", [{"status": 500}, {"status": 429, "headers": {"Retry-After": "3600"}}, {"spoil": "hang up"}]
)
def test_a_busy_server_is_asked_again(proxy: Proxy, fault: dict[str, Any]) -> None:
    proxy.fail("GET", "/manifests/", times=2, **fault)
    proxy.fail("GET", "/blobs/", times=2, **fault)

    assert LayeredFiles(opened(f"{proxy.host}/{NAME}"), lambda _: True).descend()


def test_a_missing_layer(proxy: Proxy) -> None:
    image = opened(f"{proxy.host}/{NAME}")
    proxy.fail("GET", "/blobs/", status=404)

    problem = problem_of(LayeredFiles(image, lambda _: True).descend)
    assert problem.cause == f"the blob {image.layers[0].digest} is not there"


def test_a_registry_that_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

    assert refusal(f"127.0.0.1:{port}") == "connection refused"


def test_a_registry_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert refusal(f"127.0.0.1:{listening.getsockname()[1]}") == "no answer within 0.2 s"


def test_only_loopback_is_asked_in_plain_http(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves to this machine is not a loopback address."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more: resolve("127.0.0.1", *more))
    port = proxy.host.partition(":")[2]

    assert "SSL" in refusal(f"registry.example.org:{port}")
    assert proxy.asked == []


def test_a_proxy_in_the_environment_is_not_asked_for_loopback(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    assert opened(f"{proxy.host}/{NAME}").layers


def test_an_endless_redirect(proxy: Proxy) -> None:
    there = f"http://{proxy.host}/v2/faults/one/manifests/x"
    proxy.fail("GET", "/manifests/", status=307, headers={"Location": there})

    assert refusal(proxy.host) == "too many redirects"

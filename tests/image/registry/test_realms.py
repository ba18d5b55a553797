"""The user's password goes to the registry's own token server, and to no host that a registry's answer leads to.

A, B and C are servers on different addresses. Each test shows everything that B and C received.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from vpatch.image.registry.layers import LayeredFiles
from vpatch.image.registry.reference import is_address, is_private, origin, same_origin

from tests.conftest import Program
from tests.failures import problem_of
from tests.image.registry.conftest import CODED, SECRET, USER
from tests.image.registry.images import Built, opened, put_image, tar
from tests.image.registry.proxy import Proxy, proxying, secured


@pytest.fixture
def third(registry: str) -> Iterator[Proxy]:
    with proxying(registry, "127.0.0.3") as state:
        yield state


@pytest.fixture
def image(proxy: Proxy, docker_config: Path) -> Built:
    """An image behind A, where the user is logged in by name and password."""
    docker_config.write_text(json.dumps({"auths": {proxy.host: {"auth": CODED}}}))
    return put_image(proxy.behind, "realms/one", "x", [tar(("a.py", b"a"))])


def received(server: Proxy) -> list[tuple[str, str, str | None]]:
    return [(one.method, one.path, one.headers.get("authorization")) for one in server.asked]


def refusal(host: str) -> str:
    problem = problem_of(lambda: LayeredFiles(opened(f"{host}/realms/one:x"), lambda _: True).descend())
    assert SECRET not in str(problem)
    assert CODED not in str(problem)
    return problem.cause


BEARER, BASIC = 'Bearer realm="http://C/token",service="x"', 'Basic realm="x"'


@pytest.mark.parametrize(
    ("challenge", "status", "tokens"),
    [(BEARER, 401, True), (BEARER, 403, False), (BASIC, 401, False), (BASIC, 403, True), ("", 401, True)],
)
def test_a_blobs_host_asks_for_a_password(
    proxy: Proxy, elsewhere: Proxy, third: Proxy, image: Built, challenge: str, status: int, *, tokens: bool
) -> None:
    proxy.wants_tokens = tokens
    proxy.users[USER] = SECRET
    blob = f"/v2/realms/one/blobs/{image.manifest['config']['digest']}"
    proxy.fail("GET", "/blobs/", status=307, headers={"Location": f"http://{elsewhere.host}{blob}"})
    headers = {"WWW-Authenticate": challenge.replace("C/", f"{third.host}/")} if challenge else {}
    elsewhere.fail("GET", "/blobs/", status=status, headers=headers)

    why = refusal(proxy.host)

    assert received(third) == []
    assert received(elsewhere) == [("GET", blob, None)]
    assert why == f"{elsewhere.host} answers {status}: it is not the registry, and gets no login"


@pytest.mark.parametrize("method", ["GET", "POST"], ids=["password", "identity token"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_token_server_that_redirects(
    proxy: Proxy, elsewhere: Proxy, image: Built, docker_config: Path, method: str, status: int
) -> None:
    proxy.wants_tokens = True
    proxy.identity = SECRET
    if method == "POST":
        docker_config.write_text(json.dumps({"auths": {proxy.host: {"identitytoken": SECRET}}}))
    proxy.fail(method, "/token", status=status, headers={"Location": f"http://{elsewhere.host}/token"})

    why = refusal(proxy.host)

    assert received(elsewhere) == []
    assert why == f"its token server {proxy.host} redirects, and a login is not passed on"
    assert proxy.count(method, "/token") == 1


def test_a_realm_on_another_host_of_loopback(proxy: Proxy, elsewhere: Proxy, image: Built) -> None:
    """As in Docker: a registry that is asked in plain HTTP runs on this machine."""
    proxy.wants_tokens = True
    proxy.realm = f"http://{elsewhere.host}/token"

    assert "private, or not there" in refusal(proxy.host)  # B knows other tokens than A
    assert [one.headers.get("authorization") for one in elsewhere.asked] == [f"Basic {CODED}"] * len(elsewhere.asked)


@pytest.mark.parametrize("realm", ["http://127.0.0.1:PORT/token", "http://auth.example.org:PORT/token"])
def test_no_password_leaves_https(registry: str, docker_config: Path, realm: str) -> None:
    put_image(registry, "realms/one", "x", [tar(("a.py", b"a"))])
    with proxying(registry) as plain, secured(registry, docker_config.parent) as a:
        docker_config.write_text(json.dumps({"auths": {a.host: {"auth": CODED}}}))
        a.wants_tokens = True
        a.realm = realm.replace("PORT", plain.host.partition(":")[2])

        assert refusal(a.host) == f"it sends for a token to {a.realm!r}, which is not https"
        assert received(plain) == []
    assert all(authorization is None for _, _, authorization in received(a))


@pytest.mark.parametrize("verbose", [True, False])
def test_a_realm_on_another_host_is_https_and_named(
    registry: str, docker_config: Path, vpatch: Program, *, verbose: bool
) -> None:
    """As for ghcr.io, and for Docker Hub, whose token server is auth.docker.io."""
    put_image(registry, "realms/one", "x", [tar(("a.py", b"a"))])
    with secured(registry, docker_config.parent) as a, secured(registry, docker_config.parent, "auth") as b:
        docker_config.write_text(json.dumps({"auths": {a.host: {"auth": CODED}}}))
        a.wants_tokens, a.realm, a.tokens = True, f"https://{b.host}/token", b.tokens
        ran = vpatch("inspect", f"{a.host}/realms/one:x", *["-v"] * verbose)

    assert ran.code == 1
    assert "the image has no label" in ran.err
    assert (f"{a.host}: its token server is https://{b.host}\n" in ran.err) is verbose
    assert [authorization for _, _, authorization in received(b)] == [f"Basic {CODED}"]
    assert logging.getLogger("vpatch").handlers == []


@pytest.mark.parametrize(
    ("realm", "why"),
    [
        ("https://[::1/token", "is no address"),
        ("https://exa mple/token", "is no address"),
        ("http://127.0.0.1:99999/token", "is no address"),
        ("http://127.0.0.1:abc/token", "is no address"),
        ("https:///token", "is no address"),
        # The standard library's parser finds the host behind the `@`; urllib3, which connects, the one before it.
        ("http://B\\@A/token", "is no address"),
        ("http://example.org/token", "is not https"),
        ("file:///etc/passwd", "is not https"),
        ("token", "is not https"),
        ("", "is not https"),
    ],
)
def test_a_realm_that_is_not_an_address(proxy: Proxy, elsewhere: Proxy, image: Built, realm: str, why: str) -> None:
    realm = realm.replace("A/", f"{proxy.host}/").replace("B\\", f"{elsewhere.host}\\")
    challenge = f'Bearer realm="{realm}",service="test"' if realm else 'Bearer service="test"'
    proxy.fail("GET", "/manifests/", status=401, headers={"WWW-Authenticate": challenge})

    assert refusal(proxy.host) == f"it sends for a token to {realm!r}, which {why}"
    assert received(elsewhere) == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_where_an_address_leads(scheme: str) -> None:
    url = f"{scheme}://evil.example:8443\\@127.0.0.1/token"

    assert not is_address(url)
    assert origin(url) == f"{scheme}://evil.example:8443"
    assert is_private(url) is (scheme == "https")
    assert not same_origin(url, f"{scheme}://127.0.0.1")
    assert same_origin("http://127.0.0.1:80", "http://127.0.0.1/a")
    assert same_origin("https://ghcr.io/v2/", "https://GHCR.io:443/token")
    for other in ("http://ghcr.io", *(f"https://ghcr.io{end}" for end in (":8443", ".example.org", "@example.org"))):
        assert not same_origin("https://ghcr.io", other)

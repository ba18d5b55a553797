"""Credentials are those that `docker login` stored; they go to their registry, and are never printed."""

from __future__ import annotations

import base64
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vpatch.image.registry.layers import LayeredFiles
from vpatch.image.registry.session import Credentials, find_credentials

from tests.failures import problem_of
from tests.image.registry.conftest import CODED, SECRET, USER
from tests.image.registry.images import Built, opened, put_image, tar
from tests.image.registry.proxy import Proxy, proxying

Helper = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def _nothing_is_told(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    told = "".join(capfd.readouterr()) + caplog.text
    assert SECRET not in told
    assert CODED not in told
    assert "oras" not in told


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Helper:
    """`helper("name", script)`: install docker-credential-name."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def install(name: str, script: str) -> None:
        path = tmp_path / f"docker-credential-{name}"
        path.write_text(f"#!/bin/sh\nread -r server\n{script}\n")
        path.chmod(0o755)

    return install


def config(path: Path, body: Any) -> None:
    path.write_text(json.dumps(body))


def refusal(name: str) -> str:
    told = str(problem_of(opened, name))
    assert SECRET not in told
    assert CODED not in told
    return told


@pytest.fixture
def locked(locked_registry: str) -> tuple[str, Built]:
    """A registry that demands a name and a password, and the image `login/one:x` in it."""
    return locked_registry, put_image(locked_registry, "login/one", "x", [tar(("a", b""))], auth=(USER, SECRET))


@pytest.fixture
def tokens(proxy: Proxy) -> Proxy:
    """A registry that demands tokens, with one image and one user."""
    put_image(proxy.behind, "login/two", "x", [tar(("a.py", b"a"))])
    proxy.wants_tokens = True
    proxy.users[USER] = SECRET
    return proxy


@pytest.mark.parametrize("scheme", ["", "http://", "https://"])
def test_basic_with_the_docker_config(locked: tuple[str, Built], docker_config: Path, scheme: str) -> None:
    host, built = locked
    config(docker_config, {"auths": {f"{scheme}{host}": {"auth": CODED}}})

    assert opened(f"{host}/login/one:x").digest == built.digest


@pytest.mark.parametrize("section", ["credsStore", "credHelpers"])
def test_basic_with_a_helper(locked: tuple[str, Built], docker_config: Path, helper: Helper, section: str) -> None:
    host, built = locked
    helper("test", f'[ "$1 $server" = "get {host}" ] && echo \'{{"Username": "{USER}", "Secret": "{SECRET}"}}\'')
    config(docker_config, {section: "test" if section == "credsStore" else {host: "test"}, "auths": {host: {}}})

    assert opened(f"{host}/login/one:x").digest == built.digest


def test_after_the_first_challenge_credentials_are_sent(locked: tuple[str, Built], docker_config: Path) -> None:
    host, _ = locked
    with proxying(host) as proxy:
        config(docker_config, {"auths": {proxy.host: {"auth": CODED}}})

        # The proxy passes no credentials on: what counts is what it was sent.
        assert "log in with `docker login " in refusal(f"{proxy.host}/login/one:x")

        sent = [one.headers.get("authorization") for one in proxy.asked]
        assert sent == [None, f"Basic {CODED}"]


WRONG = base64.b64encode(f"{USER}:wrong".encode()).decode()


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"auths": {}}, {"auths": {"ghcr.io": {"auth": CODED}}}, {"auths": {"HOST": {}}}, None),
        *({"auths": {"HOST": {"auth": WRONG}}}, {"credsStore": "test"}),
    ],
)
def test_without_credentials_the_error_shows_how_to_log_in(
    locked: tuple[str, Built], docker_config: Path, helper: Helper, body: Any
) -> None:
    """A helper that has none is not a failure."""
    host, _ = locked
    helper("test", "echo credentials not found in native keychain; exit 1")
    if body is not None:
        docker_config.write_text(json.dumps(body).replace("HOST", host))

    assert refusal(f"{host}/login/one:x") == (
        f"cannot read: {host}/login/one:x: private, or not there: log in with `docker login {host}`"
    )


@pytest.mark.parametrize(
    "script", [f"echo could not open the store of {SECRET}; exit 1", "echo no json", "echo '{}'", "echo '[]'", None]
)
def test_a_failing_helper_is_reported_if_it_is_needed(
    locked: tuple[str, Built],
    registry: str,
    docker_config: Path,
    helper: Helper,
    script: str | None,
) -> None:
    host, _ = locked
    if script is not None:
        helper("test", script)
    config(docker_config, {"credsStore": "test"})
    put_image(registry, "login/open", "x", [tar(("a", b""))])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert opened(f"{registry}/login/open:x").layers
        assert refusal(f"{host}/login/one:x").startswith(f"cannot log in: {host}: docker-credential-test fails (")


@pytest.mark.parametrize("body", [{"auths": {"HOST": {"auth": "%%"}}}, {"auths": {"HOST": 3}}, {"auths": 3}, []])
def test_an_invalid_docker_config(locked: tuple[str, Built], docker_config: Path, body: Any) -> None:
    host, _ = locked
    docker_config.write_text(json.dumps(body).replace("HOST", host))

    assert refusal(f"{host}/login/one:x").startswith(f"cannot log in: {host}: the Docker config is not understood (")


def test_docker_hub_goes_by_its_old_address(docker_config: Path) -> None:
    config(docker_config, {"auths": {"https://index.docker.io/v1/": {"auth": CODED}}})

    assert find_credentials("docker.io") == Credentials(USER, SECRET)
    assert SECRET not in repr(find_credentials("docker.io"))


def test_a_token_for_an_anonymous_user(tokens: Proxy) -> None:
    tokens.users.clear()

    image = opened(f"{tokens.host}/login/two:x")

    assert LayeredFiles(image, lambda _: True).descend()
    assert tokens.count("GET", "/token") == 1
    assert [one.status for one in tokens.asked] == [401, 200, 200, 200, 200]


def test_a_token_for_a_user_with_credentials(tokens: Proxy, docker_config: Path) -> None:
    assert refusal(f"{tokens.host}/login/two:x").endswith(f"log in with `docker login {tokens.host}`")
    config(docker_config, {"auths": {tokens.host: {"auth": CODED}}})

    assert opened(f"{tokens.host}/login/two:x").layers
    assert {one.headers["authorization"] for one in tokens.asked[-3:-2]} == {f"Basic {CODED}"}


def test_an_expired_token_is_renewed(tokens: Proxy) -> None:
    tokens.users.clear()
    tokens.uses = 1

    image = opened(f"{tokens.host}/login/two:x")

    assert LayeredFiles(image, lambda _: True).descend()
    assert tokens.count("GET", "/token") == 3


def test_a_token_without_the_right_scope(tokens: Proxy) -> None:
    tokens.users.clear()
    tokens.closed.add("login/two")

    assert refusal(f"{tokens.host}/login/two:x").endswith(
        f"private, or not there: log in with `docker login {tokens.host}`"
    )


@pytest.mark.parametrize("way", ["config", "helper"])
def test_an_identity_token_buys_tokens(tokens: Proxy, docker_config: Path, helper: Helper, way: str) -> None:
    tokens.identity = SECRET
    helper("test", f'echo \'{{"Username": "<token>", "Secret": "{SECRET}"}}\'')
    auths = {"auths": {tokens.host: {"identitytoken": SECRET}}}
    config(docker_config, auths if way == "config" else {"credsStore": "test"})

    assert opened(f"{tokens.host}/login/two:x").layers
    assert tokens.count("POST", "/token") == 1


def test_a_helper_that_fails_leaves_the_user_anonymous(tokens: Proxy, docker_config: Path, helper: Helper) -> None:
    helper("test", "exit 1")
    config(docker_config, {"credsStore": "test"})

    assert refusal(f"{tokens.host}/login/two:x").startswith(f"cannot log in: {tokens.host}: docker-credential-test")
    tokens.users.clear()
    assert opened(f"{tokens.host}/login/two:x").layers


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (503, b"", "its token server answers 503"),
        (429, b"", "too many requests: wait, or log in with `docker login HOST`"),
        (403, b"", "private, or not there: log in with `docker login HOST`"),
        (200, b"<html>", "its token server gives no token"),
        (200, b"[]", "its token server gives no token"),
        (200, b"{}", "its token server gives no token"),
        (200, b"[" * 200_000, "its token server gives no token"),
    ],
)
def test_a_token_server_that_fails(tokens: Proxy, status: int, body: bytes, why: str) -> None:
    tokens.fail("GET", "/token", status=status, body=body)

    assert refusal(f"{tokens.host}/login/two:x").endswith(f": {why.replace('HOST', tokens.host)}")


@pytest.mark.parametrize("realm", ["http://example.org/token", "ftp://example.org", "token", ""])
def test_no_secret_goes_out_in_plain_http(tokens: Proxy, docker_config: Path, realm: str) -> None:
    config(docker_config, {"auths": {tokens.host: {"auth": CODED}}})
    challenge = {"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'}
    tokens.fail("GET", "/manifests/", status=401, headers=challenge)

    assert "sends for a token to" in refusal(f"{tokens.host}/login/two:x")


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("demand", ["", "Negotiate", "Digest realm=x"])
def test_an_unknown_authentication_scheme(proxy: Proxy, docker_config: Path, demand: str, status: int) -> None:
    config(docker_config, {"auths": {proxy.host: {"auth": CODED}}})
    proxy.fail("GET", "/manifests/", status=status, headers={"WWW-Authenticate": demand} if demand else {})

    assert refusal(f"{proxy.host}/login/one:x").endswith(f"log in with `docker login {proxy.host}`")
    assert len(proxy.asked) == 1


@pytest.mark.parametrize("basic", [True, False])
def test_credentials_do_not_follow_a_blob_to_another_host(
    tokens: Proxy,
    elsewhere: Proxy,
    docker_config: Path,
    tmp_path: Path,
    basic: bool,  # noqa: FBT001
) -> None:
    config(docker_config, {"auths": {tokens.host: {"auth": CODED}}})
    (tmp_path / ".netrc").write_text(f"default login {USER} password {SECRET}\n")
    if basic:
        tokens.wants_tokens = False
        tokens.fail("GET", "/manifests/", status=401, headers={"WWW-Authenticate": 'Basic realm="x"'}, times=1)
    image = opened(f"{tokens.host}/login/two:x")
    blob = f"/v2/login/two/blobs/{image.layers[0].digest}"
    tokens.fail("GET", "/blobs/", status=307, headers={"Location": f"http://{elsewhere.host}{blob}"})

    files = LayeredFiles(image, lambda _: True)
    assert files.descend()

    assert files.read("a.py") == b"a"
    assert tokens.asked[-1].headers["authorization"].startswith("Basic" if basic else "Bearer")
    assert [one.path for one in elsewhere.asked] == [blob]
    assert "authorization" not in elsewhere.asked[0].headers

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

Helper = Callable[[str], None]
WRONG = base64.b64encode(f"{USER}:wrong".encode()).decode()
LOG_IN = "private, or not there: log in with `docker login HOST`"


@pytest.fixture(autouse=True)
def _nothing_is_told(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    told = "".join(capfd.readouterr()) + caplog.text
    assert not [word for word in (SECRET, CODED, "oras") if word in told]


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Helper:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def install(script: str) -> None:
        path = tmp_path / "docker-credential-test"
        path.write_text(f"#!/bin/sh\nread -r server\n{script}\n")
        path.chmod(0o755)

    return install


def refusal(name: str) -> str:
    told = str(problem_of(opened, name))
    assert not [secret for secret in (SECRET, CODED) if secret in told]
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


HELPS = f'[ "$1 $server" = "get HOST" ] && echo \'{{"Username": "{USER}", "Secret": "{SECRET}"}}\''


@pytest.mark.parametrize(
    ("config", "script"),
    [
        *(({"auths": {f"{scheme}HOST": {"auth": CODED}}}, "") for scheme in ("", "http://", "https://")),
        ({"credsStore": "test", "auths": {"HOST": {}}}, HELPS),
        ({"credHelpers": {"HOST": "test"}, "auths": {"HOST": {}}}, HELPS),
    ],
)
def test_basic(locked: tuple[str, Built], docker_config: Path, helper: Helper, config: Any, script: str) -> None:
    host, built = locked
    helper(script.replace("HOST", host))
    docker_config.write_text(json.dumps(config).replace("HOST", host))

    assert opened(f"{host}/login/one:x").digest == built.digest


def test_after_the_first_challenge_credentials_are_sent(locked: tuple[str, Built], docker_config: Path) -> None:
    with proxying(locked[0]) as proxy:
        docker_config.write_text(json.dumps({"auths": {proxy.host: {"auth": CODED}}}))

        # The proxy passes no credentials on: what counts is what it was sent.
        assert "log in with `docker login " in refusal(f"{proxy.host}/login/one:x")
        assert [one.headers.get("authorization") for one in proxy.asked] == [None, f"Basic {CODED}"]


NO_HELP = "docker-credential-test fails ("
EMPTY: list[Any] = [None, {}, {"auths": {}}, {"auths": {"HOST": {}}}]
NO_CONFIG = "the Docker config is not understood ("


@pytest.mark.parametrize(
    ("config", "script", "why"),
    [
        *((config, "", LOG_IN) for config in EMPTY),
        ({"auths": {"ghcr.io": {"auth": CODED}}}, "", LOG_IN),
        ({"auths": {"HOST": {"auth": WRONG}}}, "", LOG_IN),
        ({"credsStore": "test"}, "echo credentials not found in native keychain; exit 1", LOG_IN),
        ({"credsStore": "test"}, f"echo could not open the store of {SECRET}; exit 1", NO_HELP),
        *(({"credsStore": "test"}, script, NO_HELP) for script in ("echo no json", "echo '{}'", "echo '[]'", None)),
        *(({"auths": {"HOST": auth}}, "", NO_CONFIG) for auth in ({"auth": "%%"}, 3)),
        ({"auths": 3}, "", NO_CONFIG),
        ([], "", NO_CONFIG),
    ],
)
def test_without_credentials(
    locked: tuple[str, Built], registry: str, docker_config: Path, helper: Helper, config: Any, script: str, why: str
) -> None:
    """A helper that has none is no failure; one that fails is reported if it is needed."""
    host, _ = locked
    if script is not None:
        helper(script)
    if config is not None:
        docker_config.write_text(json.dumps(config).replace("HOST", host))
    put_image(registry, "login/open", "x", [tar(("a", b""))])
    told = f"cannot read: {host}/login/one:x: {why}" if why == LOG_IN else f"cannot log in: {host}: {why}"

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert opened(f"{registry}/login/open:x").layers
        assert refusal(f"{host}/login/one:x").startswith(told.replace("HOST", host))


def test_docker_hub_goes_by_its_old_address(docker_config: Path) -> None:
    docker_config.write_text(json.dumps({"auths": {"https://index.docker.io/v1/": {"auth": CODED}}}))

    assert find_credentials("docker.io") == Credentials(USER, SECRET)
    assert SECRET not in repr(find_credentials("docker.io"))


@pytest.mark.parametrize(
    ("uses", "statuses"), [(1 << 30, [401, 200, 200, 200, 200]), (1, [401, 200, 200, 401, 200, 200, 401, 200, 200])]
)
def test_a_token_for_an_anonymous_user(tokens: Proxy, uses: int, statuses: list[int]) -> None:
    """It is renewed when it expires, and one of another scope is no good."""
    tokens.users.clear()
    tokens.uses = uses
    image = opened(f"{tokens.host}/login/two:x")

    assert LayeredFiles(image, lambda _: True).descend()
    assert [one.status for one in tokens.asked] == statuses
    tokens.closed.add("login/two")
    assert refusal(f"{tokens.host}/login/two:x").endswith(LOG_IN.replace("HOST", tokens.host))


TOKEN = f'echo \'{{"Username": "<token>", "Secret": "{SECRET}"}}\''


@pytest.mark.parametrize(
    ("config", "method", "sent"),
    [
        ({"auths": {"HOST": {"auth": CODED}}}, "GET", f"Basic {CODED}"),
        # An identity token buys tokens.
        ({"auths": {"HOST": {"identitytoken": SECRET}}}, "POST", None),
        ({"credsStore": "test"}, "POST", None),
    ],
)
def test_a_token_for_a_user_with_credentials(
    tokens: Proxy, docker_config: Path, helper: Helper, config: Any, method: str, sent: str | None
) -> None:
    tokens.identity = SECRET
    helper(TOKEN)
    assert refusal(f"{tokens.host}/login/two:x").endswith(f"log in with `docker login {tokens.host}`")
    tokens.asked.clear()
    docker_config.write_text(json.dumps(config).replace("HOST", tokens.host))

    assert opened(f"{tokens.host}/login/two:x").layers
    asked = [one for one in tokens.asked if one.path.startswith("/token")]
    assert [(one.method, one.headers.get("authorization")) for one in asked] == [(method, sent)]


def test_a_helper_that_fails_leaves_the_user_anonymous(tokens: Proxy, docker_config: Path, helper: Helper) -> None:
    helper("exit 1")
    docker_config.write_text('{"credsStore": "test"}')

    assert refusal(f"{tokens.host}/login/two:x").startswith(f"cannot log in: {tokens.host}: docker-credential-test")
    tokens.users.clear()
    assert opened(f"{tokens.host}/login/two:x").layers


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (503, b"", "its token server answers 503"),
        (429, b"", "too many requests: wait, or log in with `docker login HOST`"),
        (403, b"", LOG_IN),
        *((200, body, "its token server gives no token") for body in (b"<html>", b"[]", b"{}", b"[" * 200_000)),
    ],
)
def test_a_token_server_that_fails(tokens: Proxy, status: int, body: bytes, why: str) -> None:
    tokens.fail("GET", "/token", status=status, body=body)

    assert refusal(f"{tokens.host}/login/two:x").endswith(f": {why.replace('HOST', tokens.host)}")


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("demand", ["", "Negotiate", "Digest realm=x"])
def test_an_unknown_authentication_scheme(proxy: Proxy, docker_config: Path, demand: str, status: int) -> None:
    docker_config.write_text(json.dumps({"auths": {proxy.host: {"auth": CODED}}}))
    proxy.fail("GET", "/manifests/", status=status, headers={"WWW-Authenticate": demand} if demand else {})

    assert refusal(f"{proxy.host}/login/one:x").endswith(f"log in with `docker login {proxy.host}`")
    assert len(proxy.asked) == 1


@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
def test_credentials_do_not_follow_a_blob_to_another_host(
    tokens: Proxy, elsewhere: Proxy, docker_config: Path, tmp_path: Path, scheme: str
) -> None:
    docker_config.write_text(json.dumps({"auths": {tokens.host: {"auth": CODED}}}))
    (tmp_path / ".netrc").write_text(f"default login {USER} password {SECRET}\n")
    if scheme == "Basic":
        tokens.wants_tokens = False
        tokens.fail("GET", "/manifests/", status=401, headers={"WWW-Authenticate": 'Basic realm="x"'}, times=1)
    image = opened(f"{tokens.host}/login/two:x")
    blob = f"/v2/login/two/blobs/{image.layers[0].digest}"
    tokens.fail("GET", "/blobs/", status=307, headers={"Location": f"http://{elsewhere.host}{blob}"})

    files = LayeredFiles(image, lambda _: True)
    assert files.descend()

    assert files.read("a.py") == b"a"
    assert tokens.asked[-1].headers["authorization"].startswith(scheme)
    assert [one.path for one in elsewhere.asked] == [blob]
    assert "authorization" not in elsewhere.asked[0].headers

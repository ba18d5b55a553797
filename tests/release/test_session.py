"""Servers are asked with the user's credentials and certificates, and no secret is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vpatch.errors import Failure
from vpatch.release.index import find_wheel
from vpatch.release.index_config import read_settings
from vpatch.release.session import open_session

if TYPE_CHECKING:
    from tests.loopback import Site


def test_uses_credentials_and_never_shows_them(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.login = "me:p@ss/word"
    secret = site.url.replace("//", "//me:p%40ss%2Fword@")
    monkeypatch.setenv("PIP_INDEX_URL", f"{secret}/simple/")

    wheel = find_wheel("1.0")
    with open_session(read_settings()) as session:
        answer = session.get(wheel.url, timeout=5)

    assert answer.content == site.files[wheel.filename]
    assert wheel.url == f"{site.url}/files/{wheel.filename}"
    site.page = "500"
    with pytest.raises(Failure) as caught:
        find_wheel("1.0")

    [problem] = caught.value.problems
    assert str(problem).startswith(f"package index failed: {site.url}/simple/: ")
    assert "p%40ss" not in repr(read_settings())


def test_says_that_credentials_are_wanted(site: Site) -> None:
    site.login = "me:secret"

    with pytest.raises(Failure) as caught:
        find_wheel("1.0")

    cause = "the server answers 401 unauthorized"
    [problem] = caught.value.problems
    assert str(problem) == f"package index failed: {site.url}/simple/: {cause}"


def test_takes_other_servers_credentials_from_netrc(
    site: Site, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (settings / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://you:other@localhost:1/simple")
    site.login = "me:secret"

    assert find_wheel("1.0").version == "1.0"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, True),
        ({"SSL_CERT_FILE": "/a"}, "/a"),
        ({"SSL_CERT_FILE": "/a", "PIP_CERT": "/b"}, "/b"),
    ],
)
def test_trusts_the_users_certificates(
    settings: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: object
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with open_session(read_settings()) as session:
        assert session.verify == expected


@pytest.mark.parametrize("variable", ["PIP_CERT", "REQUESTS_CA_BUNDLE"])
def test_says_that_the_certificates_are_missing(site: Site, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", site.url.replace("http:", "https:") + "/simple/")
    monkeypatch.setenv("SSL_CERT_FILE", "/absent/too")
    monkeypatch.setenv(variable, "/absent/bundle.pem")

    with pytest.raises(Failure) as caught:
        find_wheel("1.0")

    [problem] = caught.value.problems
    assert str(problem).endswith("invalid path: /absent/bundle.pem")

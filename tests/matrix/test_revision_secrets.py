"""What somebody writes into an address, or git's settings, to get in: nobody sees it, whatever goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vpatch.matrix.trees import shown

from tests.matrix.git_server import Served, serving

if TYPE_CHECKING:
    from tests.conftest import Program

SECRETS = ("SECRET", "SEC/", "SEC ", "SEC?", "RETPW", "us3r:", "us3r@")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as served:
        served.login = "us3r:SECRET"
        yield served


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("https://us3r:SECRET@host/x", "https://host/x"),
        ("https://SECRET@host/x", "https://host/x"),
        ("https://us3r:SEC/RETPW@host/x", "https://host/x"),
        ("https://us3r:SEC@KEPT@host/x", "https://host/x"),
        ("https://us3r:SEC?RETPW@host/x", "https://..."),  # nobody knows what is a login here and what a query
        ("https://us3r:SEC#RETPW@host/x", "https://..."),
        ("https://us3r:SECRET@host/x?t=RETPW@KEPT", "https://..."),
        ("https://us3r:SECRET@host/x?t=KEPT#RETPW", "https://host/x"),
        ("ssh://git@host:22/x", "ssh://host:22/x"),
        ("us3r:SECRET@host:path", "host:path"),
        ("us3r:SEC/RETPW@host:path", "host:path"),
        ("us3r:SEC://RETPW@host:path", "host:path"),
        ("https:/us3r:SECRET@host/x", "host/x"),
        ("git@host:path", "git@host:path"),
        ("host:path", "host:path"),
        ("file:///home/me@host/x", "file:///home/me@host/x"),
        ("/home/me@host/a:b", "/home/me@host/a:b"),
        ("./a:b@c", "./a:b@c"),
    ],
)
def test_an_address(address: str, told: str) -> None:
    assert shown(address) == told


@pytest.mark.parametrize(
    "address",
    [
        "http://us3r:WRONG-SECRET@{host}/x",
        "http://SECRET@{host}/x",
        "http://us3r:SEC/RETPW@{host}/x",
        "http://us3r:SEC RETPW@{host}/x",
        "http://us3r:SEC?RETPW@{host}/x",
        "http://{host}/x?token=SECRET",
        "us3r:SECRET@{host}",
        "us3r:SEC/RETPW@{host}",
    ],
)
@pytest.mark.parametrize("where", ["address", "settings"])
def test_what_is_told(
    vpatch: Program, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, where: str
) -> None:
    """On the terminal, in the JSON and on the page; the settings rewrite an address that has no secret in it."""
    secret = address.format(host=f"127.0.0.1:{server.port}")
    given = "https://example.org/x" if where == "settings" else secret
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text(f'[url "{secret}"]\ninsteadOf = https://example.org/x\n')
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_SSH_COMMAND", "echo >&2 fatal: no way to")  # and what else it was called with
    page = tmp_path / "page.html"
    asked = ("matrix", "--git", given, "--rev", "main", "--overlay", "turboquant-hybrid", "--html", page)

    text, object_ = vpatch(*asked), vpatch(*asked, "--json")

    assert (text.code, object_.code) == (1, 1)
    assert json.loads(object_.out)["rows"][0]["problems"][0]["what"] == "cannot fetch"
    for told in (text.out, text.err, object_.out, object_.err, page.read_text()):
        assert not [word for word in SECRETS if word in told], told

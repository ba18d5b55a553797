"""The indexes, credentials and certificates are those of uv and pip; no secret is shown."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest.mock import Mock

import pypi_simple
import pytest
from vpatch.release.index import find_wheel, listings
from vpatch.release.index_config import open_session, read_settings

from tests.failures import problem_of
from tests.loopback import IndexServer

UV = '[[index]]\nurl = "URL/uv-default/"\ndefault = true\n'
PIP = "[global]\nindex-url = URL/pip/\n"


@pytest.mark.parametrize(
    ("variables", "files", "asked"),
    [
        ({"PIP_INDEX_URL": "pip-variable"}, {}, ["pip-variable"]),
        ({"UV_INDEX_URL": "old", "PIP_INDEX_URL": "p"}, {}, ["old"]),
        ({"UV_DEFAULT_INDEX": "name=URL/new/", "UV_INDEX_URL": "old"}, {}, ["new"]),
        ({"UV_DEFAULT_INDEX": "d", "UV_INDEX": "URL/a/ b=URL/b/", "UV_EXTRA_INDEX_URL": "c"}, {}, ["a", "b", "c", "d"]),
        ({"PIP_INDEX_URL": "d", "PIP_EXTRA_INDEX_URL": "URL/a/\n URL/b/"}, {}, ["d", "a", "b"]),
        ({"PIP_INDEX_URL": "d", "UV_INDEX": "d"}, {}, ["d"]),
        ({}, {".config/pip/pip.conf": PIP}, ["pip"]),
        ({}, {".pip/pip.conf": PIP}, ["pip"]),
        ({}, {"venv/pip.conf": PIP}, ["pip"]),
        ({}, {"system/pip/pip.conf": PIP}, ["pip"]),
        ({}, {".pip/pip.conf": "[global]\nindex_url=URL/old/", ".config/pip/pip.conf": PIP}, ["pip"]),
        ({}, {".config/pip/pip.conf": PIP, "venv/pip.conf": "[global]\nindex-url=URL/venv/"}, ["venv"]),
        ({}, {"venv/pip.conf": PIP, ".pip/pip.conf": "[install]\nindex-url=URL/install/"}, ["install"]),
        ({}, {"venv/pip.conf": PIP + "extra-index-url = URL/a/\n  URL/b/"}, ["pip", "a", "b"]),
        ({"PIP_CONFIG_FILE": "chosen"}, {"chosen": PIP, "venv/pip.conf": PIP + "index_url=URL/venv/"}, ["pip"]),
        ({"PIP_CONFIG_FILE": "chosen"}, {"chosen": PIP, ".pip/pip.conf": "[install]\nindex-url=URL/i/"}, ["pip"]),
        ({"UV_INDEX_URL": "d", "PIP_CONFIG_FILE": os.devnull}, {"venv/pip.conf": "not a settings file"}, ["d"]),
        ({}, {".config/uv/uv.toml": UV, ".config/pip/pip.conf": PIP}, ["uv-default"]),
        ({"PIP_INDEX_URL": "variable"}, {".config/uv/uv.toml": UV}, ["variable"]),
        ({}, {".config/uv/uv.toml": 'index-url = "URL/old/"', "system/uv/uv.toml": UV}, ["old"]),
        ({}, {"system/uv/uv.toml": UV + '[[index]]\nurl = "URL/more/"\n'}, ["more", "uv-default"]),
        ({}, {".config/uv/uv.toml": 'extra-index-url = ["URL/a/"]\n' + UV}, ["a", "uv-default"]),
        ({}, {".config/uv/uv.toml": UV + '[[index]]\nurl = "URL/e/"\nexplicit = true\n'}, ["uv-default"]),
        ({"UV_CONFIG_FILE": "mine"}, {"mine": UV, ".config/uv/uv.toml": "index-url = 3"}, ["uv-default"]),
        ({"UV_NO_CONFIG": "1"}, {".config/uv/uv.toml": UV, "venv/pip.conf": PIP}, ["pip"]),
        ({"PIP_INDEX_URL": "d", "UV_INDEX": "file:///srv/simple", "PIP_FIND_LINKS": "/srv"}, {}, ["d"]),
        ({"PIP_INDEX_URL": "d", "PIP_EXTRA_INDEX_URL": "file:///srv/simple /srv/more"}, {}, ["d"]),
    ],
)
def test_the_users_indexes_are_asked_in_order(
    index: IndexServer,
    settings: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    files: dict[str, str],
    asked: list[str],
) -> None:
    monkeypatch.setattr(sys, "prefix", str(settings / "venv"))
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings / "absent"))
    for name, value in variables.items():
        url = value.replace("URL", index.url) if "/" in value else f"{index.url}/{value}/"
        monkeypatch.setenv(name, str(settings / value) if name.endswith("_FILE") else url)
    for path, text in files.items():
        file = settings / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("URL", index.url))

    assert [[str(version) for version in offers] for offers in listings()] == [["1.0"]] * len(asked)
    assert [path.split("/")[1] for path, _ in index.asked] == asked


def test_the_public_index_is_asked_where_no_setting_names_one(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a home needed."""
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory.")))

    assert read_settings().indexes[0] == pypi_simple.PYPI_SIMPLE_ENDPOINT


UV_TOML, NO_UV = ".config/uv/uv.toml", "cannot understand: {}: not a settings file of uv"


@pytest.mark.parametrize(
    ("setting", "content", "line"),
    [
        ("http://me:secret@[::1/simple", "", "cannot understand: settings of uv and pip: an index's address"),
        ("http:///simple", "", "package index failed: http:///simple: invalid url"),
        ("file:///srv", "", "no package index: vllm: the settings of uv and pip name local folders only"),
        (".config/pip/pip.conf", "index-url = no section", "cannot understand: {}: not a settings file of pip"),
        (UV_TOML, "index = [", NO_UV),
        (UV_TOML, "[[index]]\nname = 'no url'", NO_UV),
        (UV_TOML, "index = 'text'", NO_UV),
        (UV_TOML, "\xff", NO_UV),
        (UV_TOML, None, "cannot read: {}: is a directory"),
    ],
)
def test_settings_of_no_use(
    settings: Path, monkeypatch: pytest.MonkeyPatch, setting: str, content: str | None, line: str
) -> None:
    """An address, or a file with its content; None: a folder."""
    file = settings / setting
    if setting.startswith("."):
        monkeypatch.delenv("PIP_CONFIG_FILE")
        (file if content is None else file.parent).mkdir(parents=True)
        if content is not None:
            file.write_text(content, "latin-1")
    else:
        monkeypatch.setenv("PIP_INDEX_URL", setting)

    assert str(problem_of(find_wheel, "1.0")) == line.format(file)


def test_credentials_are_used_and_never_shown(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    index.login = "me:p@ss/word"
    secret = index.url.replace("//", "//me:p%40ss%2Fword@")
    monkeypatch.setenv("PIP_INDEX_URL", f"{secret}/simple/")

    wheel = find_wheel("1.0")
    with open_session(read_settings()) as session:
        answer = session.get(wheel.url, timeout=5)

    assert answer.content == index.files[wheel.filename]
    assert wheel.url == f"{index.url}/files/{wheel.filename}"
    index.page = "500"
    assert str(problem_of(find_wheel, "1.0")).startswith(f"package index failed: {index.url}/simple/: ")
    assert "p%40ss" not in repr(read_settings())


def test_credentials_for_other_servers_come_from_netrc(
    index: IndexServer, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (settings / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://you:other@localhost:1/simple")
    index.login = "me:secret"

    assert find_wheel("1.0").version == "1.0"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, True), ({"SSL_CERT_FILE": "/a"}, "/a"), ({"SSL_CERT_FILE": "/a", "PIP_CERT": "/b"}, "/b")],
)
def test_the_certificates_are_the_users(
    settings: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: object
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with open_session(read_settings()) as session:
        assert session.verify == expected


@pytest.mark.parametrize("variable", ["PIP_CERT", "REQUESTS_CA_BUNDLE"])
def test_certificates_that_are_missing(index: IndexServer, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("http:", "https:") + "/simple/")
    monkeypatch.setenv("SSL_CERT_FILE", "/absent/too")
    monkeypatch.setenv(variable, "/absent/bundle.pem")

    assert str(problem_of(find_wheel, "1.0")).endswith("invalid path: /absent/bundle.pem")

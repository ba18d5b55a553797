"""The indexes are those that uv and pip would ask, and a broken settings file is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pypi_simple
import pytest
from vpatch.errors import Failure
from vpatch.release.index import find_wheel, releases
from vpatch.release.index_config import read_settings

if TYPE_CHECKING:
    from tests.loopback import Site

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
def test_asks_the_users_indexes_in_order(
    site: Site,
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
        url = value.replace("URL", site.url) if "/" in value else f"{site.url}/{value}/"
        monkeypatch.setenv(name, str(settings / value) if name.endswith("_FILE") else url)
    for path, text in files.items():
        file = settings / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("URL", site.url))

    assert releases() == ("1.0",)
    assert [path.split("/")[1] for path, _ in site.asked] == asked


def test_uses_the_librarys_index_where_nobody_names_one(settings: Path) -> None:
    assert read_settings().indexes[0] == pypi_simple.PYPI_SIMPLE_ENDPOINT


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("http://me:secret@[::1/simple", "cannot understand: settings of uv and pip: an index's address"),
        ("http:///simple", "package index failed: http:///simple: invalid url"),
        ("file:///srv", "no package index: vllm: the settings of uv and pip name local folders only"),
    ],
)
def test_says_that_an_address_is_of_no_use(site: Site, monkeypatch: pytest.MonkeyPatch, url: str, line: str) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", url)

    with pytest.raises(Failure) as caught:
        releases()

    [problem] = caught.value.problems
    assert str(problem) == line


@pytest.mark.parametrize(
    ("path", "content", "cause"),
    [
        (".config/pip/pip.conf", b"index-url = no section", "not a settings file of pip"),
        (".config/uv/uv.toml", b"index = [", "not a settings file of uv"),
        (".config/uv/uv.toml", b"[[index]]\nname = 'no url'", "not a settings file of uv"),
        (".config/uv/uv.toml", b"index = 'text'", "not a settings file of uv"),
        (".config/uv/uv.toml", b"\xff", "not a settings file of uv"),
        (".config/uv/uv.toml", None, "is a directory"),
    ],
)
def test_says_which_settings_file_is_broken(
    site: Site, settings: Path, monkeypatch: pytest.MonkeyPatch, path: str, content: bytes | None, cause: str
) -> None:
    monkeypatch.delenv("PIP_CONFIG_FILE")
    file = settings / path
    file.parent.mkdir(parents=True)
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)

    with pytest.raises(Failure) as caught:
        find_wheel("1.0")

    [problem] = caught.value.problems
    assert str(problem).endswith(f": {file}: {cause}")


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")

    assert "http://127.0.0.1:9/simple" in read_settings().indexes

"""The index is the user's, every way it can fail is told in one line, and one wheel is the right one."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pypi_simple
import pytest
from vpatch.errors import Failure
from vpatch.release import index, ranges
from vpatch.release.index import find_wheel, open_session, releases

if TYPE_CHECKING:
    from tests.release.conftest import Site

X86 = "cp38-abi3-manylinux_2_35_x86_64.whl"


def first_line(caught: pytest.ExceptionInfo[Failure]) -> str:
    assert len(caught.value.problems) == 1
    return str(caught.value)


@pytest.mark.parametrize("page", ["html", "json"])
def test_finds_the_wheel_on_either_kind_of_page(site: Site, page: str) -> None:
    site.page = page

    wheel = find_wheel("1.0")

    name = f"vllm-1.0-{X86}"
    assert (wheel.version, wheel.filename, wheel.url) == ("1.0", name, f"{site.url}/files/{name}")
    assert wheel.sha256 == hashlib.sha256(site.files[name]).hexdigest()


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize(
    ("names", "best"),
    [
        ([f"vllm-2.0-{X86}", f"vllm-2.0-1-{X86}"], 1),
        ([f"vllm-2.0-10-{X86}", f"vllm-2.0-9-{X86}"], 0),
        ([f"vllm-2.0-{X86}", "vllm-2.0-3-cp38-abi3-manylinux_2_35_aarch64.whl"], 0),
        ([f"vllm-2.0-{X86}", "vllm-2.0-cp38-abi3-linux_x86_64.whl", "vllm-2.0-py3-none-any.whl"], 0),
        (["vllm-2.0-cp38-abi3-manylinux_2_28_x86_64.whl", f"vllm-2.0-{X86}"], 1),
        (["vllm-2.0-cp38-abi3-manylinux_2_35_aarch64.whl", "vllm-2.0-py3-none-any.whl"], 0),
        (["vllm-2.0-cp38-abi3-linux_x86_64.whl", "vllm-2.0-cp38-abi3-manylinux_2_35_aarch64.whl"], 0),
        ([f"vllm-2.0-{X86}", f"vllm-2.0+cu129-{X86}", f"other-2.0-9-{X86}", "vllm-2.0.tar.gz", "vllm.whl"], 0),
    ],
)
def test_chooses_one_wheel_whatever_their_order(site: Site, names: list[str], best: int, turn: int) -> None:
    for name in names[::turn]:
        site.publish(name)

    assert find_wheel("2.0").filename == names[best]


def test_takes_a_yanked_wheel_only_where_there_is_no_other(site: Site) -> None:
    site.publish(f"vllm-2.0-1-{X86}", attributes='data-yanked="bad"')

    assert find_wheel("2.0").filename == f"vllm-2.0-1-{X86}"

    site.publish(f"vllm-2.0-{X86}")

    assert find_wheel("2.0").filename == f"vllm-2.0-{X86}"


def test_lists_releases_oldest_first_without_yanked_ones(site: Site) -> None:
    for version in ("0.10.0", "0.9.1", "0.11.0rc1"):
        site.publish(f"vllm-{version}-{X86}")
    site.publish(f"vllm-0.9.0-{X86}", attributes="data-yanked")

    assert releases() == ("0.9.1", "0.10.0", "0.11.0rc1", "1.0")


def test_names_the_neighbours_of_an_unknown_release(site: Site) -> None:
    for minor in range(1, 9):
        site.publish(f"vllm-1.{minor}-{X86}")

    with pytest.raises(Failure) as caught:
        find_wheel("1.4.5")

    assert first_line(caught) == ("no such release: vllm 1.4.5: the index has 1.2, 1.3, 1.4, 1.5, 1.6, 1.7 ... 1.8")
    with pytest.raises(Failure) as caught:
        find_wheel("9.9.9")

    assert first_line(caught) == "no such release: vllm 9.9.9: the index has 1.6, 1.7, 1.8"


def test_refuses_what_is_no_version_without_asking_anybody(site: Site) -> None:
    with pytest.raises(Failure) as caught:
        find_wheel("latest")

    assert first_line(caught) == "not a version: latest: a release reads like 0.20.2"
    assert site.asked == []


@pytest.mark.parametrize(
    ("page", "cause"),
    [
        ("500", "the server answers 500 internal server error"),
        ("403", "the server answers 403 forbidden"),
        ("picture", "it sent something else than a project page"),
        ("other", "it sent something else than a project page"),
        ("newer", "it sent something else than a project page"),
        ("broken", "it sent something else than a project page"),
    ],
)
def test_says_what_a_broken_index_did(site: Site, page: str, cause: str) -> None:
    site.page = page

    with pytest.raises(Failure) as caught:
        find_wheel("1.0")

    assert first_line(caught) == f"package index failed: {site.url}/simple/: {cause}"


@pytest.mark.parametrize("page", ["404", "garbage"])
def test_says_that_an_index_has_no_such_project(site: Site, page: str) -> None:
    site.page = page

    with pytest.raises(Failure) as caught:
        releases()

    assert first_line(caught) == f"no such project: vllm: no wheel at {site.url}/simple/"


def test_tries_again_while_an_index_is_busy(site: Site) -> None:
    site.failures = 2

    assert find_wheel("1.0").version == "1.0"
    assert len(site.asked) == 3


def test_says_that_an_index_is_down(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/simple"
        monkeypatch.setenv("PIP_INDEX_URL", url)

        with pytest.raises(Failure) as caught:
            find_wheel("1.0")

    assert first_line(caught) == f"package index failed: {url}: connection refused"


def test_says_that_an_index_is_slow(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "TIMEOUT", 0.1)
    site.stalls = "/simple/"

    with pytest.raises(Failure) as caught:
        find_wheel("1.0")

    assert first_line(caught) == f"package index failed: {site.url}/simple/: no answer within 0.1 s"


# --- credentials and certificates ------------------------------------------------------------------------------


def test_uses_credentials_and_never_shows_them(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.login = "me:p@ss/word"
    secret = site.url.replace("//", "//me:p%40ss%2Fword@")
    monkeypatch.setenv("PIP_INDEX_URL", f"{secret}/simple/")

    wheel = find_wheel("1.0")
    with open_session() as session:
        answer = session.get(wheel.url, timeout=5)

    assert answer.content == site.files[wheel.filename]
    assert wheel.url == f"{site.url}/files/{wheel.filename}"
    site.page = "500"
    with pytest.raises(Failure) as caught:
        find_wheel("1.0")

    assert first_line(caught).startswith(f"package index failed: {site.url}/simple/: ")
    assert "p%40ss" not in repr(index._settings())


def test_says_that_credentials_are_wanted(site: Site) -> None:
    site.login = "me:secret"

    with pytest.raises(Failure) as caught:
        find_wheel("1.0")

    cause = "the server answers 401 unauthorized"
    assert first_line(caught) == f"package index failed: {site.url}/simple/: {cause}"


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

    with open_session() as session:
        assert session.verify == expected


@pytest.mark.parametrize("variable", ["PIP_CERT", "REQUESTS_CA_BUNDLE"])
def test_says_that_the_certificates_are_missing(site: Site, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", site.url.replace("http:", "https:") + "/simple/")
    monkeypatch.setenv("SSL_CERT_FILE", "/absent/too")
    monkeypatch.setenv(variable, "/absent/bundle.pem")

    with pytest.raises(Failure) as caught:
        find_wheel("1.0")

    assert first_line(caught).endswith("invalid path: /absent/bundle.pem")


# --- the user's settings ---------------------------------------------------------------------------------------

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


def test_stops_at_the_first_index_that_has_the_release(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_INDEX", f"{site.url}/empty/")  # it does not know the project
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://127.0.0.1:1/down")

    assert find_wheel("1.0").version == "1.0"
    assert [path for path, _ in site.asked] == ["/empty/vllm/", "/simple/vllm/"]


def test_uses_the_librarys_index_where_nobody_names_one(settings: Path) -> None:
    assert index._settings().indexes[0] == pypi_simple.PYPI_SIMPLE_ENDPOINT


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

    assert first_line(caught) == line


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

    assert first_line(caught).endswith(f": {file}: {cause}")

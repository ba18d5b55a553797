"""The wheel of a release on the user's indexes; every failure of an index is reported in one line."""

from __future__ import annotations

import hashlib
import socket
import time
from functools import partial
from pathlib import Path

import pytest
from vpatch.net import session
from vpatch.net.ranges import open_remote
from vpatch.net.session import LIMITS
from vpatch.release.index import find_wheel, listings
from vpatch.release.index_config import open_session, read_settings

from tests.drip import DRIPS, dripping
from tests.failures import problem_of
from tests.loopback import NAME, X86, IndexServer
from tests.tiers import deep


def versions() -> list[str]:
    """Return the versions that the only index offers and that are not yanked, oldest first."""
    (offers,) = listings()
    return [str(version) for version in sorted(offers) if not offers[version].yanked]


@pytest.mark.parametrize("page", ["html", "json"])
def test_the_wheel_is_found_on_either_kind_of_page(index: IndexServer, page: str) -> None:
    index.page = page

    wheel = find_wheel("1.0")

    assert (wheel.version, wheel.filename, wheel.url) == ("1.0", NAME, f"{index.url}/files/{NAME}")
    assert wheel.sha256 == hashlib.sha256(index.files[NAME]).hexdigest()


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
def test_one_wheel_is_chosen_whatever_their_order(index: IndexServer, names: list[str], best: int) -> None:
    for turn in (1, -1):
        for name in names[::turn]:
            index.files.pop(name, None)
            index.publish(name)
        assert find_wheel("2.0").filename == names[best]


def test_a_yanked_wheel_is_taken_only_where_there_is_no_other(index: IndexServer) -> None:
    index.publish(f"vllm-2.0-1-{X86}", attributes='data-yanked="bad"')
    assert find_wheel("2.0").filename == f"vllm-2.0-1-{X86}"

    index.publish(f"vllm-2.0-{X86}")
    assert find_wheel("2.0").filename == f"vllm-2.0-{X86}"


def test_releases_are_listed_oldest_first_without_yanked_ones(index: IndexServer) -> None:
    long = "1" * 5000  # digits, more than Python reads
    for version in ("0.10.0", "0.9.1", "0.11.0rc1"):
        index.publish(f"vllm-{version}-{X86}")
    index.publish(f"vllm-0.9.0-{X86}", attributes="data-yanked")
    index.publish(f"vllm-{long}-py3-none-any.whl")
    index.publish(f"vllm-1.0-{long}-py3-none-any.whl")

    assert versions() == ["0.9.1", "0.10.0", "0.11.0rc1", "1.0"]


def test_an_unknown_release_is_answered_with_its_neighbors(index: IndexServer) -> None:
    for minor in range(1, 9):
        index.publish(f"vllm-1.{minor}-{X86}")

    several = "1.2, 1.3, 1.4, 1.5, 1.6, 1.7 ... 1.8"
    assert str(problem_of(find_wheel, "1.4.5")) == f"no such release: vllm 1.4.5: the index has {several}"
    assert str(problem_of(find_wheel, "9.9.9")) == "no such release: vllm 9.9.9: the index has 1.6, 1.7, 1.8"


@pytest.mark.parametrize("version", ["latest", "1" * 5000])
def test_what_is_no_version_is_refused_without_a_request(index: IndexServer, version: str) -> None:
    assert str(problem_of(find_wheel, version)) == f"not a version: {version}: a release reads like 0.20.2"
    assert index.asked == []


FAILED, NO_PAGE = "package index failed: {}/simple/: ", "it sent something else than a project page"


@pytest.mark.parametrize(
    ("trouble", "limit", "line"),
    [
        ({"page": "500"}, {}, FAILED + "the server answers 500 internal server error"),
        ({"page": "403"}, {}, FAILED + "the server answers 403 forbidden"),
        *(({"page": page}, {}, FAILED + NO_PAGE) for page in ("picture", "other", "newer", "broken", "nested")),
        ({"page": "404"}, {}, "no such project: vllm: no wheel at {}/simple/"),
        ({"page": "garbage"}, {}, "no such project: vllm: no wheel at {}/simple/"),
        ({"login": "me:secret"}, {}, FAILED + "the server answers 401 unauthorized"),
        ({"page": "html"}, {"answer": 100}, FAILED + "too large: an answer may have 100 bytes"),
        ({"page": "json"}, {"answer": 100}, FAILED + "too large: an answer may have 100 bytes"),
        ({"page": "html"}, {"listed": 0}, FAILED + "it lists more than 0 files"),
        ({"stalls": "/simple/"}, {}, FAILED + "no answer within 0.1 s"),
    ],
)
def test_what_a_broken_index_did(
    index: IndexServer, monkeypatch: pytest.MonkeyPatch, trouble: dict[str, str], limit: dict[str, int], line: str
) -> None:
    vars(index).update(trouble)
    for name, value in limit.items():
        monkeypatch.setattr(LIMITS, name, value)
    if "stalls" in trouble:
        monkeypatch.setattr(session, "TIMEOUT", 0.1)

    assert str(problem_of(find_wheel, "1.0")) == line.format(index.url)


def test_an_index_that_is_busy_or_down(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    index.failures = 2
    assert find_wheel("1.0").version == "1.0"
    assert len(index.asked) == 3

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/simple"
        monkeypatch.setenv("PIP_INDEX_URL", url)
        assert str(problem_of(find_wheel, "1.0")) == f"package index failed: {url}: connection refused"


def test_no_index_is_asked_behind_the_one_that_has_the_release(
    index: IndexServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_INDEX", f"{index.url}/empty/")  # it does not know the project
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://127.0.0.1:1/down")

    assert find_wheel("1.0").version == "1.0"
    assert [path for path, _ in index.asked] == ["/empty/vllm/", "/simple/vllm/"]


FIRST_DRIPS = {("header", "index"), ("chunk", "wheel"), ("status", "proxy")}
DRIPPING = [(kind, what) for kind in DRIPS for what in ("index", "wheel", "proxy")]


@pytest.mark.parametrize(("kind", "what"), [one if one in FIRST_DRIPS else deep(*one) for one in DRIPPING])
def test_a_server_that_drips(settings: Path, monkeypatch: pytest.MonkeyPatch, kind: str, what: str) -> None:
    monkeypatch.setattr(LIMITS, "grace", 0.2)
    monkeypatch.setattr(session, "BACKOFF", 0)
    began = time.monotonic()
    with dripping(kind) as host, open_session(read_settings()) as asking:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://{host if what == 'index' else 'index.example'}/simple/")
        monkeypatch.setenv("http_proxy", f"http://{host}" if what == "proxy" else "")
        ask = partial(open_remote, asking, f"http://{host}/wheel") if what == "wheel" else partial(find_wheel, "1.0")
        line = str(problem_of(ask))

    assert "too slow: " in line
    assert line.endswith("and 16 KiB a second are the least, after 0.2 s")
    assert time.monotonic() - began < 10

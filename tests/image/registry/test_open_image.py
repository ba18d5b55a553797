"""An image is found by tag or digest, for a platform, and verified; a failing registry is reported in one line."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from vpatch.image.registry import image as remote
from vpatch.image.registry.layers import LayeredFiles
from vpatch.net import session

from tests.failures import problem_of
from tests.image.registry.images import TYPES, opened, put_image, put_index, tar
from tests.image.registry.proxy import Proxy

OLD = "application/vnd.docker.distribution.manifest.v1+prettyjws"
CHART = "application/vnd.cncf.helm.config.v1+json"
NOWHERE = f"sha256:{'0' * 64}"
LAYER = "a layer is of a kind that vpatch does not read: "
STRANGE = [f"application/vnd.docker.image.rootfs.{kind}" for kind in ("foreign.diff.tar.gzip", "diff.tar.bzip2")]
NO_IMAGE = "it is no image of a container: its config is"
NONE = "a descriptor in it is none, or of a digest other than sha256"
NO_OBJECT, DAMAGED = (f"its manifest or its config is {what}" for what in ("no JSON object", "damaged"))
LAYERS = (tar(("etc", None), ("etc/one", b"1")), tar(("etc/two", b"2")))


@pytest.fixture
def name(proxy: Proxy) -> str:
    put_image(proxy.behind, "pulled/name", "x", [tar(("a.py", b"a"))])
    return f"{proxy.host}/pulled/name:x"


def refusal(name: str, platform: str = "linux/amd64") -> str:
    problem = problem_of(opened, name, platform)
    assert (problem.what, problem.where) == ("cannot read", name)
    return problem.cause


@pytest.mark.parametrize("flavour", TYPES)
def test_reads_an_image_by_tag_and_by_digest(
    proxy: Proxy, registry: str, monkeypatch: pytest.MonkeyPatch, flavour: str
) -> None:
    """A proxy in the environment is not asked for loopback. An OCI manifest need not name its type."""
    built = put_image(registry, "pulled/one", flavour, LAYERS, flavour=flavour)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    image = opened(f"{registry}/pulled/one:{flavour}")
    again = opened(f"{registry}/pulled/one@{built.digest}")

    assert image.digest == again.digest == built.digest
    assert image.manifest.body == json.loads(image.manifest.raw) == built.manifest
    assert image.manifest.media_type == TYPES[flavour][0]
    assert image.config == again.config == built.config
    assert [layer.json for layer in image.layers] == built.manifest["layers"]
    assert list(image.diff_ids) == built.config["rootfs"]["diff_ids"]
    assert (image.base.ref, image.base.digest) == (f"{registry}/pulled/one:{flavour}", built.digest)
    assert (image.base.env, image.base.labels) == ({"PATH": "/usr/bin", "EMPTY": ""}, {"a": "b"})
    if flavour == "oci":
        untyped = {key: value for key, value in built.manifest.items() if key != "mediaType"}
        kind = {"Content-Type": f"{TYPES['oci'][0]}; charset=utf-8"}
        proxy.fail("GET", "/manifests/", status=200, body=json.dumps(untyped).encode(), headers=kind)
        assert opened(f"{proxy.host}/pulled/one:oci").manifest.media_type == TYPES["oci"][0]


@pytest.mark.parametrize("flavour", TYPES)
def test_selects_the_platform_of_an_index(registry: str, flavour: str) -> None:
    repository = f"pulled/index-{flavour}"
    images = {
        name: put_image(registry, repository, "", LAYERS[: number + 1], flavour=flavour, platform=name)
        for number, name in enumerate(("linux/arm64", "linux/amd64"))
    }
    attestation = put_image(registry, repository, "", (), flavour=flavour, platform="unknown/unknown")
    index = put_index(registry, repository, "all", {"unknown/unknown": attestation, **images}, flavour=flavour)
    name = f"{registry}/{repository}:all"

    for platform, built in images.items():
        image = opened(name, platform)
        assert (image.digest, image.config) == (built.digest, built.config)
        assert opened(f"{registry}/{repository}@{index}", platform).digest == built.digest
    assert refusal(name, "linux/riscv64") == "it is not for linux/riscv64, only for linux/amd64, linux/arm64"
    assert (
        refusal(f"{registry}/{repository}@{images['linux/arm64'].digest}") == "it is for linux/arm64, not linux/amd64"
    )


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"schemaVersion": 1, "mediaType": OLD}, "it is of schema 1, which is too old"),
        ({"mediaType": "text/html"}, "it is no image: text/html"),
        ({"layers": 3}, DAMAGED),
        ({"layers": [3, 3]}, NONE),
        ({"layers": []}, "it has 0 layers, and its config names 2"),
        ({"config": None}, NONE),
        ({"config": {"mediaType": CHART, "size": 1, "digest": NOWHERE}}, f"{NO_IMAGE} 1 bytes of {CHART}"),
        ({"mediaType": TYPES["docker"][3], "manifests": [1]}, DAMAGED),
        ({"mediaType": TYPES["docker"][3]}, DAMAGED),
        ({"mediaType": TYPES["docker"][3], "manifests": []}, "it is not for linux/amd64, only for nothing"),
        *(({"layers": [{"mediaType": kind, "size": 1, "digest": NOWHERE}]}, f"{LAYER}{kind}") for kind in STRANGE),
        *((body, NO_OBJECT) for body in (b"<html>", b"[]", b"\xff", b"[" * 100_000)),
    ],
)
def test_refuses_anything_but_an_image(proxy: Proxy, answer: dict[str, Any] | bytes, why: str) -> None:
    built = put_image(proxy.behind, "pulled/odd", "x", LAYERS)
    body = answer if isinstance(answer, bytes) else json.dumps({**built.manifest, **answer}).encode()
    proxy.fail("GET", "/manifests/", status=200, body=body)

    assert refusal(f"{proxy.host}/pulled/odd:x") == why


def test_checks_every_digest(proxy: Proxy) -> None:
    built = put_image(proxy.behind, "pulled/checked", "x", LAYERS)
    pointer = built.manifest["config"]["digest"]
    name = f"{proxy.host}/pulled/checked"
    proxy.fail("GET", "/manifests/", spoil="corrupt", times=2)
    for place in (f"{name}:x", f"{name}@{built.digest}"):
        assert refusal(place) == f"its manifest is not what its digest {built.digest} says"

    for spoil in ("corrupt", "longer"):
        proxy.fail("GET", "/blobs/", spoil=spoil, times=1)
        assert refusal(f"{name}:x") == f"the blob {pointer} is not what its digest says"
    proxy.fail("GET", "/manifests/", spoil="cut")
    assert refusal(f"{name}:x").startswith("its manifest is cut: ")


def test_an_endless_manifest_is_not_read_whole(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LARGEST", 1000)
    proxy.fail("GET", "/manifests/", status=200, body=b" " * 200_000)

    assert refusal(f"{proxy.host}/pulled/large:x") == "its manifest is larger than any may be"


@pytest.mark.parametrize(
    ("status", "tries", "why"),
    [
        (404, 1, "no such image"),
        (418, 1, "the server answers 418"),
        (429, 4, "too many requests: wait, or log in with `docker login HOST`"),
        (503, 4, "the server answers 503 service unavailable"),
        (307, 31, "HOST: too many redirects"),
    ],
)
def test_an_answer_with_an_error_status(proxy: Proxy, name: str, status: int, tries: int, why: str) -> None:
    """A redirect leads to itself."""
    where = {"Location": f"http://{proxy.host}/v2/pulled/name/manifests/x"} if status == 307 else {}
    proxy.fail("GET", "/manifests/", status=status, body=b'{"errors": [{"code": "X"}]}', headers=where)

    assert refusal(name).startswith(why.replace("HOST", proxy.host))
    assert len(proxy.asked) == tries


def test_a_missing_image_or_layer(proxy: Proxy, name: str, registry: str) -> None:
    for other in ("none:x", "name:none", f"name@{NOWHERE}"):
        assert refusal(f"{registry}/pulled/{other}") == "no such image"
    image = opened(name)
    proxy.fail("GET", "/blobs/", status=404)
    problem = problem_of(LayeredFiles(image, lambda _: True).descend)
    assert problem.cause == f"the blob {image.layers[0].digest} is not there"


def test_a_busy_server_is_asked_again(proxy: Proxy, name: str) -> None:
    retry = {"status": 429, "headers": {"Retry-After": "3600"}}
    for fault in ({"status": 500}, retry, {"spoil": "hang up"}):
        proxy.fail("GET", "/manifests/", times=2, **fault)
        proxy.fail("GET", "/blobs/", times=2, **fault)

        assert LayeredFiles(opened(name), lambda _: True).descend()


def test_a_registry_that_is_down_or_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        assert refusal(f"{host}/a/b:c") == f"{host}: no answer within 0.2 s"
    assert refusal(f"{host}/a/b:c") == f"{host}: connection refused"


def test_only_loopback_is_asked_in_plain_http(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves to this machine is not a loopback address."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more: resolve("127.0.0.1", *more))
    port = proxy.host.partition(":")[2]

    assert "SSL" in refusal(f"registry.example.org:{port}/a/b:c")
    assert proxy.asked == []

"""A push sends only what the registry lacks, in the cheapest way, and sets the tag last."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import requests
from vpatch.errors import Failure
from vpatch.image.patch import Layer
from vpatch.image.registry import session
from vpatch.image.registry.build import push, tag
from vpatch.image.registry.image import RemoteImage, open_image, read_blob
from vpatch.image.registry.layers import LayeredFiles
from vpatch.image.registry.reference import Reference, parse

from tests.failures import problem_of
from tests.image.registry.conftest import Put
from tests.image.registry.images import PACKS, TYPES, digest, opened, put_image, tar
from tests.image.registry.proxy import Proxy

BALLAST = random.Random(5).randbytes(400_000)  # noqa: S311
PATCH = tar(("a.py", b"new"))


def layer_of(data: bytes) -> Layer:
    blob = PACKS["gzip"](data)
    return Layer(blob, digest(blob), digest(data), ("a.py",))


LAYER = layer_of(PATCH)


def config_of(base: RemoteImage) -> dict[str, Any]:
    rootfs = {"type": "layers", "diff_ids": [*base.diff_ids, LAYER.diff_id]}
    history = [*base.config["history"], {"created_by": "vpatch build"}]
    return {**base.config, "rootfs": rootfs, "history": history, "author": "caf\xe9"}


class Pushed(NamedTuple):
    digest: str
    sent: int


@pytest.fixture
def base(put: Put) -> Put:
    """`base()`: push and open an image of two layers."""
    return partial(put, tar(("a.py", b"old")), tar(("big", BALLAST)))


def send(base: RemoteImage, target: str) -> tuple[Pushed, Reference]:
    ref = parse(target)
    return Pushed(*push(base, ref, LAYER, config_of(base), {"org.example": "1"})), ref


@pytest.mark.parametrize("flavour", TYPES)
def test_mounts_the_base_and_tags_last(proxy: Proxy, base: Put, flavour: str) -> None:
    added = {"annotations": {"org.base": "0"}, "subject": {}} if flavour == "oci" else {}
    image = base(host=proxy.host, flavour=flavour, manifest=added)
    before = len(proxy.asked)

    pushed, ref = send(image, f"{proxy.host}/push/mounted-{flavour}:y")

    asked = proxy.asked[before:]
    assert proxy.count("GET", "/blobs/") == 1  # of the base's config, when it was opened
    bodies = [int(one.headers["content-length"]) for one in asked if one.method == "PUT" and "/uploads/" in one.path]
    assert len(bodies) == 2, "both layers of the base were mounted"
    assert bodies[0] == len(LAYER.blob)
    assert pushed.sent == sum(bodies)
    assert not any(one.path.endswith("/manifests/y") for one in asked)
    assert "no such image" in str(problem_of(open_image, ref))

    tag(ref, pushed.digest, "y")

    new = open_image(ref)
    assert new.digest == pushed.digest
    assert new.config == config_of(image)
    assert new.manifest.media_type == TYPES[flavour][0]
    assert new.manifest.body["layers"] == [
        *image.manifest.body["layers"],
        {"mediaType": TYPES[flavour][2], "size": len(LAYER.blob), "digest": LAYER.digest},
    ]
    assert new.manifest.body["config"]["mediaType"] == TYPES[flavour][1]
    assert new.manifest.body.get("annotations") == ({"org.base": "0", "org.example": "1"} if flavour == "oci" else None)
    assert "subject" not in new.manifest.body
    files = LayeredFiles(new, lambda _: True)
    assert files.locate("a.py")
    assert files.read("a.py") == b"new"
    assert files.locate("big")
    assert [layer.digest for layer in files.layers_read] == [LAYER.digest, image.layers[1].digest]


def test_pushed_twice_is_sent_once(proxy: Proxy, base: Put) -> None:
    image = base(host=proxy.host)
    first, _ = send(image, f"{proxy.host}/push/twice")
    before = proxy.count("POST", "/uploads/")

    again, _ = send(image, f"{proxy.host}/push/twice")

    assert again == (first.digest, 0)
    assert proxy.count("POST", "/uploads/") == before


def test_into_the_repository_of_the_base(registry: str, base: Put) -> None:
    image = base()

    pushed, ref = send(image, str(image.ref))

    assert pushed.sent < 2000
    assert open_image(image.ref).digest == image.digest, "the base's own tag stays"
    assert open_image(replace(ref, tag=None, digest=pushed.digest)).layers


def test_copies_the_base_to_another_registry(second_registry: str, base: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    image = base()
    sizes: list[int] = []

    def heard(*source: Any) -> Iterator[bytes]:
        for block in read_blob(*source):
            sizes.append(len(block))
            yield block

    monkeypatch.setattr("vpatch.image.registry.build.read_blob", heard)
    pushed, ref = send(image, f"{second_registry}/push/copied:y")
    tag(ref, pushed.digest, "y")

    assert pushed.sent > sum(sizes) > 400_000
    assert max(sizes) <= 1 << 16
    new = open_image(ref)
    files = LayeredFiles(new, lambda _: True)
    assert files.locate("big")
    assert files.read("big") == BALLAST
    assert send(image, f"{second_registry}/push/copied:y")[0] == (pushed.digest, 0)


@pytest.mark.parametrize("fault", [{"status": 202}, {"status": 404}, {"status": 405}, {"status": 503}, {"status": 403}])
def test_sends_blobs_that_cannot_be_mounted(proxy: Proxy, base: Put, fault: dict[str, Any]) -> None:
    target = f"push/unmounted-{fault['status']}"
    if fault["status"] == 202:  # as registries answer for a blob that is not where it was said to be
        begun = requests.post(f"http://{proxy.behind}/v2/{target}/blobs/uploads/", timeout=20)
        fault = {"status": 202, "headers": {"Location": begun.headers["Location"]}, "times": 1}
    image = base(host=proxy.host)
    proxy.fail("POST", f"mount={image.layers[1].digest}", **fault)

    pushed, ref = send(image, f"{proxy.host}/{target}:y")

    assert pushed.sent > 400_000
    assert open_image(replace(ref, digest=pushed.digest)).layers[:2] == image.layers


@pytest.mark.parametrize("spoil", ["cut", "short"])
def test_a_blob_that_is_cut_is_copied_anew(proxy: Proxy, second_registry: str, base: Put, spoil: str) -> None:
    image = base(host=proxy.host)
    proxy.fail("GET", image.layers[1].digest, spoil=spoil, times=2)

    pushed, ref = send(image, f"{second_registry}/push/cut-{spoil}:y")

    assert pushed.sent > 400_000
    assert open_image(replace(ref, digest=pushed.digest)).layers
    proxy.fail("GET", image.layers[1].digest, spoil=spoil, times=3)
    why = str(problem_of(send, image, f"{second_registry}/push/cut-{spoil}-too-often:y"))
    assert why.startswith(f"cannot read: {image.ref}: the blob {image.layers[1].digest} is cut: ")


@pytest.mark.parametrize("spoil", ["corrupt", "longer"])
def test_a_blob_that_is_not_what_its_digest_says_is_not_copied(
    proxy: Proxy, second_registry: str, base: Put, spoil: str
) -> None:
    image = base(host=proxy.host)
    proxy.fail("GET", image.layers[1].digest, spoil=spoil)

    why = str(problem_of(send, image, f"{second_registry}/push/{spoil}:y"))

    assert why == f"cannot read: {image.ref}: the blob {image.layers[1].digest} is not what its digest says"
    there = f"http://{second_registry}/v2/push/{spoil}/blobs/{image.layers[1].digest}"
    assert requests.head(there, timeout=20).status_code == 404


def test_a_mount_asks_for_tokens_to_read_and_to_write(proxy: Proxy, base: Put) -> None:
    proxy.wants_tokens = True
    image = base(host=proxy.host)

    pushed, ref = send(image, f"{proxy.host}/push/tokens:y")
    tag(ref, pushed.digest, "y")

    assert pushed.sent < 2000
    assert open_image(ref).digest == pushed.digest


def test_tokens_that_expire_during_a_copy(proxy: Proxy, elsewhere: Proxy, base: Put) -> None:
    """The body of a blob is sent twice if its token expires in between."""
    for server in (proxy, elsewhere):
        server.wants_tokens, server.uses = True, 2
    image = base(host=proxy.host)

    pushed, ref = send(image, f"{elsewhere.host}/push/expiring:y")
    tag(ref, pushed.digest, "y")

    assert open_image(ref).digest == pushed.digest
    assert elsewhere.count("GET", "/token") > 3


def test_a_repository_that_can_be_written_but_not_read(proxy: Proxy, base: Put) -> None:
    image = base(host=proxy.host)
    proxy.fail("HEAD", "/blobs/", status=403, times=1)

    pushed, ref = send(image, f"{proxy.host}/push/first:y")

    assert pushed.sent < 2000
    assert open_image(replace(ref, digest=pushed.digest)).layers


def test_a_registry_that_never_stores_a_blob(proxy: Proxy, base: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "COMMIT", 0.3)
    proxy.fail("PUT", "/uploads/", spoil="stall")

    assert str(problem_of(send, base(), f"{proxy.host}/push/stalls:y")).endswith(": no answer within 0.3 s")


def test_without_the_right_to_mount_the_base_is_sent(proxy: Proxy, base: Put) -> None:
    image = base(host=proxy.host)
    proxy.wants_tokens = True
    proxy.closed.add(image.ref.repository)
    readable = replace(image, repository=base().repository)

    pushed, ref = send(readable, f"{proxy.host}/push/closed:y")

    assert pushed.sent > 400_000
    assert open_image(replace(ref, digest=pushed.digest)).layers


@pytest.mark.parametrize(
    ("method", "path", "status", "body", "why"),
    [
        ("POST", "/uploads/", 401, b"", "private, or not there: log in with `docker login HOST`"),
        ("POST", "/uploads/", 403, b"", "private, or not there: log in with `docker login HOST`"),
        ("POST", "/uploads/", 404, b"", "no such repository"),
        ("POST", "/uploads/", 429, b"", "too many requests: wait, or log in with `docker login HOST`"),
        ("POST", "/uploads/", 500, b"", "the server answers 500 internal server error"),
        ("HEAD", "/blobs/", 503, b"", "the server answers 503 service unavailable"),
        ("PUT", "/uploads/", 404, b"", "its upload is gone"),
        ("PUT", "/uploads/", 400, b'{"errors": [{"code": "A_B"}]}', "the server answers 400 bad request (A_B)"),
        ("PUT", "/uploads/", 507, b"<html>", "the server answers 507 insufficient storage"),
        ("PUT", "/manifests/", 400, b'{"errors": [{"code": "\\u001b[31m"}]}', "the server answers 400 bad request"),
        ("PUT", "/manifests/", 400, b'{"errors": [3]}', "the server answers 400 bad request"),
        ("PUT", "/manifests/", 400, b"[" * 200_000, "the server answers 400 bad request"),
        ("PUT", "/manifests/", 502, b"", "the server answers 502 bad gateway"),
    ],
)  # fmt: skip
def test_reports_what_a_registry_answers(
    proxy: Proxy, base: Put, method: str, path: str, status: int, body: bytes, why: str
) -> None:
    proxy.fail(method, path, status=status, body=body)
    name = f"{proxy.host}/push/refused-{method.lower()}-{status}-{len(body)}:y"

    assert str(problem_of(send, base(), name)) == f"cannot push: {name}: {why.replace('HOST', proxy.host)}"


@pytest.mark.parametrize(("method", "path"), [("POST", "/uploads/"), ("PUT", "/uploads/"), ("PUT", "/manifests/")])
@pytest.mark.parametrize("fault", [{"status": 500}, {"spoil": "hang up"}])
def test_a_busy_server_is_asked_again(proxy: Proxy, base: Put, method: str, path: str, fault: dict[str, Any]) -> None:
    proxy.fail(method, path, times=2, **fault)

    pushed, ref = send(
        base(), f"{proxy.host}/push/busy-{method.lower()}-{path.strip('/')}-{len(fault)}-{fault.get('status', 0)}:y"
    )

    assert open_image(replace(ref, digest=pushed.digest)).layers


def test_a_registry_that_returns_something_else(proxy: Proxy, base: Put) -> None:
    image = base()
    proxy.fail("GET", "/manifests/sha256:", status=200, body=image.manifest.raw)

    assert "cannot push: " in (why := str(problem_of(send, image, f"{proxy.host}/push/lies:y")))
    assert ": its manifest is not what its digest sha256:" in why


def test_only_a_pushed_image_can_be_tagged(registry: str, base: Put) -> None:
    ref = base().ref

    assert str(problem_of(tag, ref, LAYER.digest, "y")) == f"cannot tag: {ref}: no such image"


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://user:secret@example.org/upload?secret=1", "it sends to http://example.org/upload, which is not https"),
        ("http://example.org\\@127.0.0.1/upload", "it sends to what is no address"),
        ("https://[1/upload", "invalid IPv6 URL"),
        ("", "its upload is gone"),
    ],
)
def test_no_upload_by_plain_http(proxy: Proxy, base: Put, location: str, why: str) -> None:
    proxy.fail("POST", "/uploads/", status=202, headers={"Location": location})

    name = f"{proxy.host}/push/leak:y"
    assert str(problem_of(send, base(), name)) == f"cannot push: {name}: {why}"


def test_a_stopped_push_leaves_the_tag(proxy: Proxy, base: Put) -> None:
    image = base()
    for answered in range(40):
        repository = f"push/stopped-{answered}"
        old = put_image(proxy.behind, repository, "y", [PATCH])
        proxy.fail_after(answered)
        try:
            ref = parse(f"{proxy.host}/{repository}:y")
            tag(ref, push(image, ref, LAYER, config_of(image), {})[0], "y")
        except Failure:
            assert opened(f"{proxy.behind}/{repository}:y").digest == old.digest
        else:
            break

    assert answered == len(proxy.asked) > 10


def test_an_upload_to_another_host_has_no_credentials(proxy: Proxy, elsewhere: Proxy, base: Put) -> None:
    proxy.wants_tokens = True
    image = base()
    begun = requests.post(f"http://{elsewhere.host}/v2/push/aside/blobs/uploads/", timeout=20)
    proxy.fail("POST", "/push/aside/", status=202, headers={"Location": begun.headers["Location"]}, times=1)

    pushed, _ = send(image, f"{proxy.host}/push/aside:y")

    assert pushed.digest
    (sent,) = (one for one in elsewhere.asked if one.method == "PUT")
    assert "authorization" not in sent.headers

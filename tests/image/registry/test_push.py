"""A push sends only what the registry lacks, in the cheapest way, and sets the tag last."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import requests
from vpatch.errors import Failure
from vpatch.image import ignored
from vpatch.image.patch import Layer
from vpatch.image.registry import session
from vpatch.image.registry.build import push, tag
from vpatch.image.registry.image import RemoteImage, open_image
from vpatch.image.registry.layers import LayeredFiles
from vpatch.image.registry.reference import Reference, parse
from vpatch.image.registry.repository import read_blob

from tests.failures import problem_of
from tests.image.registry.conftest import Put
from tests.image.registry.images import PACKS, TYPES, digest, opened, put_image, tar
from tests.image.registry.proxy import Proxy
from tests.tiers import deep

BALLAST = random.Random(5).randbytes(400_000)  # noqa: S311
PATCH = tar(("a.py", b"new"))
BLOB = PACKS["gzip"](PATCH)
LAYER = Layer(BLOB, digest(BLOB), digest(PATCH), ("a.py",))


def config_of(base: RemoteImage) -> dict[str, Any]:
    rootfs = {"type": "layers", "diff_ids": [*base.diff_ids, LAYER.diff_id]}
    history = [*base.config["history"], {"created_by": "vpatch build"}]
    return {**base.config, "rootfs": rootfs, "history": history, "author": "caf\xe9"}


@pytest.fixture
def base(put: Put) -> Put:
    """`base()`: push and open an image of two layers."""
    return partial(put, tar(("a.py", b"old")), tar(("big", BALLAST)))


def send(base: RemoteImage, target: str) -> tuple[Reference, int]:
    """Push; return the new image by its digest, and how many bytes were sent."""
    ref = parse(target)
    pushed, sent = push(base, ref, LAYER, config_of(base), {"org.example": "1"}, ignored)
    return replace(ref, tag=None, digest=pushed), sent


@pytest.mark.parametrize("flavour", TYPES)
def test_mounts_the_base_and_tags_last(proxy: Proxy, base: Put, flavour: str) -> None:
    added = {"annotations": {"org.base": "0"}, "subject": {}} if flavour == "oci" else {}
    image = base(host=proxy.host, flavour=flavour, manifest=added)
    before, name = len(proxy.asked), f"{proxy.host}/push/mounted-{flavour}:y"
    pushed, sent = send(image, name)

    asked = proxy.asked[before:]
    assert proxy.count("GET", "/blobs/") == 1  # of the base's config, when it was opened
    bodies = [int(one.headers["content-length"]) for one in asked if one.method == "PUT" and "/uploads/" in one.path]
    assert len(bodies) == 2, "both layers of the base were mounted"
    assert (bodies[0], sum(bodies)) == (len(BLOB), sent)
    assert not any(one.path.endswith("/manifests/y") for one in asked)
    assert "no such image" in str(problem_of(opened, name))

    tag(parse(name), str(pushed.digest), "y")

    new = opened(name)
    assert (new.digest, new.config) == (pushed.digest, config_of(image))
    assert new.manifest.media_type == TYPES[flavour][0]
    added_layer = {"mediaType": TYPES[flavour][2], "size": len(BLOB), "digest": LAYER.digest}
    assert new.manifest.body["layers"] == [*image.manifest.body["layers"], added_layer]
    assert new.manifest.body["config"]["mediaType"] == TYPES[flavour][1]
    assert new.manifest.body.get("annotations") == ({"org.base": "0", "org.example": "1"} if flavour == "oci" else None)
    assert "subject" not in new.manifest.body
    files = LayeredFiles(new, lambda _: True)
    assert files.locate("a.py")
    assert files.read("a.py") == b"new"
    assert files.locate("big")
    assert [layer.digest for layer in files.layers_read] == [LAYER.digest, image.layers[1].digest]

    starts = proxy.count("POST", "/uploads/")
    assert send(image, name) == (pushed, 0), "what is there is not sent again"
    assert proxy.count("POST", "/uploads/") == starts
    assert send(image, str(image.ref))[1] < 2000, "into the base's own repository"
    assert open_image(image.ref).digest == image.digest, "the base's own tag stays"


def test_copies_the_base_to_another_registry(second_registry: str, base: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    image = base()
    sizes: list[int] = []

    def heard(*source: Any) -> Iterator[bytes]:
        for block in read_blob(*source):
            sizes.append(len(block))
            yield block

    monkeypatch.setattr("vpatch.image.registry.build.read_blob", heard)
    pushed, sent = send(image, f"{second_registry}/push/copied:y")

    assert sent > sum(sizes) > 400_000
    assert max(sizes) <= 1 << 16
    files = LayeredFiles(open_image(pushed), lambda _: True)
    assert files.locate("big")
    assert files.read("big") == BALLAST
    assert send(image, f"{second_registry}/push/copied:y") == (pushed, 0)


@pytest.mark.parametrize("status", [202, 404, *map(deep, (405, 503, 403))])
def test_sends_blobs_that_cannot_be_mounted(proxy: Proxy, base: Put, status: int) -> None:
    target, fault = f"push/unmounted-{status}", dict[str, Any](status=status)
    if status == 202:  # as registries answer for a blob that is not where it was said to be
        begun = requests.post(f"http://{proxy.behind}/v2/{target}/blobs/uploads/", timeout=20)
        fault |= {"headers": {"Location": begun.headers["Location"]}, "times": 1}
    image = base(host=proxy.host)
    proxy.fail("POST", f"mount={image.layers[1].digest}", **fault)
    pushed, sent = send(image, f"{proxy.host}/{target}:y")

    assert sent > 400_000
    assert open_image(pushed).layers[:2] == image.layers


def test_a_blob_that_is_damaged(proxy: Proxy, second_registry: str, base: Put) -> None:
    """One that is cut is copied anew, but not one that is not what its digest says; `test_layers.py` has all kinds."""
    image = base(host=proxy.host)
    digest = image.layers[1].digest
    for spoil, times, why in (
        ("cut", 2, ""),
        ("cut", 3, f"the blob {digest} is cut: "),
        ("corrupt", 1, f"the blob {digest} is not what its digest says"),
    ):
        target = f"push/{spoil}-{times}"
        proxy.fail("GET", digest, spoil=spoil, times=times)
        if why:
            line = str(problem_of(send, image, f"{second_registry}/{target}:y"))
            assert line.startswith(f"cannot read: {image.ref}: {why}")
        else:
            assert send(image, f"{second_registry}/{target}:y")[1] > 400_000
        there = requests.head(f"http://{second_registry}/v2/{target}/blobs/{digest}", timeout=20)
        assert there.ok is not bool(why)


def test_tokens(proxy: Proxy, elsewhere: Proxy, base: Put) -> None:
    """A mount asks for those to read and to write. The body of a blob is sent twice if one expires in between."""
    proxy.wants_tokens = True
    pushed, sent = send(base(host=proxy.host), f"{proxy.host}/push/tokens:y")
    assert sent < 2000
    assert open_image(pushed).layers

    for server in (proxy, elsewhere):
        server.wants_tokens, server.uses = True, 2
    pushed, _ = send(base(host=proxy.host), f"{elsewhere.host}/push/expiring:y")
    assert open_image(pushed).layers
    assert elsewhere.count("GET", "/token") > 3


def test_what_the_user_may_not_do(proxy: Proxy, base: Put) -> None:
    """A repository may be written and not read; without the right to mount the base, it is sent."""
    image = base(host=proxy.host)
    proxy.fail("HEAD", "/blobs/", status=403, times=1)
    assert send(image, f"{proxy.host}/push/first:y")[1] < 2000

    proxy.wants_tokens = True
    proxy.closed.add(image.ref.repository)
    pushed, sent = send(replace(image, repository=base().repository), f"{proxy.host}/push/closed:y")
    assert sent > 400_000
    assert open_image(pushed).layers


def test_a_registry_that_never_stores_a_blob(proxy: Proxy, base: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "COMMIT", 0.3)
    proxy.fail("PUT", "/uploads/", spoil="stall")

    assert str(problem_of(send, base(), f"{proxy.host}/push/stalls:y")).endswith(": no answer within 0.3 s")


@pytest.mark.parametrize(
    ("method", "path", "answer", "why"),
    [
        ("POST", "/uploads/", (401, b""), "private, or not there: log in with `docker login HOST`"),
        ("POST", "/uploads/", (403, b""), "private, or not there: log in with `docker login HOST`"),
        ("POST", "/uploads/", (404, b""), "no such repository"),
        ("POST", "/uploads/", (429, b""), "too many requests: wait, or log in with `docker login HOST`"),
        ("POST", "/uploads/", (500, b""), "the server answers 500 internal server error"),
        ("HEAD", "/blobs/", (503, b""), "the server answers 503 service unavailable"),
        ("PUT", "/uploads/", (404, b""), "its upload is gone"),
        ("PUT", "/uploads/", (400, b'{"errors": [{"code": "A_B"}]}'), "the server answers 400 bad request (A_B)"),
        ("PUT", "/uploads/", (507, b"<html>"), "the server answers 507 insufficient storage"),
        ("PUT", "/manifests/", (400, b'{"errors": [{"code": "\\u001b[31m"}]}'), "the server answers 400 bad request"),
        ("PUT", "/manifests/", (400, b'{"errors": [3]}'), "the server answers 400 bad request"),
        ("PUT", "/manifests/", (400, b"[" * 200_000), "the server answers 400 bad request"),
        ("PUT", "/manifests/", (502, b""), "the server answers 502 bad gateway"),
        # Where an upload is sent to by an answer to POST.
        ("POST", "/uploads/", "http://user:secret@a.org/up?x=1", "it sends to http://a.org/up, which is not https"),
        ("POST", "/uploads/", "http://example.org\\@127.0.0.1/upload", "it sends to what is no address"),
        ("POST", "/uploads/", "https://[1/upload", "invalid IPv6 URL"),
        ("POST", "/uploads/", "", "its upload is gone"),
    ],
)
def test_reports_what_a_registry_answers(
    proxy: Proxy, base: Put, method: str, path: str, answer: tuple[int, bytes] | str, why: str
) -> None:
    status, body = (202, b"") if isinstance(answer, str) else answer
    headers = {"Location": answer} if isinstance(answer, str) else {}
    proxy.fail(method, path, status=status, body=body, headers=headers)
    name = f"{proxy.host}/push/refused-{method.lower()}-{status}-{len(body)}:y"

    assert str(problem_of(send, base(), name)) == f"cannot push: {name}: {why.replace('HOST', proxy.host)}"


@pytest.mark.parametrize(("method", "path"), [("POST", "/uploads/"), ("PUT", "/uploads/"), ("PUT", "/manifests/")])
@pytest.mark.parametrize("fault", [{"status": 500}, {"spoil": "hang up"}])
def test_a_busy_server_is_asked_again(proxy: Proxy, base: Put, method: str, path: str, fault: dict[str, Any]) -> None:
    proxy.fail(method, path, times=2, **fault)
    repository = f"push/busy-{method.lower()}-{path.strip('/')}-{fault.get('status', 0)}"

    assert open_image(send(base(), f"{proxy.host}/{repository}:y")[0]).layers


def test_only_what_was_pushed_can_be_tagged(proxy: Proxy, base: Put) -> None:
    image = base()
    assert str(problem_of(tag, image.ref, LAYER.digest, "y")) == f"cannot tag: {image.ref}: no such image"

    proxy.fail("GET", "/manifests/sha256:", status=200, body=image.manifest.raw)
    why = str(problem_of(send, image, f"{proxy.host}/push/lies:y"))
    assert why.startswith("cannot push: ")
    assert ": its manifest is not what its digest sha256:" in why


@pytest.mark.parametrize("every", [6, deep(1)])
def test_a_stopped_push_leaves_the_tag(proxy: Proxy, base: Put, every: int) -> None:
    image = base()
    for answered in range(0, 60, every):
        name = f"push/stopped-{every}-{answered}"
        old, ref = put_image(proxy.behind, name, "y", [PATCH]), parse(f"{proxy.host}/{name}:y")
        proxy.fail_after(answered)
        try:
            tag(ref, str(send(image, str(ref))[0].digest), "y")
        except Failure:
            assert opened(f"{proxy.behind}/{name}:y").digest == old.digest
        else:
            break

    assert answered >= len(proxy.asked) > 10


def test_an_upload_to_another_host_has_no_credentials(proxy: Proxy, elsewhere: Proxy, base: Put) -> None:
    proxy.wants_tokens = True
    image = base()
    begun = requests.post(f"http://{elsewhere.host}/v2/push/aside/blobs/uploads/", timeout=20)
    proxy.fail("POST", "/push/aside/", status=202, headers={"Location": begun.headers["Location"]}, times=1)

    assert send(image, f"{proxy.host}/push/aside:y")[0].digest
    (sent,) = (one for one in elsewhere.asked if one.method == "PUT")
    assert "authorization" not in sent.headers

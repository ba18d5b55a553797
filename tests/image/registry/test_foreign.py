"""Hostile images and answers are refused in one line that names the true cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from vpatch.image.registry.image import read_object

from tests.conftest import Program
from tests.image.registry.conftest import Refused
from tests.image.registry.images import Built, build, put_base, put_image, tar
from tests.image.registry.proxy import Proxy, secured
from tests.image.standin import SITE

LABEL = "io.vpatch.overlays"
SAID: dict[str, Any] = {"vpatch": "1", "vllm": "0.20.2", "root": "/x", "python": None, "overlays": [], "files": {}}


def label(**changes: Any) -> dict[str, Any]:
    return {"config": {"Labels": {LABEL: json.dumps({**SAID, **changes})}}}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"history": {}}, "history is no array"),
        ({"history": {"a": 1}}, "history is no array"),
        ({"history": [3]}, "history[0] is no object"),
        ({"config": 3}, "config is no object"),
        ({"config": {"Labels": [1]}}, "config.Labels is no object"),
        ({"config": {"Labels": {"a": 1}}}, "config.Labels.a is no string"),
        ({"config": {"Env": 3}}, "config.Env is no array"),
        ({"config": {"Env": [1]}}, "config.Env[0] is no string"),
        ({"config": {"WorkingDir": 3}}, "config.WorkingDir is no string"),
        ({"created": 3}, "created is no string"),
        ({"rootfs": {"diff_ids": [1]}}, "rootfs.diff_ids[0] is no string"),
        ({"os": ["linux"]}, "os is no string"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "build"])
def test_a_config_that_does_not_match_the_schema(
    vpatch: Program, registry: str, command: str, settings: dict[str, Any], why: str
) -> None:
    name = f"{registry}/foreign/config:{command}"
    put_image(registry, "foreign/config", command, [tar(("a", b""))], settings=settings)
    rest = ("--quiet", "--tag", f"{registry}/foreign/no:x")
    ran = vpatch("inspect", "--quiet", name) if command == "inspect" else build(vpatch, name, *rest)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"cannot read: {name}: its config is damaged: {why}\n"
    assert requests.get(f"http://{registry}/v2/foreign/no/tags/list", timeout=5).status_code == 404


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (label(overlays=["x"]), "overlays[0] is no object"),
        (label(overlays={}), "overlays is no array"),
        (label(overlays=[{"id": "x"}]), "overlays[0] has no state"),
        (label(files=["x"]), "files is no object"),
        (label(files={"a": 1}), "files.a is no object"),
        (label(files={"a": {"before": None, "after": 3}}), "files.a.after is no array"),
        (label(root=3), "root is no string"),
        ({"config": {"Labels": {LABEL: "[]"}}}, "it is no object"),
        ({"config": {"Labels": {LABEL: "{}"}}}, "it has no vpatch"),
        ({"config": {"Labels": {LABEL: "{"}}}, "no JSON"),
        ({"config": {"Labels": {LABEL: "[" * 100_000}}}, "no JSON"),
    ],
)
def test_a_label_that_does_not_match_the_schema(
    vpatch: Program, registry: str, settings: dict[str, Any], why: str
) -> None:
    name = f"{registry}/foreign/label:x"
    put_image(registry, "foreign/label", "x", [tar(("a", b""))], settings=settings)
    ran = vpatch("inspect", "--quiet", name)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"cannot read provenance: {name}: not what vpatch writes: {why}\n"


def test_annotations_that_do_not_match_the_schema(vpatch: Program, registry: str, proxy: Proxy) -> None:
    name = f"{proxy.host}/foreign/annotations:x"
    built = put_image(registry, "foreign/annotations", "x", [tar(("a", b""))], flavour="oci")
    body = json.dumps({**built.manifest, "annotations": {"a": [1]}})
    proxy.fail("GET", "/manifests/", status=200, body=body.encode())

    ran = vpatch("inspect", "--quiet", name)

    assert ran.err == f"cannot read: {name}: its manifest is damaged: annotations.a is no string\n"


def test_a_lone_surrogate_in_an_annotation(
    vpatch: Program, registry: str, layers: list[bytes], nothing_is_tagged: Callable[[str], bool]
) -> None:
    """A lone surrogate, which JSON allows and UTF-8 cannot encode: the new manifest could not be written."""
    annotations = {"annotations": {"a": "\ud800"}}
    base = put_base(registry, layers, "foreign/half:x", flavour="oci", manifest=annotations)
    ran = build(vpatch, base.name, "--tag", f"{registry}/foreign/whole:x", "--quiet")

    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"cannot read: {base.name}: its manifest or its config has half of a character\n"
    assert nothing_is_tagged("foreign/whole")
    blobs = [blob["digest"] for blob in base.built.manifest["layers"]]
    there = [requests.head(f"http://{registry}/v2/foreign/whole/blobs/{blob}", timeout=5).ok for blob in blobs]
    assert there == [False] * len(blobs)


@pytest.mark.parametrize("raw", [b'{"a": "\\udfff"}', b'{"\\ud83d": 1}', b'{"a": "\xed\xa0\x80"}'])
def test_a_lone_surrogate(raw: bytes) -> None:
    with pytest.raises(ValueError, match="half of a character"):
        read_object(raw)


@pytest.mark.parametrize(
    ("file", "content", "what"),
    [
        ("vpatch-image.json", b'{"overlays": ["x"]}', "cannot read provenance: /FILE: not what vpatch writes: "),
        ("vpatch-image.json", b"\xff", "cannot read provenance: /FILE: not what vpatch writes: no JSON"),
        ("RECORD", b'"' + b"x" * 200_000, "cannot read RECORD: /FILE: line 1: field larger than field limit"),
        ("RECORD", b"x" * 200_000 + b",,\n", "cannot read RECORD: /FILE: line 1: field larger than field limit"),
        ("RECORD", b"caf\xe9.py,,\n", "cannot read RECORD: /FILE: 'utf-8' codec can't decode byte 0xe9 in position 3"),
    ],
)
def test_a_file_that_does_not_match_the_schema(
    refused_on: Refused, registry: str, layers: list[bytes], file: str, content: bytes, what: str
) -> None:
    path = f"{SITE}/vllm-0.20.2.dist-info/{file}"
    put_image(registry, "foreign/file", "x", [layers[1], tar((path, content))])

    assert refused_on(f"{registry}/foreign/file:x").err.startswith(what.replace("FILE", path))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"status": 200, "headers": {"X-Big": "a" * 70_000}}, "got more than 65536 bytes when reading header line"),
        ({"status": 200, "headers": {f"X-{n}": "a" for n in range(200)}}, "got more than 100 headers"),
        (
            {"status": 307, "headers": {"Location": "file:///etc/passwd"}},
            "it redirects to 'file:///etc/passwd', which is no address of the web",
        ),
        (
            {"status": 307, "headers": {"Location": "http://[::1/a?token=secret"}},
            "it redirects to 'http://[::1/a', which is no address of the web",
        ),
        (
            {"status": 401, "headers": {"WWW-Authenticate": 'Bearer realm="https://[::1/token"'}},
            "it sends for a token to 'https://[::1/token', which is no address",
        ),
    ],
)
def test_the_cause_is_the_registrys_not_the_missing_engines(
    vpatch: Program, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: dict[str, Any], why: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    proxy.fail("GET", "/manifests/", **answer)
    name = f"{proxy.host}/foreign/answer:x"
    ran = vpatch("inspect", "--quiet", name)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"cannot read: {name}: {why}\n"


def test_a_netrc_does_not_follow_a_redirect(registry: str, proxy: Proxy, docker_config: Path, vpatch: Program) -> None:
    """A `default` entry is for every host, and would be sent to any host that a registry names."""
    built: Built = put_image(registry, "foreign/netrc", "x", [tar(("a", b""))])
    blob = f"http://{proxy.host}/v2/foreign/netrc/blobs/{built.manifest['config']['digest']}"
    (docker_config.parent.parent / ".netrc").write_text("default login user password s3cret-of-the-tests\n")
    with secured(registry, docker_config.parent) as a:
        a.fail("GET", "/blobs/", status=307, headers={"Location": blob})
        ran = vpatch("inspect", "--quiet", f"{a.host}/foreign/netrc:x")

    assert "the image has no label" in ran.err
    assert [(one.path, one.headers.get("authorization")) for one in proxy.asked] == [
        (blob.partition(proxy.host)[2], None)
    ]

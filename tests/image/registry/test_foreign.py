"""Hostile images and answers are refused in one line that names the true cause."""

from __future__ import annotations

import json
from typing import Any

import pytest
import requests
from vpatch.image.registry.image import read_object

from tests.conftest import Program
from tests.image.registry.conftest import Refused
from tests.image.registry.images import build, put_image, tar
from tests.image.registry.proxy import Proxy
from tests.image.standin import SITE

LABEL = "io.vpatch.overlays"
SAID: dict[str, Any] = {"vpatch": "1", "vllm": "0.20.2", "root": "/x", "python": None, "overlays": [], "files": {}}


def label(**changes: Any) -> dict[str, Any]:
    return {"config": {"Labels": {LABEL: json.dumps({**SAID, **changes})}}}


CONFIG, NOTE = "cannot read: {}: its config is damaged: ", "cannot read provenance: {}: not what vpatch writes: "


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"history": {}}, f"{CONFIG}history is no array"),
        ({"history": {"a": 1}}, f"{CONFIG}history is no array"),
        ({"history": [3]}, f"{CONFIG}history[0] is no object"),
        ({"config": 3}, f"{CONFIG}config is no object"),
        ({"config": {"Labels": [1]}}, f"{CONFIG}config.Labels is no object"),
        ({"config": {"Labels": {"a": 1}}}, f"{CONFIG}config.Labels.a is no string"),
        ({"config": {"Env": 3}}, f"{CONFIG}config.Env is no array"),
        ({"config": {"Env": [1]}}, f"{CONFIG}config.Env[0] is no string"),
        ({"config": {"Volumes": ["/data"]}}, f"{CONFIG}config.Volumes is no object"),
        ({"config": {"WorkingDir": 3}}, f"{CONFIG}config.WorkingDir is no string"),
        ({"created": 3}, f"{CONFIG}created is no string"),
        ({"rootfs": {"diff_ids": [1]}}, f"{CONFIG}rootfs.diff_ids[0] is no string"),
        ({"os": ["linux"]}, f"{CONFIG}os is no string"),
        ({"rootfs": {}}, "cannot read: {}: its manifest or its config is damaged"),
        (label(overlays=["x"]), f"{NOTE}overlays[0] is no object"),
        (label(overlays={}), f"{NOTE}overlays is no array"),
        (label(overlays=[{"id": "x"}]), f"{NOTE}overlays[0] has no state"),
        (label(files=["x"]), f"{NOTE}files is no object"),
        (label(files={"a": 1}), f"{NOTE}files.a is no object"),
        (label(files={"a": {"before": None, "after": 3}}), f"{NOTE}files.a.after is no array"),
        (label(root=3), f"{NOTE}root is no string"),
        ({"config": {"Labels": {LABEL: "[]"}}}, f"{NOTE}it is no object"),
        ({"config": {"Labels": {LABEL: "{}"}}}, f"{NOTE}it has no vpatch"),
        ({"config": {"Labels": {LABEL: "{"}}}, f"{NOTE}no JSON"),
        ({"config": {"Labels": {LABEL: "[" * 100_000}}}, f"{NOTE}no JSON"),
    ],
)
def test_a_config_that_does_not_match_the_schema(
    vpatch: Program, registry: str, settings: dict[str, Any], why: str
) -> None:
    name = f"{registry}/foreign/config:x"
    put_image(registry, "foreign/config", "x", [tar(("a", b""))], settings=settings)
    ran = vpatch("inspect", "--quiet", name)

    assert (ran.code, ran.out, ran.err) == (1, "", f"{why.format(name)}\n")
    if why.startswith(CONFIG):
        ran = build(vpatch, name, "--quiet", "--tag", f"{registry}/foreign/no:x")
        assert (ran.code, ran.out, ran.err) == (1, "", f"{why.format(name)}\n")
        assert requests.get(f"http://{registry}/v2/foreign/no/tags/list", timeout=5).status_code == 404


def test_annotations_that_do_not_match_the_schema(vpatch: Program, registry: str, proxy: Proxy) -> None:
    name = f"{proxy.host}/foreign/annotations:x"
    built = put_image(registry, "foreign/annotations", "x", [tar(("a", b""))], flavour="oci")
    body = json.dumps({**built.manifest, "annotations": {"a": [1]}})
    proxy.fail("GET", "/manifests/", status=200, body=body.encode())

    ran = vpatch("inspect", "--quiet", name)

    assert ran.err == f"cannot read: {name}: its manifest is damaged: annotations.a is no string\n"


@pytest.mark.parametrize("raw", [b'{"a": "\\udfff"}', b'{"\\ud83d": 1}', b'{"a": "\xed\xa0\x80"}'])
def test_a_lone_surrogate(raw: bytes) -> None:
    """JSON allows it and UTF-8 cannot encode it: the new manifest could not be written."""
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
        (
            {"status": 200, "headers": {"X-Big": "a" * 70_000}},
            "HOST: got more than 65536 bytes when reading header line",
        ),
        ({"status": 200, "headers": {f"X-{n}": "a" for n in range(200)}}, "HOST: got more than 100 headers"),
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
    vpatch: Program, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], why: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nothing")
    proxy.fail("GET", "/manifests/", **answer)
    name = f"{proxy.host}/foreign/answer:x"
    ran = vpatch("inspect", "--quiet", name)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"cannot read: {name}: {why.replace('HOST', proxy.host)}\n"

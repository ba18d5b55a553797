"""A bad base or registry: no tag is set, and the error has the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.conftest import Program
from tests.image.registry.images import ONE, build, put_base, tar
from tests.image.registry.proxy import Proxy
from tests.image.standin import SITE

FAULTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "denied": ("GET", "/manifests/", {"status": 401}),
    "forbidden": ("GET", "/manifests/", {"status": 403}),
    "not there": ("GET", "/manifests/", {"status": 404}),
    "busy": ("GET", "/manifests/", {"status": 429}),
    "broken": ("GET", "/manifests/", {"status": 503}),
    "a blob is cut": ("GET", "/blobs/", {"spoil": "cut"}),
    "a blob is another": ("GET", "/blobs/", {"spoil": "corrupt"}),
    "no push": ("POST", "/blobs/uploads/", {"status": 403}),
    "no manifest": ("PUT", "/manifests/sha256", {"status": 500}),
    "no tag": ("PUT", "/manifests/one", {"status": 500}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_registry_that_fails(
    vpatch: Program, proxy: Proxy, layers: list[bytes], fault: str, nothing_is_tagged: Callable[[str], bool]
) -> None:
    put_base(proxy.behind, layers, "faulty/base:x")
    method, path, how = FAULTS[fault]
    proxy.fail(method, path, **how)
    target = f"faults/{fault.replace(' ', '-')}"
    ran = build(vpatch, f"{proxy.host}/faulty/base:x", "--tag", f"{proxy.host}/{target}:one")

    assert (ran.code, ran.out) == (1, "")
    assert re.match(rf"cannot (read|push|tag): {proxy.host}/", ran.err), ran.err
    assert "Traceback" not in ran.err
    assert nothing_is_tagged(target)


def test_a_registry_that_is_down(vpatch: Program) -> None:
    ran = build(vpatch, "127.0.0.1:1/a/b:c", "--tag", "127.0.0.1:1/a/b:d")

    assert ran.code == 1
    assert ran.err.startswith("cannot read: 127.0.0.1:1/a/b:c: ")


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd"])
def test_a_tar_that_would_leave_the_tree(vpatch: Program, registry: str, layers: list[bytes], name: str) -> None:
    base = put_base(registry, [*layers[:2], tar((name, b"x"))], "leaves/base:x")
    ran = build(vpatch, base.name, "--tag", f"{registry}/leaves/patched:x")

    assert ran.code == 1
    assert "would leave the tree" in ran.err


def test_a_folder_below_a_link(vpatch: Program, registry: str, layers: list[bytes]) -> None:
    base = put_base(registry, [*layers[:2], tar((f"{SITE}/vllm/engine", "../elsewhere"))], "links/base:x")
    ran = build(vpatch, base.name, "--tag", f"{registry}/links/patched:x")

    assert ran.code == 1
    assert "vllm/engine" in ran.err


def test_no_vllm(vpatch: Program, registry: str, layers: list[bytes]) -> None:
    base = put_base(registry, [layers[0], layers[2], layers[2]], "none/base:x")
    ran = build(vpatch, base.name, "--tag", f"{registry}/none/patched:x")

    assert ran.code == 1
    assert ran.err.startswith(f"no vllm: {base.name}: ")


def test_an_overlay_that_drifts(
    vpatch: Program,
    registry: str,
    layers: list[bytes],
    slim: Callable[[str], Path],
    nothing_is_tagged: Callable[[str], bool],
) -> None:
    text = (slim("0.20.2") / "vllm/engine/arg_utils.py").read_text()
    above = text.replace("if model_config.is_hybrid:", "if not model_config.is_attention_free:").encode()
    base = put_base(registry, [*layers[:2], tar((f"{SITE}/vllm/engine/arg_utils.py", above))], "drift/base:x")
    ran = build(vpatch, base.name, "--tag", f"{registry}/drift/patched:x", "--json", "--overlay", "turboquant-hybrid")

    assert ran.code == 1
    assert {one["id"]: one["state"] for one in ran.json["overlays"]}["turboquant-hybrid"] == "drifted"
    assert nothing_is_tagged("drift/patched")


@pytest.mark.parametrize("others", [(), ONE], ids=["alone", "with another"])
def test_a_named_overlay_that_does_not_apply(
    vpatch: Program, registry: str, layers: list[bytes], others: tuple[str, ...]
) -> None:
    base = put_base(registry, layers, "idle/base:x").name
    ran = build(vpatch, base, "--overlay", "turboquant-auto-dtype", *others, "--tag", f"{registry}/idle/patched:x")

    assert (ran.code, ran.out) == (1, "")
    assert f"not applicable: {base}: turboquant-auto-dtype: " in ran.err


@pytest.mark.parametrize("said", ["yesterday", "-5"])
def test_an_invalid_source_date_epoch(
    vpatch: Program, registry: str, layers: list[bytes], monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", said)
    ran = build(vpatch, put_base(registry, layers, "epoch/base:x").name, "--tag", f"{registry}/epoch/patched:x")

    assert (ran.code, ran.err) == (1, f"bad SOURCE_DATE_EPOCH: {said}: not a number of seconds\n")


def test_a_base_that_the_engine_may_not_pull(
    vpatch: Program, engine: docker.DockerClient, locked_registry: str, registry: str
) -> None:
    private = vpatch("build", "--base", f"{locked_registry}/secret/base:x")
    missing = vpatch("build", "--base", f"{registry}/no/such:x")

    assert (private.code, missing.code) == (1, 1)
    assert private.err.startswith(f"no such image: {locked_registry}/secret/base:x: it is private, or not there")
    assert missing.err.startswith(f"no such image: {registry}/no/such:x: ")

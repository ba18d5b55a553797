"""A bad base or registry: no tag is set, and the error has the reason."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conftest import Program, Trees
from tests.hybrid import ARG_UTILS, HYBRID, ONLY
from tests.image.registry.conftest import Refused
from tests.image.registry.images import put_base, tar
from tests.image.registry.proxy import Proxy
from tests.image.standin import ONE, SITE
from tests.tiers import deep

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
def test_a_registry_that_fails(refused_on: Refused, proxy: Proxy, layers: list[bytes], fault: str) -> None:
    put_base(proxy.behind, layers, "faulty/base:x")
    method, path, how = FAULTS[fault]
    proxy.fail(method, path, **how)
    ran = refused_on(f"{proxy.host}/faulty/base:x")

    assert re.match(rf"cannot (read|push|tag): {proxy.host}/", ran.err), ran.err
    assert "Traceback" not in ran.err


def test_a_registry_that_is_down(refused_on: Refused) -> None:
    assert refused_on("127.0.0.1:1/a/b:c").err.startswith("cannot read: 127.0.0.1:1/a/b:c: ")


@pytest.mark.parametrize(
    ("member", "says"),
    [
        (("../../etc/passwd", b"x"), "would leave the tree"),
        (("/etc/passwd", b"x"), "would leave the tree"),
        ((f"{SITE}/vllm/engine", "../elsewhere"), "vllm/engine"),
    ],
    ids=["up", "root", "a folder below a link"],
)
def test_a_tar_that_would_leave_the_tree(
    refused_on: Refused, registry: str, layers: list[bytes], member: tuple[str, Any], says: str
) -> None:
    assert says in refused_on(put_base(registry, [*layers[:2], tar(member)], "leaves/base:x").name).err


def test_no_vllm(refused_on: Refused, registry: str, layers: list[bytes]) -> None:
    base = put_base(registry, [layers[0], layers[2], layers[2]], "none/base:x").name

    assert refused_on(base).err.startswith(f"no vllm: {base}: ")


def test_an_overlay_that_drifts(refused_on: Refused, registry: str, layers: list[bytes], slim: Trees) -> None:
    text = (slim("0.20.2") / ARG_UTILS).read_text()
    above = text.replace("if model_config.is_hybrid:", "if not model_config.is_attention_free:").encode()
    base = put_base(registry, [*layers[:2], tar((f"{SITE}/{ARG_UTILS}", above))], "drift/base:x")
    ran = refused_on(base.name, "--json", *ONLY)

    assert {one["id"]: one["state"] for one in ran.json["overlays"]}[HYBRID] == "drifted"


@pytest.mark.parametrize("others", [deep(()), ONE], ids=["alone", "with another"])
def test_a_named_overlay_that_does_not_apply(
    refused_on: Refused, registry: str, layers: list[bytes], others: tuple[str, ...]
) -> None:
    base = put_base(registry, layers, "idle/base:x").name
    ran = refused_on(base, "--overlay", "turboquant-auto-dtype", *others)

    assert f"not applicable: {base}: turboquant-auto-dtype: " in ran.err


@pytest.mark.parametrize("said", ["yesterday", "99999999999999999"])
def test_an_invalid_source_date_epoch(
    refused_on: Refused, registry: str, layers: list[bytes], monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", said)
    ran = refused_on(put_base(registry, layers, "epoch/base:x").name)

    assert ran.err == f"bad SOURCE_DATE_EPOCH: {said}: not a number of seconds from 1970 to 9999\n"


@pytest.mark.usefixtures("engine")
def test_a_base_that_the_engine_may_not_pull(vpatch: Program, locked_registry: str, registry: str) -> None:
    private = vpatch("build", "--base", f"{locked_registry}/secret/base:x")
    missing = vpatch("build", "--base", f"{registry}/no/such:x")

    assert (private.code, missing.code) == (1, 1)
    assert private.err.startswith(
        f"no such image: {locked_registry}/secret/base:x: private, or not there: log in with `docker login "
    )
    assert missing.err.startswith(f"no such image: {registry}/no/such:x: ")

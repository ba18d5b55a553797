"""`vpatch inspect` of images that were built on a patched one: they inherit its label, and not always its files."""

from __future__ import annotations

import json
import re
from typing import Any

import docker
import pytest

from tests.conftest import Process, Program
from tests.image.registry.images import derive, opened, put_base, put_image, tar
from tests.image.standin import ONE, SITE
from tests.tiers import deep

INFO = f"{SITE}/vllm-0.20.2.dist-info"
ARGS = f"{SITE}/vllm/engine/arg_utils.py"
OTHER = (f"{SITE}/vllm-0.21.0.dist-info/RECORD", b"")
REMOVED = [(f"{SITE}/.wh.vllm-0.20.2.dist-info", b"")]


@pytest.fixture(scope="module")
def patched(child: Process, registry: str, layers: list[bytes]) -> str:
    """A patched image: its name with its digest."""
    base = put_base(registry, layers, "derived/base:x").name
    ran = child("build", "--registry", "--base", base, *ONE, "--tag", f"{registry}/derived/p:x", "--no-test")
    assert ran.code == 0, ran.err
    return ran.out.strip()


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nothing")


def inspected(vpatch: Program, image: str) -> tuple[int, dict[str, Any]]:
    ran = vpatch("inspect", image, "--json")
    return ran.code, ran.json


@pytest.mark.parametrize(
    ("layer", "lost", "vllm"),
    [
        ([*REMOVED, OTHER, (ARGS, b"new")], {ARGS: "is another", f"{INFO}/vpatch-image.json": "is gone"}, None),
        ([(ARGS, b"new")], {ARGS: "is another"}, "0.20.2"),
        deep([(f"{SITE}/vllm/engine/.wh.arg_utils.py", b"")], {ARGS: "is gone"}, "0.20.2"),
        deep([(ARGS, "/elsewhere")], {ARGS: "is another"}, "0.20.2"),
        deep(REMOVED, {f"{INFO}/vpatch-image.json": "is gone"}, None),
        deep([(f"{INFO}/vpatch-image.json", b"{}")], {f"{INFO}/vpatch-image.json": "is another"}, None),
        deep([(f"{SITE}/vllm/engine/.wh..wh..opq", b"")], {ARGS: "is gone"}, "0.20.2"),
    ],
)
def test_files_that_a_later_layer_changed(
    vpatch: Program, patched: str, layer: list[tuple[str, Any]], lost: dict[str, str], vllm: str | None
) -> None:
    image = derive(patched, ("RUN pip install -U vllm # buildkit", tar(*layer)))
    code, said = inspected(vpatch, image)
    ran = vpatch("inspect", image)
    bill = vpatch("inspect", image, "--sbom")

    assert (code, said["vllm"], said["later_layers"]) == (1, vllm, 1)
    assert {f"{SITE}/{path}": what for path, what in said["changed_since"].items()}.items() >= lost.items()
    assert [(one["id"], one["state"]) for one in said["overlays"]] == [(ONE[1], "unknown")]
    assert (ran.code, "  applied" in ran.out, "  unknown  " in ran.out) == (1, False, True)
    named = lost if vllm else {INFO: "another vLLM is there now"}
    assert all(re.search(f"not as built: /{path}: .*{what}", ran.err) for path, what in named.items())
    assert "The label is outdated: " in ran.err
    assert (bill.code, bill.out) == (1, "")


@pytest.mark.parametrize(
    ("steps", "later"),
    [
        ((), 0),
        ((("ENV A=b", None), ("RUN x", tar((f"{SITE}/other.py", b"")))), 1),
        deep((("ENV A=b", None),), 0),
        deep((("RUN x", tar(("a", b""))), ("COPY x /y # buildkit", tar(("y", b"")))), 2),
    ],
)
def test_layers_that_change_none_of_them(
    vpatch: Program, patched: str, steps: tuple[tuple[str, bytes | None], ...], later: int
) -> None:
    image = derive(patched, *steps)
    code, said = inspected(vpatch, image)
    bill = json.loads(vpatch("inspect", image, "--sbom").out)
    about = {one["name"]: one["value"] for one in bill["metadata"]["component"].get("properties", ())}

    assert (code, said["vllm"], said["later_layers"], said["changed_since"]) == (0, "0.20.2", later, {})
    assert [(one["id"], one["state"]) for one in said["overlays"]] == [(ONE[1], "applied")]
    assert about == ({"vpatch:later-layers": str(later)} if later else {})
    assert (f"layers above vpatch's: {later}" in vpatch("inspect", image).out) is bool(later)


def test_a_label_on_an_image_that_vpatch_did_not_patch(
    vpatch: Program, patched: str, registry: str, layers: list[bytes]
) -> None:
    labels = inspected(vpatch, patched)[1]["labels"]
    labels["io.vpatch.overlays"] = opened(patched).base.labels["io.vpatch.overlays"]
    put_image(registry, "derived/forged", "x", layers, settings={"config": {"Labels": labels}})
    code, said = inspected(vpatch, f"{registry}/derived/forged:x")

    assert (code, said["later_layers"], said["vllm"]) == (1, None, None)
    assert [one["state"] for one in said["overlays"]] == ["unknown"]


@pytest.mark.deep
def test_in_an_engine(
    vpatch: Program, patched: str, engine: docker.DockerClient, engine_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine_address)
    images = [patched, derive(patched, ("RUN x", tar((ARGS, b"new")))), derive(patched, ("RUN x", tar(("a", b"a"))))]
    for image in images:
        engine.images.pull(image)
    said = [inspected(vpatch, image) for image in images]

    assert [one["image"]["from"] for _, one in said] == ["engine"] * 3
    assert [(code, one["overlays"][0]["state"], one["later_layers"]) for code, one in said] == [
        (0, "applied", 0),
        (1, "unknown", 1),
        (0, "applied", 1),
    ]
    for image in images:
        engine.api.remove_image(image)

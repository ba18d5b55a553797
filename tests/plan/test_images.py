"""Which image runs a deployment; those that are published are those of images/*.toml."""

from __future__ import annotations

from vpatch.core.catalogue import discover
from vpatch.image.order import definition_files, read_definitions
from vpatch.plan.images import STOCK, Image, defined, image, published

from tests.conftest import ROOT
from tests.plan.made import deployment
from tests.releases import pending

HYBRID = {"turboquant-hybrid", "turboquant-workspace"}


def test_what_is_to_be_published_is_what_is_defined() -> None:
    default = {item.id for item in discover() if not item.overlay.opt_in}
    wanted = set()
    for one in read_definitions(definition_files(ROOT)):
        base = one.base.removeprefix("docker.io/").partition("@")[0]
        release = base.partition(":v")[2].partition("-")[0]
        overlays = one.overlays or sorted(name for name in default if release in pending(name))
        wanted |= {Image(base, tag, tuple(overlays)) for tag in one.tags}

    assert set(defined()) == wanted
    assert len(defined()) == len(wanted)
    assert published() == (), "README says that none is"


def test_no_overlay_no_other_image() -> None:
    assert image(deployment("0.20.2"), ()) == Image(f"{STOCK}:v0.20.2", f"{STOCK}:v0.20.2")
    assert image(deployment("0.18.0", cuda="cu130"), ()).name == f"{STOCK}:v0.18.0-cu130"


def test_the_published_image_with_the_fewest_overlays() -> None:
    names = [
        image(said, overlays, defined()).name
        for said, overlays in (
            (deployment("0.20.2"), HYBRID),
            (deployment("0.20.2"), HYBRID | {"turboquant-tiles"}),
            (deployment("0.20.2", cuda="cu129"), HYBRID),
        )
    ]
    assert names == [f"ghcr.io/vpatch/vllm-openai:v0.20.2{suffix}" for suffix in ("", "-tiles", "-cu129")]


def test_an_image_that_is_not_published_is_to_be_built_and_of_no_registry() -> None:
    none = Image(
        f"{STOCK}:v0.21.0",
        "localhost/vllm-openai:v0.21.0-vpatch",
        ("turboquant-skip-list", "turboquant-workspace"),
        built=True,
    )

    assert image(deployment("0.21.0"), {"turboquant-workspace", "turboquant-skip-list"}, defined()) == none
    assert image(deployment("0.20.2"), HYBRID).name == "localhost/vllm-openai:v0.20.2-vpatch"
    assert image(deployment("0.20.2+cu129"), ()).name == f"{STOCK}:v0.20.2"
    assert image(deployment("0.33.0"), {"ct-fp8-lm-head", "turboquant-tiles"}).built
    assert image(deployment("0.20.2", cuda="cu128"), HYBRID).name == "localhost/vllm-openai:v0.20.2-cu128-vpatch"

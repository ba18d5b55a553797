"""Which overlays a build applies: `--with` adds opt-in ones to the default, and unknown ones are a wrong usage."""

from __future__ import annotations

from pathlib import Path

import docker
import pytest
from vpatch.core.catalogue import discover, select
from vpatch.image.order import read_definitions

from tests.conftest import Program
from tests.image.standin import BASE, ONE

TILES = "turboquant-tiles"
DEFAULT = {item.id for item in select(discover())}
DEFINITION = 'base = "docker.io/a/b:c"\ntags = ["a.io/b:c"]\n'


@pytest.mark.usefixtures("base")
def test_with_adds_to_the_default(vpatch: Program, engine: docker.DockerClient) -> None:
    ran = vpatch("build", "--base", BASE, "--with", TILES, "--receipt", "--no-test", "--json")

    assert ran.code == 0, ran.err
    states = {one["id"]: one["state"] for one in ran.json["overlays"]}
    assert states.keys() == {*DEFAULT, TILES, "receipt"}
    assert states[TILES] == states["receipt"] == "applied"


def test_with_in_a_definition(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(f'{DEFINITION}with = ["{TILES}"]\n')
    (order,) = read_definitions([tmp_path / "one.toml"])

    assert {item.id for item in order.selection.among(discover())} == {*DEFAULT, TILES}


def test_overlay_and_with(vpatch: Program, tmp_path: Path) -> None:
    ran = vpatch("build", "--base", "x", *ONE, "--with", TILES)
    assert ran.code == 2
    assert "--overlay selects exactly these overlays: leave out --with" in ran.err

    file = tmp_path / "one.toml"
    file.write_text(f'{DEFINITION}with = ["{TILES}"]\noverlays = ["{TILES}"]\n')
    ran = vpatch("build", file)
    cause = "`overlays` selects exactly these: leave out `with`"
    assert (ran.code, ran.err) == (1, f"bad image definition: {file}: {cause}\n")


@pytest.mark.parametrize("option", ["--overlay", "--with"])
def test_an_unknown_overlay_is_a_wrong_usage(vpatch: Program, option: str) -> None:
    ran = vpatch("build", "--base", "x", option, "turboquant-tile", option, ONE[1], "--require-arch", "5090")

    assert ran.code == 2
    assert ran.err.splitlines() == [
        f"no such overlay: turboquant-tile: did you mean {TILES}?",
        "not a GPU architecture: 5090: it reads like sm_120 or 12.0, which is an RTX 5090",
    ]


def test_unknown_overlays_of_definitions_are_told_at_once(vpatch: Program, tmp_path: Path) -> None:
    files = [tmp_path / "one.toml", tmp_path / "two.toml"]
    for number, file in enumerate(files):
        file.write_text(f'base = "docker.io/a/b:c"\ntags = ["a.io/b:{number}"]\noverlays = ["turboquant-tile"]\n')
    ran = vpatch("build", *files)

    assert ran.code == 2
    assert ran.err.splitlines() == [
        f"no such overlay: turboquant-tile ({file}): did you mean {TILES}?" for file in files
    ]

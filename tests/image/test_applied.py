"""`vpatch inspect` of images in which a Dockerfile ran `vpatch apply`: alone, and on an image that was built."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Program, Trees
from tests.hybrid import HYBRID, INFO, ONLY
from tests.image.conftest import Small
from tests.image.standin import ONE, SITE

RECORD = f"/{SITE}/{INFO}/vpatch/provenance.json"


@pytest.fixture
def applied(vpatch: Program, slim: Trees, tmp_path: Path) -> Path:
    """A tree in which `vpatch apply` ran."""
    tree = shutil.copytree(slim("0.20.2"), tmp_path / "tree")
    assert vpatch("apply", tree, *ONLY).code == 0
    return tree


def test_an_image_that_a_dockerfile_patched(vpatch: Program, small: Small, applied: Path) -> None:
    small("try:dockerfile", (applied, SITE))
    said, ran = vpatch("inspect", "try:dockerfile", "--json").json, vpatch("inspect", "try:dockerfile")
    bill = vpatch("inspect", "try:dockerfile", "--sbom")

    assert (said["by"], said["vllm"], said["changed_since"]) == ("vpatch apply", "0.20.2", {})
    assert [(one["id"], one["state"]) for one in said["overlays"]] == [(HYBRID, "applied")]
    assert (ran.code, f"by `vpatch apply`, as from a Dockerfile; {RECORD} says so" in ran.err) == (0, True)
    assert said["digest"] == vpatch("status", applied, "--json").json["digest"]
    assert f"receipt: {said['digest']}\n" in ran.out
    assert (bill.code, f'"overlay:{HYBRID}"' in bill.out, '"container"' in bill.out) == (0, True, True)


def test_its_files_are_compared_with_the_record(vpatch: Program, small: Small, applied: Path) -> None:
    (applied / "vllm/engine/arg_utils.py").write_text("x = 1\n")
    small("try:edited", (applied, SITE))
    ran = vpatch("inspect", "try:edited", "--json")

    assert (ran.code, [one["state"] for one in ran.json["overlays"]]) == (1, ["unknown"])
    assert ran.json["changed_since"] == {"vllm/engine/arg_utils.py": "is another"}


@pytest.mark.deep
def test_what_apply_did_on_top_of_a_build(vpatch: Program, small: Small, slim: Trees, tmp_path: Path) -> None:
    """The label is of the image below, and its files are as `apply` left them: both are shown, by what is there."""
    small("try:below", (slim("0.20.2"), SITE))
    made = vpatch("build", "--base", "try:below", *ONE, "--tag", "try:labeled", "--no-test", "--json")
    assert made.code == 0, made.err
    built = vpatch("inspect", "try:labeled", "--json").json["digest"]
    tree = shutil.copytree(slim("0.20.2"), tmp_path / "tree")
    assert vpatch("apply", tree, *ONE, *ONLY).code == 0
    small("try:derived", (tree, SITE), below="try:labeled")
    said = vpatch("inspect", "try:derived", "--json").json
    bill = vpatch("inspect", "try:derived", "--sbom")

    assert made.json["digest"] == built
    assert (said["by"], said["changed_since"]) == ("vpatch build", {})
    assert {one["id"]: one["state"] for one in said["overlays"]} == {ONE[1]: "applied", HYBRID: "applied"}
    assert (bill.code, f'"overlay:{HYBRID}"' in bill.out) == (0, True)
    assert said["digest"] == vpatch("status", tree, "--json").json["digest"] != built


def test_an_image_without_a_record(vpatch: Program, small: Small, slim: Trees) -> None:
    small("try:plain", (slim("0.20.2"), SITE))
    ran = vpatch("inspect", "try:plain")

    assert ran.code == 1
    assert "not patched: try:plain: the image has no label io.vpatch.overlays" in ran.err


@pytest.mark.parametrize(
    "document",
    [b"no JSON", b'{"files": {}}', b'{"files": {}, "overlays": [{"id": 1}]}', b'{"files": 1, "overlays": []}'],
)
def test_a_record_that_vpatch_did_not_write(vpatch: Program, small: Small, applied: Path, document: bytes) -> None:
    (applied / INFO / "vpatch/provenance.json").write_bytes(document)
    small("try:foreign", (applied, SITE))
    ran = vpatch("inspect", "try:foreign")

    assert (ran.code, f"cannot read provenance: try:foreign: {RECORD} is not what vpatch writes: " in ran.err) == (
        1,
        True,
    )

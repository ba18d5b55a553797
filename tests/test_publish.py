"""The workflow that publishes images: its matrix and permissions. `image/registry/test_publish.py` runs its steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vpatch.image.order import definition_files, read_definitions
from vpatch.image.registry.reference import parse

from tests.paths import ROOT
from tests.workflows import bash, outputs, step, workflow

ORDERS = read_definitions(definition_files(ROOT))
NAMES = sorted(path.stem for path in (ROOT / "images").glob("*.toml"))
JOBS = workflow("publish-image")["jobs"]


@pytest.mark.parametrize(
    ("one", "ref", "names", "says"),
    [
        ("", "refs/tags/v0.1.0", NAMES, ""),
        ("v0.20.2", "refs/tags/v0.1.0", ["v0.20.2"], ""),
        ("v0.20", "refs/tags/v0.1.0", None, "images/v0.20.toml: there is none"),
        ("../images/v0.20.2", "refs/tags/v0.1.0", None, "there is none"),
        ("", "refs/heads/main", None, "refs/heads/main: run this on a release tag"),
    ],
)
def test_which_images_are_published(tmp_path: Path, one: str, ref: str, names: list[str] | None, says: str) -> None:
    script = step("publish", "definitions", "names")["run"]
    ran = bash(script, ROOT, ONE=one, GITHUB_REF=ref, GITHUB_OUTPUT=str(tmp_path / "output"))

    assert (ran.returncode, says in ran.stderr) == (0 if names else 1, True), ran.stderr
    given = {name: json.loads(value) for name, value in outputs(tmp_path / "output").items()}
    assert given == ({"names": names} if names else {})


def test_only_the_job_that_signs_can_sign_and_runs_nothing_of_ours() -> None:
    able = {name: job["permissions"] for name, job in JOBS.items()}

    assert {name for name, may in able.items() if "id-token" in may or "attestations" in may} == {"sign"}
    assert able["test"] == {"contents": "read", "packages": "read"}
    steps = [one for one in JOBS["sign"]["steps"] if one.get("name") != "verify"]
    assert not any("checkout" in one.get("uses", "") or "vpatch" in one.get("run", "") for one in steps)


def test_tagging_comes_last() -> None:
    assert set(JOBS["tag"]["needs"]) == set(JOBS) - {"tag"}
    assert not any("if" in job for job in JOBS.values())
    steps = [one.get("run", one.get("uses")) for one in JOBS["sign"]["steps"]]
    signed, attested, verified = (
        next(number for number, text in enumerate(steps) if words in text)
        for words in ("cosign sign", "actions/attest-build-provenance@", "cosign verify")
    )
    assert max(signed, attested) < verified


def test_the_bill_of_materials_of_what_was_tested_is_attested() -> None:
    test, sign = (
        {one["uses"].partition("@")[0]: one.get("with") for one in JOBS[job]["steps"] if "uses" in one}
        for job in ("test", "sign")
    )
    (printed,) = (one["run"] for one in JOBS["test"]["steps"] if one.get("id") == "sbom")
    uploaded, downloaded = test["actions/upload-artifact"], sign["actions/download-artifact"]
    subject = sign["actions/attest-build-provenance"]

    assert printed.endswith(f"--sbom > {uploaded['path']}")
    assert uploaded["name"] == downloaded["name"] == "sbom-${{ inputs.name }}", "images are built at the same time"
    bill = {"predicate-type": "https://cyclonedx.org/bom", "predicate-path": uploaded["path"]}
    assert sign["actions/attest"] == {**subject, **bill}


def test_a_definition_has_its_tags_in_one_repository() -> None:
    """Signing covers one repository, so all tags of an image must be in it."""
    assert sorted(one.name for one in ORDERS) == NAMES
    for one in ORDERS:
        assert len({parse(tag).name for tag in one.tags}) == 1, one.name
        assert all(tag.startswith("ghcr.io/") for tag in one.tags), "the workflow logs in there only"

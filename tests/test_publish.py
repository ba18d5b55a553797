"""The workflow that publishes images: its matrix and permissions. `image/registry/test_publish.py` runs its steps."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from vpatch.image.order import definition_files, read_definitions
from vpatch.image.registry.reference import parse

from tests.paths import ROOT
from tests.workflows import bash, outputs, step, workflow

NAMES = sorted(path.stem for path in (ROOT / "images").glob("*.toml"))


def names(folder: Path, *, one: str = "", ref: str = "refs/tags/v0.1.0") -> subprocess.CompletedProcess[str]:
    """Run the step that lists the images, in the repository."""
    script = step("publish", "definitions", "names")["run"]
    return bash(script, ROOT, ONE=one, GITHUB_REF=ref, GITHUB_OUTPUT=str(folder / "output"))


def given(folder: Path) -> dict[str, Any]:
    return {name: json.loads(value) for name, value in outputs(folder / "output").items()}


def test_the_matrix_is_exactly_the_definitions(tmp_path: Path) -> None:
    ran = names(tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert given(tmp_path) == {"names": NAMES}
    assert sorted(one.name for one in read_definitions(definition_files(ROOT))) == NAMES
    jobs = workflow("publish")["jobs"]
    assert jobs["definitions"]["outputs"] == {"names": "${{ steps.names.outputs.names }}"}
    assert jobs["image"]["strategy"]["matrix"] == {"name": "${{ fromJSON(needs.definitions.outputs.names) }}"}
    assert jobs["image"]["uses"] == "./.github/workflows/publish-image.yml"
    assert jobs["image"]["with"] == {"name": "${{ matrix.name }}"}


def test_one_definition_can_be_chosen(tmp_path: Path) -> None:
    ran = names(tmp_path, one="v0.20.2")

    assert ran.returncode == 0, ran.stderr
    assert given(tmp_path) == {"names": ["v0.20.2"]}


@pytest.mark.parametrize(
    ("one", "ref", "says"),
    [
        ("v0.20", "refs/tags/v0.1.0", "images/v0.20.toml: there is none"),
        ("../images/v0.20.2", "refs/tags/v0.1.0", "there is none"),
        ("", "refs/heads/main", "refs/heads/main: run this on a release tag"),
    ],
)
def test_a_bad_choice_is_not_published(tmp_path: Path, one: str, ref: str, says: str) -> None:
    ran = names(tmp_path, one=one, ref=ref)

    assert ran.returncode == 1
    assert says in ran.stderr
    assert given(tmp_path) == {}


@pytest.mark.parametrize("name", ["publish", "publish-image"])
def test_no_permission_is_given_to_all_jobs(name: str) -> None:
    assert workflow(name)["permissions"] == {}
    assert all("permissions" in job for job in workflow(name)["jobs"].values())


def test_only_the_job_that_signs_can_sign_and_runs_nothing_of_ours() -> None:
    jobs = workflow("publish-image")["jobs"]
    able = {name: job["permissions"] for name, job in jobs.items()}

    assert {name for name, may in able.items() if "id-token" in may or "attestations" in may} == {"sign"}
    assert able["test"] == {"contents": "read", "packages": "read"}
    assert not any("checkout" in one.get("uses", "") or "vpatch" in one.get("run", "") for one in runs(jobs["sign"]))


def runs(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a job's steps without those that only verify."""
    return [one for one in job["steps"] if one.get("name") != "verify"]


def test_tagging_comes_last() -> None:
    jobs = workflow("publish-image")["jobs"]

    assert set(jobs["tag"]["needs"]) == set(jobs) - {"tag"}
    assert not any("if" in job for job in jobs.values())
    steps = [one.get("run", one.get("uses")) for one in jobs["sign"]["steps"]]
    signed, attested, verified = (
        next(number for number, text in enumerate(steps) if words in text)
        for words in ("cosign sign", "actions/attest-build-provenance@", "cosign verify")
    )
    assert signed < verified
    assert attested < verified


def test_the_bill_of_materials_of_what_was_tested_is_attested() -> None:
    jobs = workflow("publish-image")["jobs"]
    uses = {
        job: {one["uses"].partition("@")[0]: one.get("with") for one in jobs[job]["steps"] if "uses" in one}
        for job in jobs
    }
    (printed,) = (one["run"] for one in jobs["test"]["steps"] if one.get("id") == "sbom")
    uploaded, downloaded = uses["test"]["actions/upload-artifact"], uses["sign"]["actions/download-artifact"]
    attested, provenance = uses["sign"]["actions/attest"], uses["sign"]["actions/attest-build-provenance"]

    assert printed.endswith(f"--sbom > {uploaded['path']}")
    assert uploaded["name"] == downloaded["name"] == "sbom-${{ inputs.name }}", "images are built at the same time"
    assert attested == {
        **provenance,
        "predicate-type": "https://cyclonedx.org/bom",
        "predicate-path": uploaded["path"],
    }


def test_no_expression_is_pasted_into_a_script() -> None:
    jobs = [job for name in ("publish", "publish-image") for job in workflow(name)["jobs"].values()]

    assert not [one["run"] for job in jobs for one in job.get("steps", ()) if "${{" in one.get("run", "")]


def test_a_definition_has_its_tags_in_one_repository() -> None:
    """Signing covers one repository, so all tags of an image must be in it."""
    for one in read_definitions(definition_files(ROOT)):
        assert len({parse(tag).name for tag in one.tags}) == 1, one.name
        assert all(tag.startswith("ghcr.io/") for tag in one.tags), "the workflow logs in there only"

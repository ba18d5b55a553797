"""The steps of publish-image.yml, run against a real registry and a real engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import docker
import pytest
import requests

from tests.image.registry.images import Base
from tests.image.standin import ONE
from tests.paths import ROOT
from tests.workflows import bash, outputs, step


@pytest.fixture
def checkout(tmp_path: Path, registry: str, remote: Base) -> Path:
    """A job's environment: the repository with one definition of a base in a registry, and its virtual environment."""
    folder = tmp_path / "checkout"
    (folder / "images").mkdir(parents=True)
    (folder / ".ci").symlink_to(ROOT / ".ci")
    (folder / ".venv").symlink_to(sys.prefix)
    tags = [f"{registry}/publish/image:{tag}" for tag in ("v1", "latest")]
    text = f'base = "{remote.name}"\ntags = {tags}\noverlays = ["{ONE[1]}"]\n'
    (folder / "images/one.toml").write_text(text)
    for command in (["init", "-q"], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "x", "--allow-empty"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def run(checkout: Path, job: str, which: str, **more: str) -> dict[str, str]:
    """Run a step; return its outputs, and its summary as `summary`."""
    files = {name: checkout / name for name in ("output", "summary")}
    for file in files.values():
        file.write_text("")
    script = step("publish-image", job, which)["run"]
    places = {"GITHUB_OUTPUT": str(files["output"]), "GITHUB_STEP_SUMMARY": str(files["summary"])}
    places |= {"GITHUB_SERVER_URL": "https://example.com", "GITHUB_REPOSITORY": "me/repo", "GITHUB_SHA": "f" * 40}
    ran = bash(script, checkout, NAME="one", **places, **more)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {**outputs(files["output"]), "summary": files["summary"].read_text()}


def tags(registry: str) -> list[str]:
    found = requests.get(f"http://{registry}/v2/publish/image/tags/list", timeout=20).json()
    return sorted(found.get("tags") or ())


@pytest.mark.deep
def test_from_a_definition_to_a_tag(checkout: Path, registry: str, remote: Base, engine: docker.DockerClient) -> None:
    built = run(checkout, "build", "build")
    image = f"{built['repository']}@{built['digest']}"
    assert built["repository"] == f"{registry}/publish/image"
    assert tags(registry) == []

    run(checkout, "test", "test", IMAGE=image)
    told = run(checkout, "test", "summary", IMAGE=image)["summary"]
    run(checkout, "test", "sbom", IMAGE=image)
    assert json.loads((checkout / "sbom.cdx.json").read_text())["metadata"]["component"]["version"] == built["digest"]
    engine.api.remove_image(image)
    assert f"| image | `{image}` |" in told
    assert f"| base | `{remote.name}`<br>`{remote.built.digest}`" in told
    assert f"{ONE[1]}: applied" in told
    assert "| tests | 5 passed, " in told
    assert "| import vllm.engine.arg_utils | not run | the image lacks torch |" in told
    assert tags(registry) == []

    told = run(checkout, "tag", "tag", IMAGE=image)["summary"]
    assert (
        told == f"\nSigned, verified and tagged:\n\n- {registry}/publish/image:v1\n- {registry}/publish/image:latest\n"
    )
    assert tags(registry) == ["latest", "v1"]
    answer = requests.head(f"http://{registry}/v2/publish/image/manifests/v1", headers=ACCEPT, timeout=20)
    assert answer.headers["Docker-Content-Digest"] == built["digest"]

    assert run(checkout, "build", "build")["digest"] == built["digest"], "the same commit, and another image"


ACCEPT = {"Accept": "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"}

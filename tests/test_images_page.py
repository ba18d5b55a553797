"""docs/images.md agrees with the workflow and the image definitions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML
from vpatch.image.order import definition_files, read_definitions

from tests.paths import ROOT
from tests.workflows import workflow

PAGE = (ROOT / "docs/images.md").read_text()
OURS, _, PUBLISHED = PAGE.partition("\n## What a release will publish\n")
TAGS = {tag for one in read_definitions(definition_files(ROOT)) for tag in one.tags}


def plain(script: str) -> str:
    return " ".join(script.replace("\\\n", "").replace('"', "").split())


def test_the_page_has_the_verification_that_the_workflow_runs() -> None:
    (verify,) = (one for one in workflow("publish-image")["jobs"]["sign"]["steps"] if one.get("name") == "verify")
    ours = plain(verify["run"])
    (signer,) = re.findall(r"workflow=(\S+)", ours)
    assert signer == "$GITHUB_REPOSITORY/.github/workflows/publish-image.yml", "a certificate names the file that signs"
    for name, value in (
        ("$workflow", signer),
        ("$GITHUB_REPOSITORY", "vpatch/vpatch"),
        ("$GITHUB_REF", "refs/tags/v0.1.0"),
        ("$IMAGE", "ghcr.io/vpatch/vllm-openai@sha256:..."),
    ):
        ours = ours.replace(name, value)

    for name in ("cosign", "gh", "sbom"):
        (command,) = re.findall(rf"<!-- {name} -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
        assert plain(command) in ours


def test_the_page_lists_the_image_definitions() -> None:
    assert sorted(re.findall(r"^\| `(\S+)` \|", PUBLISHED, re.MULTILINE)) == sorted(TAGS)


def test_only_the_last_section_names_images_that_are_not_published_yet() -> None:
    assert "no patched images are published yet" in OURS.lower()
    assert not re.findall(r"ghcr\.io/\S+", OURS)
    assert "\n## " not in PUBLISHED


def test_the_compose_file_is_valid_and_runs_the_image_that_was_built(tmp_path: Path) -> None:
    (block,) = re.findall(r"<!-- compose -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "compose.yaml"
    file.write_text(block)
    tool = str(Path(sys.executable).with_name("check-jsonschema"))
    command = [tool, "--builtin-schema", "vendor.compose-spec", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert YAML(typ="safe").load(block)["services"]["vllm"]["image"] in re.findall(
        r"^vpatch build .*--tag (\S+)", PAGE, re.MULTILINE
    )

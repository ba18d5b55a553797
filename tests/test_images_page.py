"""docs/images.md agrees with the workflow, the image definitions and the commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
from ruamel.yaml import YAML
from vpatch.cli.main import program
from vpatch.image.order import definition_files, read_definitions

from tests.paths import ROOT
from tests.workflows import workflow

PAGE = (ROOT / "docs/images.md").read_text()
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

    for name in ("cosign", "gh"):
        (command,) = re.findall(rf"<!-- {name} -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
        assert plain(command) in ours


def test_the_page_lists_the_image_definitions() -> None:
    named = re.findall(r"^\| `(\S+)` \|", PAGE.partition("## Run it")[0], re.MULTILINE)

    assert sorted(named) == sorted(TAGS)


def test_every_option_on_the_page_exists() -> None:
    for page in (PAGE, (ROOT / "README.md").read_text()):
        blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        found = re.findall(r"(?<![\w/.-])vpatch (build|test|inspect|tag)\b([^\n]*)", "\n".join(blocks))
        assert found
        for command, rest in found:
            found_command = program.get_command(click.Context(program), command)
            assert found_command
            known = {option for one in found_command.params for option in one.opts}
            assert set(re.findall(r"(?<=\s)--[\w-]+", rest.partition("#")[0])) <= known, rest


def test_the_compose_file_is_valid_and_uses_a_published_tag(tmp_path: Path) -> None:
    (block,) = re.findall(r"<!-- compose -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "compose.yaml"
    file.write_text(block)
    tool = str(Path(sys.executable).with_name("check-jsonschema"))
    command = [tool, "--builtin-schema", "vendor.compose-spec", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert YAML(typ="safe").load(block)["services"]["vllm"]["image"] in TAGS

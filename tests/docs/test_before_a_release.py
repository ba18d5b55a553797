"""Pages that name an image, a tag or the package index say that vpatch has no release yet; no command needs one.

`published` in plan/images.toml is the one switch: once it is true, these tests name the pages to change.
"""

from __future__ import annotations

import re
import subprocess

import pytest
from vpatch.plan.commands import PUBLISHED

from tests.docs.recipe import blocks
from tests.docs.test_pages import PAGES
from tests.paths import ROOT

NOT_YET = "vpatch has no release yet"
BROUGHT = re.compile(
    r"ghcr\.io/vpatch/|vpatch/vpatch@v\d|vpatch==|(?:package|images?) of (?:a|the) (?:release|vpatch)|"
    r"vpatch on the package index"
)
"""The names of images, of the action's tag, and of the package on an index."""

INSTALLER = re.compile(r"\bpip3? install\b|\bpipx (?:install|run)\b|\buv (?:add|tool install|pip install)\b|\buvx\b")
ALONE = re.compile(r"[\s'\"]vpatch(?:\[[\w,]+\])?['\"]?(?! @ )(?=[\s;)]|$)")
SOURCE = ("--from ", "--no-index ")  # a source beside the name, or files at hand


def takes_from_an_index(line: str) -> bool:
    """Whether a command installs vpatch by its name alone."""
    installs = INSTALLER.search(line)
    return bool(installs and ALONE.search(line, installs.end())) and not any(word in line for word in SOURCE)


def documents() -> list[str]:
    """Return the files that users read, but for the change log and the page on how to release."""
    known = ["git", "-C", str(ROOT), "ls-files", "*.md", "action.yml", "deploy", ".github/ISSUE_TEMPLATE"]
    files = subprocess.run(known, capture_output=True, text=True, check=True).stdout.split()
    return [file for file in files if file not in {"CHANGELOG.md", "CONTRIBUTING.md"} and not file.startswith("tests/")]


@pytest.mark.parametrize("file", ["docs/action.md", "docs/images.md", "SECURITY.md"])
def test_the_pattern_finds_what_a_release_brings(file: str) -> None:
    assert BROUGHT.search((ROOT / file).read_text())


def test_a_page_that_names_what_a_release_brings_says_that_there_is_none() -> None:
    texts = {file: " ".join((ROOT / file).read_text().split()) for file in documents()}
    named = {file for file, text in texts.items() if BROUGHT.search(text)}
    says = {file for file, text in texts.items() if NOT_YET in text}

    assert len(texts) > 40
    assert says == set() if PUBLISHED else named - says - {"action.yml"} == set()
    assert PUBLISHED or "on the package index, once it has one" in texts["action.yml"]


def test_no_command_takes_vpatch_from_an_index() -> None:
    commands = [(page, block.text) for page in PAGES for block in blocks(ROOT / page) if block.language != "diff"]
    commands += [(file, (ROOT / file).read_text()) for file in documents() if not file.endswith(".md")]
    lines = [(page, line) for page, text in commands for line in re.split(r"\n|&&|;", text.replace("\\\n", " "))]

    assert len([line for _, line in lines if INSTALLER.search(line) and "vpatch" in line]) > 10
    assert PUBLISHED or [one for one in lines if takes_from_an_index(one[1])] == []


@pytest.mark.parametrize(
    ("line", "asks"),
    [
        ("pip install vpatch", True),
        ("python -m pip install -q 'vpatch[calls]'", True),
        ("uvx vpatch status", True),
        ("uv tool install git+https://github.com/vpatch/vpatch", False),
        ("pip install 'vpatch[fetch] @ git+https://github.com/vpatch/vpatch'", False),
        ("uvx --from git+https://github.com/vpatch/vpatch vpatch status", False),
        ("pip install --no-index --find-links wheelhouse vpatch", False),
    ],
)
def test_commands_that_take_it_from_an_index_are_told_apart(line: str, *, asks: bool) -> None:
    assert takes_from_an_index(line) is asks

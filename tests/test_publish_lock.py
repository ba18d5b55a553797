"""Jobs that may write packages install only what the lock file pins by hash."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.paths import ROOT
from tests.workflows import workflow

INSTALL = ROOT / ".ci/install"
LOCK = (ROOT / ".ci/publish.txt").read_text()
PINS = {
    canonicalize_name(name): Version(version)
    for name, version in re.findall(r"^([\w.-]+)==(\S+) \\$", LOCK, re.MULTILINE)
}
PLATFORM = {"python_version": "3.12", "python_full_version": "3.12.11", "sys_platform": "linux", "os_name": "posix"}


def test_the_lock_is_made_from_what_is_required() -> None:
    """To build vpatch and to run it with the `image` extra, and what that requires, as far as it is installed."""
    lines = (ROOT / ".ci/publish.in").read_text().splitlines()
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = found["project"]
    required = {
        *found["build-system"]["requires"],
        *project["dependencies"],
        *project["optional-dependencies"]["image"],
    }
    assert {line for line in lines if not line.startswith("#")} == required

    same = [name for name in PINS if PINS[name] == installed(name)]
    more = [one for name in same for one in map(Requirement, metadata.requires(name) or ())]
    assert same or not PINS
    for one in (*map(Requirement, required), *more):
        if one.marker is None or one.marker.evaluate({**PLATFORM, "extra": ""}):
            assert one.specifier.contains(PINS[canonicalize_name(one.name)]), one


def installed(name: str) -> Version | None:
    try:
        return Version(metadata.version(name))
    except metadata.PackageNotFoundError:
        return None


def test_every_pin_has_hashes_and_no_index_is_named() -> None:
    entries = re.findall(r"^\S.*?(?=^\S|\Z)", LOCK, re.MULTILINE | re.DOTALL)
    pinned = [entry for entry in entries if not entry.startswith("#")]

    assert len(pinned) == len(PINS) > 20
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in pinned)
    assert not re.search(r"https?:|file:|--index|--extra-index|--find-links", LOCK)


def test_the_script_installs_only_what_is_locked() -> None:
    lines = [line for line in INSTALL.read_text().splitlines() if "install" in line and not line.startswith("#")]
    locked, own = (set(line.split()) for line in lines)

    assert {"--require-hashes", "--only-binary", ":all:", ".ci/publish.txt"} <= locked
    # vpatch itself is built with the packages installed above; nothing else can be fetched.
    assert {"--no-index", "--no-deps", "--no-build-isolation", "."} <= own
    assert INSTALL.stat().st_mode & 0o111
    assert ".ci/install" in [one.get("run") for one in workflow("publish-image")["jobs"]["test"]["steps"]]


@pytest.mark.parametrize("name", ["publish-image", "publish", "ci", "watch"])
def test_jobs_that_may_write_packages_install_by_the_script(name: str) -> None:
    jobs = workflow(name)["jobs"]
    able = {job for job, about in jobs.items() if about.get("permissions", {}).get("packages") == "write"}

    assert able == ({"build", "sign", "tag"} if name == "publish-image" else {"image"} if name == "publish" else set())
    for job in able:
        steps = [str(one.get("run", "")) for one in jobs[job].get("steps", ())]
        assert not [run for run in steps if re.search(r"\b(pip|uv|uvx|pipx|npm|apt(-get)?|curl|wget)\b", run)]
        assert (".ci/install" in steps) is any(".venv/bin" in run for run in steps)

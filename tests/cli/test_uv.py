"""A vLLM installed by uv: its files are hard links into uv's cache, which every other environment shares."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Program, Trees, contents_of
from tests.hybrid import ARG_UTILS, ONLY
from tests.wheels import wheel_of


def uv(cache: Path, *arguments: str | Path) -> None:
    """Run uv with a cache of its own and without a package index."""
    program = Path(sys.executable).with_name("uv")
    settings = ("--quiet", "--no-config", "--offline", "--cache-dir", cache)
    subprocess.run([program, *settings, *arguments], check=True)


@pytest.mark.deep
def test_the_cache_keeps_its_bytes(
    vpatch: Program, slim: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # else nothing could be left of what `verify` imports
    environment, cache = tmp_path / "environment", tmp_path / "cache"
    wheel = tmp_path / "vllm-0.20.2-py3-none-any.whl"
    wheel.write_bytes(wheel_of(slim("0.20.2")))
    uv(cache, "venv", "--python", sys.executable, environment)
    python = environment / "bin/python"
    uv(cache, "pip", "install", "--python", python, "--no-deps", "--link-mode", "hardlink", wheel)
    (site,) = environment.glob("lib/python3*/site-packages")
    others = {path for path in site.rglob("*") if path.is_file() and "vllm" not in path.relative_to(site).parts[0]}
    before, installed = contents_of(cache), contents_of(site)
    assert (site / ARG_UTILS).stat().st_nlink > 1

    assert vpatch("apply", environment, *ONLY).code == 0
    assert vpatch("verify", environment, "--python", python).code == 0
    assert (site / ARG_UTILS).stat().st_nlink == 1
    assert contents_of(cache) == before

    assert vpatch("revert", environment).code == 0
    assert contents_of(site) == installed

    assert vpatch("apply", environment, *ONLY).code == 0
    uv(cache, "pip", "uninstall", "--python", python, "vllm")
    assert {path for path in site.rglob("*") if path.is_file()} == others
    assert contents_of(cache) == before

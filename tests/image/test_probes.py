"""Probes in containers of an image that has all of vLLM's packages (2 GB, so this is slow), but no GPU."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from tests.conftest import Program, Trees
from tests.image.standin import SITE, archive, imported, python_root
from tests.validation.cpu.environment import interpreter as cpu_interpreter

LIBRARIES = ("libpthread.so.0", "librt.so.1", "libdl.so.2", "libutil.so.1", "libstdc++.so.6", "libgcc_s.so.1")

# torchvision's compiled half wants the torch that it was built with.
CUSTOM = """
import sys, types
for name in ("_meta_registrations", "_autograd_registrations"):
    sys.modules[f"torchvision.{name}"] = types.ModuleType(f"torchvision.{name}")
"""


@pytest.fixture
def complete(engine: docker.DockerClient, pristine: Trees, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """`complete("0.20.2")`: an image of that release with the packages of its CPU environment."""
    made: list[str] = []

    def make(release: str) -> str:
        place = python_root(tmp_path / "root", *LIBRARIES)
        own = Path(sysconfig.get_path("purelib", "venv", {"base": str(cpu_interpreter(release).parents[1])}))
        shared = own / (own / "shared.pth").read_text().strip()
        (tmp_path / "custom").mkdir()
        # Debian's Python has a sitecustomize of its own, which comes first.
        (tmp_path / "custom/custom.py").write_text(CUSTOM)
        (tmp_path / "custom/custom.pth").write_text("import custom\n")
        packages = ((folder, place) for folder in (shared.resolve(), own, tmp_path / "custom"))
        tar = archive(tmp_path / "complete.tar", (tmp_path / "root", ""), *packages, (pristine(release), SITE))
        made.append(f"try:complete-{release}")
        imported(engine, tar, made[-1])
        tar.unlink()
        return made[-1]

    yield make
    for name in made:
        engine.api.remove_image(name, force=True)


SOME = ("ct-fp8-lm-head", "turboquant-decode", "turboquant-hybrid")


@pytest.mark.deep
@pytest.mark.parametrize(("release", "chosen"), [("0.20.2", SOME), ("0.26.0", ("turboquant-auto-dtype",))])
def test_every_probe_holds_in_a_patched_image(
    vpatch: Program, engine: docker.DockerClient, complete: Callable[[str], str], release: str, chosen: tuple[str, ...]
) -> None:
    """Of some overlays, each of a kind; tests/overlays/test_probes.py has all of them."""
    options = [word for name in chosen for word in ("--overlay", name)]
    ran = vpatch("build", "--base", complete(release), "--tag", "try:patched", *options, "--json")

    assert ran.code == 0, ran.err
    outcomes = {test["name"]: test for test in ran.json["tests"]}
    probes = {name: test for name, test in outcomes.items() if name.startswith("probe ")}
    applied = {one["id"].replace("-", "_") for one in ran.json["overlays"] if one["state"] in ("applied", "merged")}
    assert probes.keys() == {f"probe {name}" for name in applied}
    assert {name: test["because"] for name, test in probes.items() if not test["ok"]} == {}
    assert outcomes["import vllm.v1.attention.backends.turboquant_attn"]["ok"], outcomes
    engine.api.remove_image("try:patched", force=True)

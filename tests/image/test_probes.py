"""Probes in containers of an image that has all of vLLM's packages (2 GB, so this is slow), but no GPU."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from tests.conftest import Program, Trees
from tests.image.standin import SITE, archive, imported, layered, python_root
from tests.paths import link
from tests.tiers import whole
from tests.validation.cpu.environment import BYTECODE
from tests.validation.cpu.environment import interpreter as cpu_interpreter

LIBRARIES = ("libpthread.so.0", "librt.so.1", "libdl.so.2", "libutil.so.1", "libstdc++.so.6", "libgcc_s.so.1")

# torchvision's compiled half wants the torch that it was built with.
CUSTOM = """
import sys, types
for name in ("_meta_registrations", "_autograd_registrations"):
    sys.modules[f"torchvision.{name}"] = types.ModuleType(f"torchvision.{name}")
"""


def bytecode_of(packages: Path, folder: Path) -> Path:
    """Lay out what is compiled of packages below `folder`, as beside them: compiling takes longer than the probes."""
    kept = BYTECODE.joinpath(*packages.parts[1:])
    for file in kept.rglob("*.pyc"):
        target = folder / file.relative_to(kept).parent / "__pycache__" / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        link(str(file), str(target))
    folder.mkdir(exist_ok=True)
    return folder


CASES = (("0.20.2", ("ct-fp8-lm-head", "receipt", "turboquant-hybrid")),)


@pytest.fixture(scope="module")
def packages(client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with the packages of the CPU environment, which is the same for all releases in `CASES`."""
    (python,) = {cpu_interpreter(release) for release, _ in CASES}
    folder = tmp_path_factory.mktemp("packages")
    place = python_root(folder / "root", *LIBRARIES)
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(python.parents[1])}))
    shared = Path(os.path.normpath(own / (own / "shared.pth").read_text().strip()))
    (folder / "custom").mkdir()
    # Debian's Python has a sitecustomize of its own, which comes first.
    (folder / "custom/custom.py").write_text(CUSTOM)
    (folder / "custom/custom.pth").write_text("import custom\n")
    compiled = [bytecode_of(part, folder / part.parents[2].name) for part in (shared, own)]
    parts = ((part, place) for part in (shared.resolve(), own, folder / "custom", *compiled))
    tar = archive(folder / "packages.tar", (folder / "root", ""), *parts)
    imported(client, tar, "try:packages")
    tar.unlink()
    yield "try:packages"
    client.api.remove_image("try:packages", force=True)


@pytest.fixture
def complete(
    engine: docker.DockerClient, packages: str, pristine: Trees, tmp_path: Path
) -> Iterator[Callable[[str], str]]:
    """`complete("0.20.2")`: an image of that release with all packages that it needs."""
    made: list[str] = []

    def make(release: str) -> str:
        made.append(f"try:complete-{release}")
        tar = archive(tmp_path / "complete.tar", (pristine(release), SITE))
        layered(engine, tar, packages, made[-1])
        tar.unlink()
        return made[-1]

    yield make
    for name in made:
        engine.api.remove_image(name, force=True)


@whole
@pytest.mark.deep
@pytest.mark.parametrize(("release", "chosen"), CASES)
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

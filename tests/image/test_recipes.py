"""The recipes for images, and docs/images.md, run with a real engine on the stand-in for vllm/vllm-openai."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import docker
import pytest

from tests.__main__ import failure
from tests.docs.machine import Machine, machine
from tests.docs.recipe import run
from tests.docs.registry import IN_AN_ENGINE, LIKE_THE_BASE
from tests.image.standin import SITE, archive, last_layer, layered, python_root
from tests.needs import need
from tests.paths import ROOT
from tests.test_package import hatch
from tests.wheels import wheel_of_installed

__all__ = ["machine"]

pytestmark = pytest.mark.deep

NEEDED = ("click", "libcst", "markdown-it-py", "mdurl", "packaging", "pygments", "pyyaml", "rich")
"""What vpatch depends on."""

COMPOSE = ("check-jsonschema", "--builtin-schema", "vendor.compose-spec")


@pytest.fixture(scope="module")
def at_the_engine(
    machine: Machine, engine_address: str, base: str, tmp_path_factory: pytest.TempPathFactory
) -> Machine:
    """A machine with the engine, its command, and vpatch with all extras."""
    need("docker")
    programs = tmp_path_factory.mktemp("programs")
    (programs / "vpatch").symlink_to(Path(sys.executable).with_name("vpatch"))
    path = f"{programs}:{machine['PATH']}"
    return {**machine, "PATH": path, "DOCKER_HOST": engine_address, "DOCKER_BUILDKIT": "0"}


@pytest.fixture(scope="module")
def like_the_base(client: docker.DockerClient, base: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Add to the stand-in what vllm/vllm-openai has: pip, and `rm`. pip finds vpatch's wheels in a folder."""
    root, native = tmp_path_factory.mktemp("more") / "root", find_spec("libcst.native")
    assert native
    python_root(root, Path(str(native.origin)))  # all of the standard library, and what libcst is linked with
    hatch(ROOT, "build", "-t", "wheel", "-d", root / "wheels")
    for project in NEEDED:
        name, data = wheel_of_installed(project)
        (root / "wheels" / name).write_bytes(data)
    with zipfile.ZipFile(io.BytesIO(wheel_of_installed("pip")[1])) as pip:
        pip.extractall(root / SITE)
    shutil.copy2("/bin/rm", root / "bin/rm")
    (root / "etc/pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    layered(client, archive(root.with_name("more.tar"), (root, "")), base, LIKE_THE_BASE)


@pytest.mark.usefixtures("like_the_base")
def test_a_layer_in_a_dockerfile(
    at_the_engine: Machine, client: docker.DockerClient, registry: str, tmp_path: Path
) -> None:
    """Nothing but vLLM's files is in the layer, and it is larger than that of `vpatch build` by the originals.

    In place of `git apply`, the layer has the modules of the diffs, with marks, and those of no other overlay.
    """
    page = "docs/recipes/dockerfile.md"
    run(page, IN_AN_ENGINE[page], tmp_path / "recipe", at_the_engine)

    layers = (last_layer(client, name) for name in ("me/vllm:patched", "me/vllm:v0.20.2"))
    theirs, ours = ({path: len(data) for path, data in layer.items() if data is not None} for layer in layers)
    assert all(path.startswith(f"{SITE}/vllm") for path in theirs)
    assert all("dist-info/vpatch/" in path for path in theirs.keys() - ours.keys())
    assert ours.keys() - theirs.keys() == {f"{SITE}/vllm-0.20.2.dist-info/vpatch-image.json"}
    carried = last_layer(client, "me/vllm:fixes")
    assert all(path.startswith(f"{SITE}/vllm") for path, data in carried.items() if data is not None)
    marks = {path: {*re.findall(rb"# vpatch: ([\w-]+)", data)} for path, data in carried.items() if data}
    assert {path.removeprefix(f"{SITE}/vllm/"): found for path, found in marks.items() if found} == {
        "config/cache.py": {b"compile-cache"},
        "config/scheduler.py": {b"warn-sync-scheduler"},
        "v1/worker/gpu_model_runner.py": {b"log-ngram-drafts"},
    }
    _inspect_anywhere(at_the_engine, client, registry)
    assert 1.8 < sum(theirs.values()) / sum(ours.values()) < 2.2, "about half the size"


def _inspect_anywhere(at_the_engine: Machine, client: docker.DockerClient, registry: str) -> None:
    """An image that `docker build` patched is shown alike in the engine and in a registry."""
    name = f"{registry}/recipes/patched:x"
    client.images.get("me/vllm:patched").tag(name)
    client.images.push(name)
    command = [f"{at_the_engine['PATH'].partition(':')[0]}/vpatch", "inspect", name, "--json"]
    hosts = (at_the_engine["DOCKER_HOST"], "unix:///nothing")
    ran = [
        subprocess.run(command, env={**at_the_engine, "DOCKER_HOST": host}, capture_output=True, check=True)
        for host in hosts
    ]
    here, there = (json.loads(one.stdout) for one in ran)
    assert (here["image"]["from"], there["image"]["from"]) == ("engine", "registry")
    assert (len(there["layers_read"]), there["digest"]) == (1, here["digest"])
    assert (there["overlays"], there["files"], len(here["digest"])) == (here["overlays"], here["files"], 64)


def test_a_compose_file(at_the_engine: Machine, tmp_path: Path) -> None:
    page, folder = "docs/recipes/compose.md", tmp_path / "recipe"
    run(page, IN_AN_ENGINE[page], folder, at_the_engine)

    files = (folder / "compose.yaml", folder / "plan.yaml")
    assert failure([*COMPOSE, *map(str, files)]) == ""
    if not subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        for file in files:
            subprocess.run(["docker", "compose", "--file", file, "config", "--quiet"], check=True)


def test_the_page_on_images(at_the_engine: Machine, registry: str, tmp_path: Path) -> None:
    page = "docs/images.md"
    run(page, IN_AN_ENGINE[page], tmp_path / "recipe", {**at_the_engine, "REGISTRY": registry})

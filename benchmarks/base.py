"""A base image of realistic size: layers and history like those of vllm/vllm-openai, and vLLM's real Python files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import libcst
from docker import DockerClient

from tests.image.standin import CONFIG, SITE, archive, python_root
from tests.releases import tree_of

VERSION = "0.20.2"
MADE = "2026-01-01T00:00:00Z"

# The commands that made each layer, from the lowest. The vLLM layer includes its extensions, which every reader of
# the layer has to read.
STEPS = {
    "cuda": "RUN /bin/sh -c apt-get install -y python3 cuda-libraries # buildkit",
    "torch": "RUN /bin/sh -c uv pip install --system -r requirements/cuda.txt # buildkit",
    "vllm": "RUN /bin/sh -c uv pip install --system dist/*.whl # buildkit",
    "examples": "COPY examples /vllm-workspace/examples # buildkit",
}
# Random bytes compress as little as compiled libraries, or less.
BALLAST = {
    "cuda": "usr/local/cuda/lib64/libcublasLt.so",
    "torch": f"{SITE}/torch/lib/libtorch_cuda.so",
    "vllm": f"{SITE}/vllm/_C.abi3.so",
}


def load_base(client: DockerClient, folder: Path, name: str, megabytes: int) -> None:
    """Make an image of about `megabytes` (10^6 bytes), with a third of its ballast in each of three layers."""
    for step in STEPS:
        (folder / step).mkdir(parents=True)
    # The Dockerfile runs libcst in it.
    python_root(folder / "cuda", *Path(libcst.__file__).parent.glob("native*.so"))
    shutil.copytree(tree_of(VERSION), folder / "vllm" / SITE)
    examples = folder / "examples/vllm-workspace/examples"
    examples.mkdir(parents=True)
    (examples / "offline_inference.py").write_text("from vllm import LLM\n" * 100)
    rest = sum(path.lstat().st_size for path in folder.rglob("*"))
    for step, path in BALLAST.items():
        (folder / step / path).parent.mkdir(parents=True, exist_ok=True)
        _fill(folder / step / path, (megabytes * 10**6 - rest) // len(BALLAST))
    layers = [archive(folder / f"{step}.tar", (folder / step, ""), edit=_whole_seconds) for step in STEPS]
    whole = _archive(folder / "base.tar", name, layers)
    with whole.open("rb") as file:
        client.api.load_image(file)


def _whole_seconds(member: tarfile.TarInfo) -> None:
    """Drop fractions of seconds, as engines do: each would cost a header of its own for each member."""
    member.mtime = int(member.mtime)


def _fill(path: Path, size: int) -> None:
    with path.open("wb") as file:
        while size > 0:
            size -= file.write(os.urandom(min(size, 1 << 24)))


def _archive(path: Path, name: str, layers: list[Path]) -> Path:
    """Write an archive in the format of `docker save`."""
    diff_ids = []
    for layer in layers:
        with layer.open("rb") as file:
            diff_ids.append(f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}")
    steps = [{"created": MADE, "created_by": step, "comment": "buildkit.dockerfile.v0"} for step in STEPS.values()]
    settings = {"created": MADE, "created_by": f"ENTRYPOINT {json.dumps(CONFIG['Entrypoint'])}", "empty_layer": True}
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": MADE,
        "config": dict(CONFIG),
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": [*steps, settings],
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": [layer.name for layer in layers]}]
    with tarfile.open(path, "w") as tar:
        for member, value in (("config.json", config), ("manifest.json", manifest)):
            data = json.dumps(value).encode()
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for layer in layers:
            tar.add(layer, layer.name)
    return path

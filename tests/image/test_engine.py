"""What vpatch asks an engine: the files of an image, how far a pull is, and whether there are GPUs."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import docker
import pytest
from docker.errors import DockerException
from vpatch.core.listing import pack
from vpatch.errors import Failure
from vpatch.image.engine import followed
from vpatch.image.engine.containers import require_gpus
from vpatch.image.engine.files import ContainerFiles, open_files
from vpatch.image.filesystem import Kind, Place, read_from

from tests.failures import problem_of
from tests.image.standin import archive, imported

KINDS = {"d": Kind.FOLDER, "d/file": Kind.FILE, "d/link": Kind.LINK, "d/folder": Kind.LINK, "d/pipe": Kind.OTHER}


def owned(member: tarfile.TarInfo) -> None:
    member.uid, member.gid, member.mtime = 12, 34, 1_700_000_000


@pytest.fixture(scope="module")
def image(client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("kinds") / "root"
    (root / "d/sub").mkdir(parents=True)
    (root / "d/file").write_bytes(b"content")
    (root / "d/link").symlink_to("file")
    (root / "d/folder").symlink_to("sub")
    os.mkfifo(root / "d/pipe")
    (root / "d/file").chmod(0o4750)
    (root / "d").chmod(0o3750)
    imported(client, archive(root.with_name("tar"), (root, ""), edit=owned), "try:kinds")
    return "try:kinds"


@pytest.fixture
def files(client: docker.DockerClient, image: str) -> Iterator[ContainerFiles]:
    with open_files(client, image, "the-tests") as files:
        yield files


def test_files_of_every_kind(files: ContainerFiles) -> None:
    for path, kind in {**KINDS, "d/none": None, "none/file": None}.items():
        told, entry = files.kind(path), files.entry(path)
        assert told is (entry.kind if entry else None) is kind, "by HEAD as by the archive"
        assert files.kind(path) is kind, "once the entry is known"

    vllm = Place("d", "vllm-1.dist-info")
    assert read_from(files, Place(".", ""), "d/") == pack(["file", "folder", "link", "pipe", "sub"])
    assert read_from(files, vllm, "sub/") == pack([])
    assert [read_from(files, vllm, f"{path}/") for path in ("none", "file", "link", "folder")] == [None] * 4
    folder, file = files.entry("d"), files.entry("d/file")
    assert folder
    assert (folder.mode, folder.uid, folder.gid) == (0o3750, 12, 34)
    assert file
    assert (file.mode, file.uid, file.gid, file.mtime, file.size) == (0o4750, 12, 34, 1_700_000_000, 7)


def test_prefetch(files: ContainerFiles) -> None:
    files.prefetch(["d/file", "d/none", "none/deep/file", "d/link", "d/sub/none"])

    assert files.read("d/file") == b"content"
    assert [files.read(path) for path in ("d/none", "none/deep/file", "d/sub/none")] == [None] * 3
    found = [files.entry(path) for path in ("d", "d/file")]
    assert [(one.mode, one.uid) for one in found if one] == [(0o3750, 12), (0o4750, 12)]
    assert files.entry("none/deep") is files.entry("none") is files.entry("d/none") is None
    assert files.names("d") == ("file", "folder", "link", "pipe", "sub")
    with pytest.raises(Failure, match=r"not a plain file: /d/link: the image has 'link', symbolic link there"):
        files.read("d/link")


def test_no_container_is_left(client: docker.DockerClient, image: str) -> None:
    def interrupted() -> None:
        with open_files(client, image, "the-tests") as files:
            files.prefetch(f"d/{number}" for number in range(100))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert client.api.containers(all=True, filters={"name": "vpatch-the-tests"}) == []


def line(status: str, layer: str = "", current: int = 0, total: int = 0) -> dict[str, Any]:
    return {"status": status, "id": layer, "progressDetail": {"current": current, "total": total} if total else {}}


PULL = (
    (line("Pulling from a"), ("pulling a:b",)),
    (line("Already exists", "0"), None),
    (line("Downloading", "1", 10, 100), ("pulling a:b", 10, 100)),
    (line("Downloading", "2", 20, 50), ("pulling a:b", 30, 150)),
    (line("Download complete", "2"), ("pulling a:b", 60, 150)),
    (line("Extracting", "2", 5, 50), None),
    (line("Downloading", "1", 120, 100), ("unpacking a:b", 5, 150)),  # more bytes than announced
    (line("Extracting", "2", 40, 50), ("unpacking a:b", 40, 150)),
    (line("Pull complete", "2"), ("unpacking a:b", 50, 150)),
    (line("Download complete", "1"), None),
    (line("Extracting", "1", 60, 100), ("unpacking a:b", 110, 150)),
    (line("Status: Downloaded newer image"), None),
)


def test_the_layers_of_a_pull_are_added_up() -> None:
    seen: list[tuple[object, ...]] = []

    def phase(*told: object) -> None:
        if told not in seen[-1:]:
            seen.append(told)

    lines = [one for one, _ in PULL]
    verbs = {"Downloading": "pulling", "Extracting": "unpacking"}
    assert list(followed(lines, "a:b", phase, verbs)) == lines
    assert seen == [expected for _, expected in PULL if expected]
    with pytest.raises(DockerException, match="no space"):
        list(followed([{"error": "no space"}], "a:b", phase, verbs))


NVML = "nvidia-container-cli: initialization error: nvml error: driver not loaded : unknown"
DRIVER = (
    "failed to create shim: OCI runtime create failed: error running hook #0: exit status 1, stderr: "
    "nvidia-container-cli: initialization error: nvml error: driver not loaded\n: unknown"
)
CDI = (
    "cdi device injection failed: unresolvable cdi devices nvidia.com/gpu=all: install the NVIDIA Container Toolkit, "
    "run `sudo nvidia-ctk runtime configure --runtime=docker` and restart the engine; or leave out --gpus"
)


@pytest.mark.parametrize(
    ("says", "what", "cause"),
    [
        (DRIVER, "no GPUs", f"{NVML}: `nvidia-smi` shows whether the driver works; or leave out --gpus"),
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all", "no NVIDIA runtime", CDI),
    ],
    ids=["a toolkit without a driver", "a newer engine"],
)
def test_engines_without_gpus(
    client: docker.DockerClient, image: str, monkeypatch: pytest.MonkeyPatch, says: str, what: str, cause: str
) -> None:
    """Messages of engines that these tests do not have; theirs names what it lacks before the missing interpreter."""
    problem = problem_of(require_gpus, client, image, "the-tests", "no-such-python")
    assert problem.what == "no NVIDIA runtime"

    error = docker.errors.APIError("500 Server Error", explanation=says)
    monkeypatch.setattr(docker.APIClient, "start", Mock(side_effect=error))

    problem = problem_of(require_gpus, client, image, "the-tests", "python3")
    assert (problem.what, problem.where, problem.reason) == (what, "docker engine", cause)

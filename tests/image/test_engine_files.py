"""The files of an image, read from an engine."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator

import docker
import pytest
from vpatch.core.listing import pack
from vpatch.errors import Failure
from vpatch.image.engine.containers import ContainerFiles, open_files
from vpatch.image.filesystem import Kind, Vllm, read_from

from tests.image.standin import archive, imported

NAME = "try:kinds"
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
    imported(client, archive(root.with_name("tar"), (root, ""), edit=owned), NAME)
    return NAME


@pytest.fixture
def files(client: docker.DockerClient, image: str) -> Iterator[ContainerFiles]:
    with open_files(client, image, "the-tests") as files:
        yield files


@pytest.mark.parametrize(("path", "kind"), [*KINDS.items(), ("d/none", None), ("none/file", None)])
def test_head_and_archive_agree_on_the_kind(files: ContainerFiles, path: str, kind: Kind | None) -> None:
    told = files.kind(path)
    entry = files.entry(path)

    assert told is (entry.kind if entry else None) is kind
    assert files.kind(path) is kind, "once the entry is known"


def test_a_folder_is_listed(files: ContainerFiles) -> None:
    vllm = Vllm("d", "vllm-1.dist-info")

    assert read_from(files, Vllm(".", ""), "d/") == pack(["file", "folder", "link", "pipe", "sub"])
    assert read_from(files, vllm, "sub/") == pack([])
    assert [read_from(files, vllm, f"{path}/") for path in ("none", "file", "link", "folder")] == [None] * 4


def test_mode_and_owner_are_those_of_the_image(files: ContainerFiles) -> None:
    folder, file = files.entry("d"), files.entry("d/file")

    assert folder
    assert (folder.mode, folder.uid, folder.gid) == (0o3750, 12, 34)
    assert file
    assert (file.mode, file.uid, file.gid, file.mtime, file.size) == (0o4750, 12, 34, 1_700_000_000, 7)


def test_prefetch(files: ContainerFiles) -> None:
    files.prefetch(["d/file", "d/none", "none/deep/file", "d/link", "d/sub/none"])

    assert files.read("d/file") == b"content"
    assert [files.read(path) for path in ("d/none", "none/deep/file", "d/sub/none")] == [None] * 3
    assert [(entry.mode, entry.uid) for path in ("d", "d/file") if (entry := files.entry(path))] == [
        (0o3750, 12),
        (0o4750, 12),
    ]
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
    assert client.api.containers(all=True, filters={"label": "io.vpatch.run=the-tests"}) == []

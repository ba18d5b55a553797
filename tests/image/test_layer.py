"""A layer has equal bytes for equal files, and keeps the base's modes and owners."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from vpatch.core.catalogue import of_patch_file
from vpatch.core.edits.data import AddData
from vpatch.core.engine import Engine
from vpatch.core.sources import PatchBytes
from vpatch.image.config import LABEL, Base
from vpatch.image.filesystem import Entry, Files, Kind, Place
from vpatch.image.patch import Layer, label_of, make_layer, patch
from vpatch.manifest import sha256

from tests.conftest import Trees
from tests.snippets import overlay
from tests.test_project import ID, PATCH

FOLDER = Entry("srv", Kind.FOLDER, 0o2755, 7, 8, 5)
FILE = Entry("srv/a.py", Kind.FILE, 0o640, 1, 2, 50)


def members(layer: Layer) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(layer.blob))) as tar:
        return {member.name: member for member in tar}


def test_modes_and_owners_are_kept_and_times_are_set() -> None:
    layer = make_layer({"srv/a.py": b"1\n"}, (FILE, FOLDER), ("srv/__pycache__/a.cpython-312.pyc",), 90)
    found = members(layer)

    assert list(found) == ["srv", "srv/__pycache__/.wh.a.cpython-312.pyc", "srv/a.py"]
    assert [(m.mode, m.uid, m.gid, m.mtime) for m in found.values()] == [
        (0o2755, 7, 8, 90),
        (0o644, 0, 0, 90),
        (0o640, 1, 2, 90),
    ]
    assert (found["srv"].isdir(), found["srv/a.py"].size) == (True, 2)
    assert all(m.uname == m.gname == "" for m in found.values())
    assert layer.files == ("srv/a.py",)
    assert layer.removed == ("srv/__pycache__/a.cpython-312.pyc",)


def test_a_changed_file_never_keeps_its_mtime_and_a_long_path_is_kept() -> None:
    assert members(make_layer({"srv/a.py": b""}, (FILE,), (), 50))["srv/a.py"].mtime == 51
    path = "/".join(["a-folder-of-some-length"] * 12) + "/file.py"
    assert path in members(make_layer({path: b""}, (Entry(path, Kind.FILE, 0o644, 0, 0, 0),), (), 0))


def test_the_order_of_arguments_does_not_matter() -> None:
    other = Entry("srv/b.py", Kind.FILE, 0o644, 0, 0, 0)
    one = make_layer({"srv/a.py": b"1", "srv/b.py": b"2"}, (FOLDER, FILE, other), ("y", "x"), 1)
    two = make_layer({"srv/b.py": b"2", "srv/a.py": b"1"}, (other, FILE, FOLDER), ("x", "y"), 1)

    assert one == two
    assert one.diff_id == f"sha256:{hashlib.sha256(gzip.decompress(one.blob)).hexdigest()}"
    assert one.digest == f"sha256:{hashlib.sha256(one.blob).hexdigest()}"


@dataclass
class Folder(Files):
    """A folder as the file system of an image."""

    top: Path

    def entry(self, path: str) -> Entry | None:
        at = self.top / path
        kind = Kind.FOLDER if at.is_dir() else Kind.FILE
        return Entry(path, kind, 0o644, 0, 0, 0) if at.exists() else None

    def read(self, path: str) -> bytes | None:
        return (self.top / path).read_bytes() if (self.top / path).is_file() else None

    def open(self, path: str) -> IO[bytes] | None:
        raise NotImplementedError

    def names(self, folder: str) -> tuple[str, ...]:
        return tuple(sorted(path.name for path in (self.top / folder).glob("*")))


def test_the_label_has_the_data_files_of_an_overlay(slim: Trees) -> None:
    tree, data = slim("0.20.2"), AddData("vllm/platforms/new.json", "{}", "")
    base = Base("me/vllm", "sha256:0", {"architecture": "amd64", "os": "linux"})
    engine = Engine([overlay(data.companion, data, name="mine")])

    _, layer = patch(Folder(tree.parent), Place(tree.name, "vllm-0.20.2.dist-info"), base, engine)

    assert layer is not None
    label = label_of(Base("me/vllm", "", {"config": {"Labels": {LABEL: layer.provenance}}}))
    assert label.overlays[0]["files"] == sorted([data.companion.file, data.file])
    assert label.modules == (data.companion.file.removesuffix(".py").replace("/", "."),)
    assert f"{tree.name}/{data.file}" in layer.files


def test_the_label_has_the_hash_of_a_patch_file(slim: Trees) -> None:
    tree = slim("0.20.2")
    engine = Engine([of_patch_file(PatchBytes(f"patches/{ID}.vpatch", PATCH.encode()))])
    base = Base("me/vllm", "sha256:0", {"architecture": "amd64", "os": "linux"})

    _, layer = patch(Folder(tree.parent), Place(tree.name, "vllm-0.20.2.dist-info"), base, engine)

    assert layer is not None
    label = label_of(Base("me/vllm", "", {"config": {"Labels": {LABEL: layer.provenance}}}))
    assert [(one["id"], one["sha256"]) for one in label.overlays] == [(ID, sha256(PATCH.encode()))]
    assert json.loads(layer.provenance)["files"].keys() == {"vllm/platforms/interface.py"}

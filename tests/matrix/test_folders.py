"""Listings of folders in wheels: from the wheel's own directory, and once."""

from __future__ import annotations

from pathlib import Path

from vpatch.core.listing import pack
from vpatch.matrix.cache import WHEELS, Cache
from vpatch.matrix.releases import WheelFile

from tests.loopback import SOURCES, IndexServer, make_wheel
from tests.matrix.conftest import CORE, FILES, INIT, WANTED, release_of

ENGINE, NOWHERE = "vllm/engine/", "vllm/nowhere/"
LISTED = {ENGINE: pack(path.removeprefix(ENGINE) for path in SOURCES if path.startswith(ENGINE))}


def test_lists_folders_once(index: IndexServer, cache: Cache) -> None:
    """A listing comes from the wheel's directory; RECORD, which is kept, is not believed."""
    release_of(cache).read([INIT])
    asked = len(index.spans())

    first = release_of(cache).read([ENGINE, NOWHERE, INIT])
    assert first.files == {INIT: WANTED[INIT], **LISTED}
    assert len(index.spans()) > asked

    assert release_of(cache).read([CORE]).files == {CORE: WANTED[CORE]}
    asked = len(index.spans())
    assert release_of(cache).read([ENGINE, NOWHERE, *FILES]).files == {**WANTED, **LISTED}
    assert len(index.spans()) == asked


def test_a_note_of_an_earlier_version_has_no_listing(index: IndexServer, cache: Cache) -> None:
    release_of(cache).read(FILES)
    (note,) = cache.notes(WHEELS)
    cache.put_note(WHEELS, str(release_of(cache).wheel.sha256), {k: v for k, v in note.items() if k != "folders"})
    asked = len(index.spans())

    assert release_of(cache).read([ENGINE, *FILES]).files == {**WANTED, **LISTED}
    assert len(index.spans()) > asked


def test_a_wheel_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "vllm-1.0-any.whl"
    path.write_bytes(make_wheel())

    assert WheelFile(path).read([ENGINE, NOWHERE, *FILES]).files == {**WANTED, **LISTED}

"""The compiled extensions of real releases, from their wheels."""

from __future__ import annotations

import fcntl
import shutil
import zipfile
from collections.abc import Collection
from pathlib import Path

from vpatch.release.index import find_wheel
from vpatch.release.wheel import open_wheel

from tests.paths import CACHE


def extensions(release: str, names: Collection[str]) -> dict[str, Path]:
    """Return files of a release's wheel, fetched once; do not modify them.

    They are larger than what `read_members` accepts, and a caller knows the hash that each must have.

    Raises:
        Failure: the index, or the server of the wheel, fails.
    """
    top = CACHE / "extensions" / release
    top.mkdir(parents=True, exist_ok=True)
    with (top.parent / f".{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = {name for name in names if not (top / name).exists()}
        if wanted:
            with open_wheel(find_wheel(release)) as wheel, zipfile.ZipFile(wheel) as archive:
                infos = [archive.getinfo(name) for name in wanted]
                wheel.prefetch((one.header_offset, one.header_offset + one.compress_size + 4096) for one in infos)
                for name in wanted:
                    path = top / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    part = path.with_suffix(".part")
                    with archive.open(name) as packed, part.open("wb") as file:
                        shutil.copyfileobj(packed, file, 1 << 20)
                    part.rename(path)
    return {name: top / name for name in names}

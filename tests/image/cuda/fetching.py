"""The compiled extensions of real releases, from their wheels."""

from __future__ import annotations

import fcntl
from collections.abc import Collection
from pathlib import Path

from vpatch.release.index import find_wheel
from vpatch.release.wheel import open_wheel, read_members

from tests.conftest import CACHE


def extensions(release: str, names: Collection[str]) -> dict[str, Path]:
    """Return files of a release's wheel, fetched once; do not modify them.

    Raises:
        Failure: the index, or the server of the wheel, fails.
    """
    top = CACHE / "extensions" / release
    top.mkdir(parents=True, exist_ok=True)
    with (top.parent / f".{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = {name for name in names if not (top / name).exists()}
        if wanted:
            with open_wheel(find_wheel(release)) as wheel:
                for member in read_members(wheel, wanted.__contains__):
                    path = top / member.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    part = path.with_suffix(".part")
                    part.write_bytes(member.data)
                    part.rename(path)
    return {name: top / name for name in names}

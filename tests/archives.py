"""Unpack tar archives that come from elsewhere."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def unpack(archive: tarfile.TarFile, folder: Path, members: Iterable[tarfile.TarInfo] | None = None) -> None:
    """Extract an archive, or some of its members, where Python can without what leads out of the folder.

    Debian 12 has Python 3.11.2; the filter came with 3.11.4.
    """
    safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    archive.extractall(folder, members, **safe)  # noqa: S202 - archives of vLLM and of this repository

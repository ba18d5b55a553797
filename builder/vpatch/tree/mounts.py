"""The mount that an open file is on."""

from __future__ import annotations

import re
from pathlib import Path


def number(file: int) -> str | None:
    """Return the number of a descriptor's mount, None where the system does not tell."""
    try:
        found = re.search(r"^mnt_id:\s*(\d+)", Path(f"/proc/self/fdinfo/{file}").read_text("ascii"), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


def type_of(file: int) -> str | None:
    """Return the type of a descriptor's file system as the kernel names it, None where the system does not tell."""
    mount = number(file)
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    return next((line.partition(" - ")[2].split()[0] for line in lines if line.split()[0] == mount), None)

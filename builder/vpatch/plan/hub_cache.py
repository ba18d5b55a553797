"""The folder of a checkpoint in the local Hugging Face cache, found without the network."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"(?!\.)[\w.-]+/(?!\.)[\w.-]+", re.ASCII)
"""How a model on the hub is called: organisation/name."""
DEFAULT_REVISION = "main"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"(?!.*\.\.)(?!/)[\w./-]{1,200}", re.ASCII)


def snapshot(name: str, revision: str | None) -> Path | None:
    """Give the folder of a checkpoint's snapshot with a config.json in it, None if the cache has none.

    `revision` is a branch, a tag or a commit; by default what `main` was when it was last downloaded.
    """
    revision = revision or DEFAULT_REVISION
    if not NAME.fullmatch(name) or not _REVISION.fullmatch(revision):
        return None
    folder = home() / f"models--{name.replace('/', '--')}"
    try:
        for commit in _commits(folder, revision):
            if (found := folder / "snapshots" / commit).joinpath("config.json").exists():
                return found
    except (OSError, UnicodeDecodeError):  # whatever that is, it is no cache of ours to read
        return None
    return None


def home() -> Path:
    """Give the folder of the cache, as huggingface_hub finds it."""
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if not cache:
        xdg = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        cache = os.path.join(os.environ.get("HF_HOME") or os.path.join(xdg, "huggingface"), "hub")  # noqa: PTH118
    return Path(os.path.expandvars(cache)).expanduser()


def _commits(folder: Path, revision: str) -> Iterator[str]:
    reference = folder / "refs" / revision
    if reference.is_file() and _COMMIT.fullmatch(commit := reference.read_text()[:100].strip()):
        yield commit
    if _COMMIT.fullmatch(revision):
        yield revision

"""Where vpatch keeps what it may lose: releases that it read, and farms."""

from __future__ import annotations

import os
from pathlib import Path

from vpatch.errors import Failure, Problem


def folder(otherwise: str = "or use --no-cache") -> Path:
    """Return the folder of the cache, which may not exist: `vpatch` in the user's folder for caches.

    Raises:
        Failure: the user has no home folder; it says what to do `otherwise`.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():  # the specification ignores relative ones
        return Path(base, "vpatch")
    try:
        return Path.home() / ".cache" / "vpatch"
    except RuntimeError as error:
        hint = f"set XDG_CACHE_HOME, {otherwise}"
        raise Failure(Problem("no cache", "~/.cache", "no home folder", hint=hint)) from error

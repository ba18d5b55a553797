"""Files that a command writes beside its output, where the user wants them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import click

from vpatch.errors import Failure, Problem, naming

FORCE = click.option("--force", is_flag=True, help="Replace the file if it exists.")


def check(path: Path, *, force: bool) -> None:
    """Check that a file can be written, before the work is done. A device or a pipe may exist.

    Raises:
        Failure: it exists and `force` is not set, or it cannot be written.
    """
    _refuse_to_overwrite(path, force=force)
    with naming("cannot write", str(path)):
        if _is_special(path):
            path.open("a").close()
        else:
            trial = _beside(path)
            trial.touch()
            trial.unlink()


def write(path: Path, text: str, *, force: bool) -> None:
    """Write a file, so that a reader finds all of it or what was there before.

    Raises:
        Failure: as `check`.
    """
    _refuse_to_overwrite(path, force=force)
    with naming("cannot write", str(path)):
        if _is_special(path):
            path.write_text(text, "utf-8")
            return
        new = _beside(path)
        try:
            new.write_text(text, "utf-8")
            new.replace(os.path.realpath(path))
        finally:
            new.unlink(missing_ok=True)


def _refuse_to_overwrite(path: Path, *, force: bool) -> None:
    if path.is_file() and not force:
        raise Failure(Problem("exists already", str(path), "it is not overwritten", hint="--force replaces it"))


def _is_special(path: Path) -> bool:
    """Whether something stands there that is no file: a device, a pipe, a folder."""
    return path.exists() and not path.is_file()


def _beside(path: Path) -> Path:
    real = Path(os.path.realpath(path))
    return real.with_name(f".{real.name}.{secrets.token_hex(4)}")

"""The temporary folder beside a target, renamed to it once it is complete."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vpatch.errors import Failure, Problem
from vpatch.net.error_text import cause


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell what goes wrong inside as a failure to write `path`."""
    try:
        yield
    except OSError as error:
        raise Failure(Problem("cannot write", str(path), cause(error))) from error


def free_path(target: Path) -> Path:
    """Give the real path of a target that may be made, before anything is asked of the network."""
    with writing(target):
        target = Path(os.path.realpath(target))  # Path.resolve raises RuntimeError for a loop of links
        try:
            taken = any(target.iterdir())
        except FileNotFoundError:
            return target
        if taken:
            raise Failure(Problem("cannot fetch into", str(target), "it is not empty"))
        if target == Path.cwd():  # renaming over it would leave the user's shell in a folder that is gone
            raise Failure(Problem("cannot fetch into", str(target), "it is the current folder"))
    return target


@contextmanager
def staging_beside(target: Path) -> Iterator[Path]:
    """Give a new folder beside `target`, which is gone afterwards unless it was renamed.

    It is locked while it is in use: so the next fetch can tell what a killed one left behind, and removes it.
    """
    staging = target.with_name(f".{target.name}.vpatch-{secrets.token_hex(4)}")
    new = [folder for folder in target.parents if not folder.exists()]
    try:
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _sweep(target)
            staging.mkdir()
            lock = os.open(staging, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield staging
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for folder in new:
            with suppress(OSError):  # not empty: the target is in it
                folder.rmdir()


def _sweep(target: Path) -> None:
    pattern = re.escape(f".{target.name}.vpatch-") + "[0-9a-f]{8}"
    for folder in target.parent.iterdir():
        if re.fullmatch(pattern, folder.name) and folder.is_dir() and not folder.is_symlink():
            with suppress(OSError):  # BlockingIOError: another fetch is at work in it
                lock = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
                finally:
                    os.close(lock)

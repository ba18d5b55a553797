"""A site: one vLLM on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vpatch.errors import Failure, Problem


@dataclass(frozen=True)
class Site:
    """A folder that holds `vllm/`, and what is known of the release in it.

    `root` is absolute and resolved. `dist_info` is the name of the release's `*.dist-info` folder below `root`, None
    where there is none. `version` is for people only: no decision is taken from it.
    """

    root: Path
    dist_info: str | None
    version: str | None

    def read(self, path: str) -> bytes | None:
        """Give the bytes of `path` (POSIX, relative to `root`), None where there is no such file.

        Raises:
            Failure: the file is there and cannot be read.
        """
        try:
            return (self.root / PurePosixPath(path)).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Failure(Problem("cannot read", path, (error.strerror or str(error)).lower())) from error

"""Where a path of a diff lies below site-packages."""

from __future__ import annotations

import re

NOWHERE = "/dev/null"

_SITE = re.compile(r"(?:.*/)?(?:site|dist)-packages/(.+)", re.DOTALL)
_PREFIX = re.compile(r"\A[abciow12]/")  # of git, see its `diff.mnemonicPrefix`; 1 and 2 are those of `--no-index`
_BACKUP = re.compile(r"(?:\.orig|\.bak|\.old|\.new|~)$")
_ESCAPE = re.compile(rb'\\(?:([0-7]{3})|([abtnvfr"\\]))')
_LETTERS = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))
# Folders of vLLM's repository that an installed vLLM does not have. One of them may have a folder `vllm` inside.
BESIDE = frozenset(
    {"tests", "docs", "benchmarks", "examples", "docker", "requirements", "tools", "scripts", ".github", ".buildkite"}
)
BUILT = frozenset({"csrc", "cmake", "rust"})


def placed(old: str, new: str) -> str:
    """Return the path of a changed file below site-packages, or below the repository for what lies beside `vllm/`.

    Args:
        old: the path behind `---`, as the diff spells it.
        new: the path behind `+++`.

    Raises:
        ValueError: a path leaves the folder, is absolute and not in site-packages, or is not UTF-8.
    """
    raw = [_unquoted(path) for path in (new, old)]
    found = [_below(path) for path in raw if path != NOWHERE]
    if not any(found):
        raise ValueError("neither `---` nor `+++` names a file")
    # `diff -u x.py.orig x.py` and `diff -ru vllm vllm.new` name the file on one side only.
    inside = [path for path in found if path.startswith("vllm/")]
    return next((path for path in inside if not _BACKUP.search(path)), (inside or found)[0])


def moved(old: str, new: str) -> bool:
    """Whether the paths of a diff are of two modules of vLLM; the suffix of a backup makes no other module.

    Raises:
        ValueError: as `placed` does.
    """
    sides = {_BACKUP.sub("", _below(_unquoted(path))) for path in (old, new) if path != NOWHERE}
    return len({path for path in sides if path.startswith("vllm/")}) > 1


def _below(path: str) -> str:
    if any(ord(character) < 32 for character in path):
        raise ValueError(f"the path {path!r} has a control character")
    if ".." in path.split("/"):
        raise ValueError(f"the path `{path}` leaves its folder by `..`")
    path = "/".join(part for part in re.sub("/+", "/", path).split("/") if part != ".")
    if site := _SITE.fullmatch(path):
        return site[1]
    if path.startswith("/"):
        raise ValueError(f"the absolute path `{path}` is not in site-packages")
    stripped = _PREFIX.sub("", path)
    parts = stripped.split("/")
    if parts[0] in BESIDE | BUILT or "vllm" not in parts[:-1]:
        return stripped
    first = parts.index("vllm")
    while parts[first + 1] == "vllm" and first + 2 < len(parts):  # a checkout that is called as the package
        first += 1
    return "/".join(parts[first:])


def _unquoted(path: str) -> str:
    """Return a path without git's quotes, which surround bytes as octal numbers."""
    if not (len(path) > 1 and path[0] == path[-1] == '"'):
        return path
    try:
        return _ESCAPE.sub(_byte, path[1:-1].encode()).decode()
    except ValueError as error:
        raise ValueError(f"the path {path} is not UTF-8") from error


def _byte(escape: re.Match[bytes]) -> bytes:
    return bytes([int(escape[1], 8) if escape[1] else _LETTERS[escape[2][0]]])

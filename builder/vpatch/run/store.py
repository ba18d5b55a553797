"""The folder of the farms: made once each, compared before each use, and closed to everybody else.

Who can write to a farm, or rename a folder above it, runs code as the user of the server. So foreign folders, and those
that others may write to, are refused.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from vpatch.errors import Failure, Problem, naming
from vpatch.run.content import Content, is_bytecode
from vpatch.run.upkeep import STAGING, prune, share, touch
from vpatch.stamps import BYTECODE

LEFT_OVER_S = 3600.0  # after that, the run that made a staging folder is taken for dead

# The names in the bytecode are those of the finished farm. Without write access Python compiles at each start instead.
_COMPILE = """
import importlib.util, py_compile, sys
for source, final in zip(sys.argv[1::2], sys.argv[2::2]):
    py_compile.compile(source, cfile=importlib.util.cache_from_source(source), dfile=final, doraise=True)
"""


def held_farm(content: Content, store: Path, python: Path) -> tuple[Path, int | None]:
    """Return the folder of a farm as `farm_of`, which nobody removes before this process becomes the command.

    Returns:
        The folder, and the descriptor of `share`.

    Raises:
        Failure: as `farm_of`.
    """
    if not (store / content.key).is_dir():
        refuse_open(store)
        with _making(store):
            make_private(store)
        prune(store)  # before this start shares the folder: who removes has it alone
    lock = share(store)
    try:
        return farm_of(content, store, python), lock
    except BaseException:
        if lock is not None:
            os.close(lock)
        raise


def farm_of(content: Content, store: Path, python: Path) -> Path:
    """Return the folder of a farm, and make it if it is not there. Of several runs that make one at once, one succeeds.

    Args:
        content: what the farm holds.
        store: the folder of the farms, absolute.
        python: the interpreter that will import from it, which compiles its files.

    Raises:
        Failure: others can write to the folder or above it, it cannot be made, or the farm was changed since.
    """
    farm = store / content.key
    refuse_open(farm)
    if not farm.is_dir():
        _make(content, farm, python)
    touch(farm)  # before it is compared: where there are no locks, that alone keeps it
    differences = list(changes(content, farm))
    if differences:
        cause, hint = "it is not what vpatch made of it", f"remove {farm}, and find out who changed it"
        raise Failure(*(Problem("farm changed", f"{farm}/{path}", cause, hint=hint) for path in differences[:5]))
    return farm


def changes(content: Content, farm: Path, *, shared: bool = False) -> Iterator[str]:
    """Yield the paths at which a farm is not as it was made, and those that others may write to.

    Bytecode is not compared: Python writes it, too.

    Args:
        content: what it has to hold.
        farm: its folder, which itself is not looked at.
        shared: whether it may belong to another user.

    Raises:
        Failure: it cannot be read.
    """
    files = content.written
    expected = {*content.links, *files}
    with naming("cannot read", str(farm)):
        for path, entry in entries(str(farm)):
            if entry.is_dir(follow_symlinks=False):
                if _is_open(entry, shared=shared):
                    yield path
                continue
            link = target(entry)
            if path in files:
                own = entry.is_file(follow_symlinks=False) and not _is_open(entry, shared=shared)
                if not own or entry.stat().st_size != len(files[path]) or (farm / path).read_bytes() != files[path]:
                    yield path
            elif not is_bytecode(path) and (path not in expected or link != content.links.get(path, "")):
                yield path
            expected.discard(path)
    yield from (path for path in sorted(expected) if not is_bytecode(path))


def entries(folder: str, below: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield what is in a farm, each with its path; no link is followed."""
    for entry in os.scandir(f"{folder}/{below}"):
        path = f"{below}{entry.name}"
        yield path, entry
        if entry.is_dir(follow_symlinks=False):
            yield from entries(folder, f"{path}/")


def target(entry: os.DirEntry[str]) -> str:
    """Return what an entry links to; "" if it is no link."""
    return os.readlink(entry.path) if entry.is_symlink() else ""  # noqa: PTH115 - of hundreds: a Path takes longer


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone, whatever the umask."""
    _make_folders(folder, 0o700)


def _make_folders(folder: Path, mode: int) -> None:
    for place in reversed((folder, *folder.parents)):
        if not place.exists():
            place.mkdir(mode=mode, exist_ok=True)


def _is_open(entry: os.DirEntry[str], *, shared: bool) -> bool:
    """Whether others may write to a file or folder, or change its mode."""
    of = entry.stat(follow_symlinks=False)
    return bool(of.st_mode & 0o022) or not (shared or of.st_uid in (0, os.geteuid()))


def _make(content: Content, farm: Path, python: Path) -> None:
    store = farm.parent
    with _making(store):
        make_private(store)
        _sweep(store)
        staged = Path(tempfile.mkdtemp(prefix=STAGING, dir=store))
        try:
            fill(content, staged)
            compiled(content, staged, farm, python)
            try:
                staged.rename(farm)
            except OSError:
                if not farm.is_dir():  # else another run made it meanwhile
                    raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def _making(store: Path) -> AbstractContextManager[None]:
    return naming("cannot make the farm", str(store), "name a folder that can be written to with --cache")


def fill(content: Content, farm: Path, without: str = "") -> None:
    """Write a farm's files and links into a folder, its receipt first; `without` one of them."""
    written = content.written
    own = sorted(written, key=lambda path: path.startswith("vllm/"))
    for path in (*own, *content.links):
        if path == without:
            continue
        place = farm / path
        if not place.parent.is_dir():
            _make_folders(place.parent, 0o755)
        if path in written:
            write_new(place, written[path])
        else:
            place.symlink_to(content.links[path])
    # Else Python makes them when it imports, in a umask that may let others write.
    for folder in content.packages:
        _make_folders(farm / folder / BYTECODE, 0o755)


def write_new(file: Path, data: bytes) -> None:
    """Write a file that does not exist yet, closed to others' writes whatever the umask. No link is followed.

    Raises:
        OSError: it exists, or cannot be written.
    """
    made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(made, "wb") as opened:
        opened.write(data)


def compiled(content: Content, staged: Path, farm: Path, python: Path) -> None:
    """Compile the files in a folder, as those of the farm that it is going to be.

    Raises:
        Failure: the interpreter cannot.
    """
    sources = [path for path in content.written if path.endswith(".py")]
    names = [str(folder / path) for path in sources for folder in (staged, farm)]
    # Isolated: else a file of the current folder could take the place of a module that it imports.
    command = [str(python), "-I", "-B", "-c", _COMPILE, *names]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        line = (ran.stderr.strip() or f"exit status {ran.returncode}").splitlines()[-1]
        raise Failure(Problem("cannot compile", str(python), line))


def _sweep(store: Path) -> None:
    """Remove what killed runs have left."""
    for left in store.glob(f"{STAGING}*"):
        with suppress(FileNotFoundError):  # another run has finished with it meanwhile
            if left.lstat().st_mtime < time.time() - LEFT_OVER_S:
                shutil.rmtree(left, ignore_errors=True)


def refuse_open(folder: Path) -> None:
    """Refuse a folder that another user can write to or replace.

    Raises:
        Failure: another user can.
    """
    with naming("cannot read", str(folder)):
        there = next(place for place in (folder, *folder.parents) if place.exists())
        for place in (there.resolve(), *there.resolve().parents):
            of = place.stat()
            if of.st_uid not in (0, os.geteuid()):
                raise _open(place, f"it belongs to user {of.st_uid}")
            # Below a sticky folder, as /tmp is, nobody can replace what is another's.
            shared = stat.S_IMODE(of.st_mode) & 0o022
            if shared and not (of.st_mode & stat.S_ISVTX and place != folder.resolve()):
                raise _open(place, f"others may write to it (mode {stat.S_IMODE(of.st_mode):o})")


def _open(place: Path, cause: str) -> Failure:
    cause = f"{cause}: who can write there could run code as you"
    return Failure(Problem("not a safe folder for farms", str(place), cause, hint="name another folder with --cache"))

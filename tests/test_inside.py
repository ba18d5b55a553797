"""Files as another process sees them: links that would leave its root, what is no file of code, rights, and time."""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from vpatch.processes import Process, User
from vpatch.processes.inside import ProcessFiles, answered

from tests.needs import root_only
from tests.tiers import deep
from tests.tree.conftest import NOBODY


def seen(one: Process, ask: Callable[[ProcessFiles], Any], user: int = 0) -> Any:
    return answered(one, User(user, user, ()), ask, patience=20)


@contextmanager
def rooted(folder: Path | None = None) -> Iterator[Process]:
    """Run a process whose root is a folder, if it is named."""
    ready, end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end[1])
        if folder:
            os.chroot(folder)
        os.write(ready[1], b"x")
        os.read(end[0], 1)
        os._exit(0)
    os.close(ready[1])
    os.close(end[0])
    try:
        assert os.read(ready[0], 1) == b"x"
        yield Process(child, ())
    finally:
        os.close(end[1])
        os.waitpid(child, 0)
        os.close(ready[0])


def drawn(top: Path, seed: int) -> list[str]:
    """Draw folders, files, and links between them that lead anywhere; return paths to try."""
    draw, names = random.Random(seed), ["a", "b", "c", "d"]  # noqa: S311 - no secret
    places = [top]
    for _ in range(24):
        place = draw.choice(places) / draw.choice(names)
        if place.is_symlink() or place.exists():
            continue
        kind = draw.random()
        if kind < 0.4:
            place.mkdir()
            places.append(place)
        elif kind < 0.6:
            place.write_text("x")
        else:
            place.symlink_to(path(draw, names, draw.choice(["", "/", "../", "../../../", f"{top}/"])))
    return [path(draw, names, draw.choice(["/", "/", "/../", f"{top}/"])) for _ in range(60)]


def path(draw: random.Random, names: list[str], start: str) -> str:
    return start + "/".join(draw.choice([*names, "..", ".", ""]) for _ in range(draw.randint(1, 5))) or "."


def identity(look: Callable[[], list[int]]) -> list[int] | int:
    """Return the file that is found, by its device and number; else the number of the error."""
    try:
        return look()
    except OSError as error:
        return error.errno or 0


def system(place: str) -> list[int]:
    of = os.stat(place)  # noqa: PTH116
    return [of.st_dev, of.st_ino]


@root_only
@pytest.mark.parametrize("seed", [0, 1, *(deep(seed) for seed in range(2, 12))])
def test_a_path_leads_where_the_process_itself_would_come(seed: int, tmp_path: Path) -> None:
    """The system does the same for a process whose root is this folder."""
    (tmp_path / "root").mkdir()
    paths = drawn(tmp_path / "root", seed)

    def chrooted(_: ProcessFiles) -> list[Any]:
        os.chroot(tmp_path / "root")
        os.chdir("/")
        return [identity(partial(system, one)) for one in paths]

    def inside(files: ProcessFiles) -> list[Any]:
        return [identity(partial(files.identity, one)) for one in paths]

    with rooted(tmp_path / "root") as one:
        expected, found = seen(one, chrooted), seen(one, inside)

    assert len(found) == len(paths)
    assert found == expected
    assert any(isinstance(one, list) for one in found)


def a_socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(place))


def linked(target: str) -> Callable[[Path], object]:
    return lambda place: place.symlink_to(target)


def a_huge_file(place: Path) -> None:
    place.touch()
    os.truncate(place, 1 << 40)


NO_CODE: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "it is no file of code"),
    "socket": (a_socket, "it is no file of code"),
    "folder": (Path.mkdir, "it is no file of code"),
    "device": (linked("/dev/zero"), "it is no file of code"),
    "terminal": (linked("/dev/tty"), "it is no file of code"),
    "messages of the kernel": (linked("/proc/kmsg"), "it is no file of code"),
    "file of a process": (linked("/proc/self/environ"), "it is no file of code"),
    "setting of the kernel": (linked("/sys/kernel/mm/transparent_hugepage/enabled"), "it is no file of code"),
    "magic link": (linked("/proc/self/fd/0"), ""),  # to a file that is open, and may be one
    "huge": (a_huge_file, "it has 1,099,511,627,776 bytes, more than 16,777,216"),
    "circle": (linked("circle"), "Too many levels of symbolic links"),
    "nothing": (linked("gone"), "No such file or directory"),
}


def test_what_is_no_file_of_code_is_not_opened(tmp_path: Path) -> None:
    for name, (make, _) in NO_CODE.items():
        make(tmp_path / name)

    def read(files: ProcessFiles) -> dict[str, str]:
        found = {}
        for name in NO_CODE:
            try:
                found[name] = f"{len(files.read(tmp_path / name))} bytes"
            except OSError as error:
                found[name] = str(error)
        return found

    with rooted() as one:
        found = seen(one, read)
    for name, (_, says) in NO_CODE.items():
        absent = name.endswith("kernel") and not Path(os.readlink(tmp_path / name)).exists()  # noqa: PTH115
        assert absent or says in found[name], name


@root_only
def test_it_reads_with_the_rights_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o600)
    for folder in (tmp_path, *tmp_path.parents):
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o011)
    with rooted() as one:
        assert seen(one, lambda files: files.read(tmp_path / "secret").decode()) == "x"
        with pytest.raises(PermissionError):
            seen(one, lambda files: files.read(tmp_path / "secret").decode(), user=NOBODY)
        ids = seen(one, lambda _: [*os.getresuid(), *os.getresgid(), *os.getgroups()], user=NOBODY)

    assert ids == [NOBODY] * 6


def test_what_never_answers_is_given_up() -> None:
    """As a file system of a user may."""
    reading, writing = os.pipe()
    with rooted() as one, pytest.raises(TimeoutError, match=r"within 0\.1 seconds"):
        answered(one, User(0, 0, ()), lambda _: os.read(reading, 1), patience=0.1)
    os.close(writing)
    os.close(reading)


def test_a_reader_that_is_ended_is_no_answer() -> None:
    with rooted() as one, pytest.raises(OSError, match="was ended") as raised:
        answered(one, User(0, 0, ()), lambda _: os.kill(os.getpid(), signal.SIGKILL))

    assert raised.value.errno == errno.ECANCELED


def test_an_answer_is_bounded() -> None:
    with rooted() as one, pytest.raises(TimeoutError):
        answered(one, User(0, 0, ()), lambda _: "x" * (1 << 23))

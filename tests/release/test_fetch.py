"""A fetched tree is the wheel's Python files, all checked, and it is there completely or not at all."""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import io
import os
import re
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vpatch.errors import Failure
from vpatch.release import fetch as module
from vpatch.release import ranges
from vpatch.release.fetch import fetch, find_wheel, open_wheel, read_members

if TYPE_CHECKING:
    from tests.release.conftest import Site

NAME = "vllm-1.0-cp38-abi3-manylinux_2_35_x86_64.whl"
DATE = 1777863720  # 2026-05-04 03:02:00 UTC

MakeWheel = Callable[..., bytes]


def files_of(tree: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def wanted_of(wheel: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        names = [name for name in archive.namelist() if not name.endswith(("/", ".so"))]
        return {name: archive.read(name) for name in names}


def refusal(site: Site, tmp_path: Path, wheel: bytes) -> str:
    """Give what `fetch` says of a wheel that it must refuse, and see that it leaves nothing behind."""
    site.publish(NAME, wheel)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(Failure) as caught:
        fetch("1.0", tmp_path / "new" / "tree")
    assert sorted(tmp_path.iterdir()) == before
    return str(caught.value)


def damaged(wheel: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new)
    assert old in wheel
    return wheel.replace(old, new)


@pytest.mark.parametrize("page", ["html", "json"])
def test_puts_the_python_files_and_the_dist_info_into_the_target(site: Site, tmp_path: Path, page: str) -> None:
    site.page = page

    fetched = fetch("1.0", tmp_path / "tree")

    assert files_of(tmp_path / "tree") == wanted_of(site.files[NAME])
    assert (fetched.version, fetched.wheel, fetched.tree) == ("1.0", NAME, tmp_path / "tree")
    assert fetched.files == len(wanted_of(site.files[NAME])) == 7
    assert fetched.wheel_bytes == len(site.files[NAME])
    assert fetched.bytes_read < ranges.TAIL + 2000
    assert len(site.spans()) == 3
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("kind", ["ignored", "416", "501"])
def test_fetches_the_whole_wheel_where_ranges_are_refused(site: Site, tmp_path: Path, kind: str) -> None:
    site.ranges = kind
    calls: list[tuple[int, int]] = []

    fetched = fetch("1.0", tmp_path / "tree", progress=lambda done, total: calls.append((done, total)))

    size = len(site.files[NAME])
    assert files_of(tmp_path / "tree") == wanted_of(site.files[NAME])
    assert (fetched.bytes_read, fetched.wheel_bytes) == (size, size)
    assert calls[-1] == (size, size)


def test_gives_files_the_wheels_dates_and_the_users_modes(site: Site, tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        fetch("1.0", tmp_path / "tree")
    finally:
        os.umask(old)

    core = (tmp_path / "tree/vllm/engine/core.py").stat()
    assert (core.st_mtime, stat.S_IMODE(core.st_mode)) == (DATE, 0o640)
    assert stat.S_IMODE((tmp_path / "tree").stat().st_mode) == 0o750


def test_gives_a_file_with_an_impossible_date_the_first_of_zip() -> None:
    info = zipfile.ZipInfo("vllm/a.py", (2026, 0, 0, 0, 0, 0))

    assert module._seconds(info) == 315532800  # 1980-01-01


@pytest.mark.parametrize("there", [True, False])
def test_takes_an_empty_folder_or_a_new_path(site: Site, tmp_path: Path, there: bool) -> None:  # noqa: FBT001
    target = tmp_path / "a/b/tree"
    if there:
        target.mkdir(parents=True)
        (tmp_path / "link").symlink_to(target)

    fetched = fetch("1.0", tmp_path / "link" if there else target)

    assert fetched.tree == target
    assert (target / "vllm/__init__.py").is_file()


def test_reads_only_the_members_that_are_wanted(site: Site) -> None:
    wheel = find_wheel("1.0")
    with open_wheel(wheel) as file:
        members = list(read_members(file, lambda name: name == "vllm/__init__.py"))

    assert [(one.name, one.data, one.modified) for one in members] == [
        ("vllm/__init__.py", wanted_of(site.files[NAME])["vllm/__init__.py"], DATE)
    ]
    assert len(site.spans()) == 3  # the directory, the file, RECORD


# --- targets that cannot be ------------------------------------------------------------------------------------


def test_refuses_a_target_that_is_taken(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    (tmp_path / "here").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path / "here")

    for target, line in [
        (tmp_path / "full", f"cannot fetch into: {tmp_path}/full: it is not empty"),
        (tmp_path / "full/file", f"cannot write: {tmp_path}/full/file: not a directory"),
        (tmp_path / "full/file/tree", f"cannot write: {tmp_path}/full/file/tree: not a directory"),
        (tmp_path / "loop", f"cannot write: {tmp_path}/loop: too many levels of symbolic links"),
        (Path(), f"cannot fetch into: {tmp_path}/here: it is the current folder"),
    ]:
        with pytest.raises(Failure) as caught:
            fetch("1.0", target)
        assert str(caught.value) == line
    assert site.asked == []


def test_refuses_a_target_that_was_taken_meanwhile(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: int) -> None:
        (tmp_path / "tree/file").mkdir(parents=True, exist_ok=True)

    with pytest.raises(Failure) as caught:
        fetch("1.0", tmp_path / "tree", progress=late)

    assert str(caught.value) == f"cannot write: {tmp_path}/tree: directory not empty"
    assert [path.name for path in tmp_path.iterdir()].count("tree") == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_says_that_a_folder_cannot_be_made(site: Site) -> None:
    with pytest.raises(Failure, match=r"^cannot write: /proc/vpatch/tree: no such file or directory$"):
        fetch("1.0", Path("/proc/vpatch/tree"))


def test_says_that_the_disk_is_full(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.utime
    written = []

    def utime(path: Path, times: tuple[float, float]) -> None:
        written.append(path)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, times)

    monkeypatch.setattr(os, "utime", utime)

    line = refusal(site, tmp_path, site.files[NAME])

    assert re.fullmatch(rf"cannot write: {tmp_path}/new/tree/vllm.*: no space left on device", line)


# --- wheels that are refused -----------------------------------------------------------------------------------


def test_refuses_a_file_that_record_does_not_know(site: Site, tmp_path: Path, make_wheel: MakeWheel) -> None:
    line = refusal(site, tmp_path, make_wheel(record=b"vllm-1.0.dist-info/RECORD,,\n"))

    assert line == "wrong bytes: vllm/__init__.py: RECORD does not list it"


@pytest.mark.parametrize(("old", "new"), [(b"sha256=", b"sha255="), (b",20\n", b",21\n"), (b",20\n", b",  \n")])
def test_refuses_a_file_that_is_not_what_record_says(
    site: Site, tmp_path: Path, make_wheel: MakeWheel, old: bytes, new: bytes
) -> None:
    record = damaged(wanted_of(make_wheel())["vllm-1.0.dist-info/RECORD"], old, new)

    line = refusal(site, tmp_path, make_wheel(record=record))

    assert line == "wrong bytes: vllm/__init__.py: its sha256 or size is not the one in RECORD"


def test_refuses_a_file_with_other_bytes(site: Site, tmp_path: Path, make_wheel: MakeWheel) -> None:
    record = wanted_of(make_wheel())["vllm-1.0.dist-info/RECORD"]

    line = refusal(site, tmp_path, make_wheel({"vllm/engine/core.py": b"evil\n"}, record=record))

    assert line == "wrong bytes: vllm/engine/core.py: its sha256 or size is not the one in RECORD"


def test_refuses_a_damaged_file(site: Site, tmp_path: Path) -> None:
    wheel = bytearray(site.files[NAME])
    at = wheel.index(b"vllm/engine/core.py") + len("vllm/engine/core.py") + 4
    wheel[at] ^= 0xFF

    line = refusal(site, tmp_path, bytes(wheel))

    assert line.startswith("damaged wheel: vllm/engine/core.py: ")


def test_refuses_what_is_no_zip_file(site: Site, tmp_path: Path) -> None:
    line = refusal(site, tmp_path, b"<html>sign in to the network</html>")

    assert line == f"damaged wheel: {site.url}/files/{NAME}: file is not a zip file"


@pytest.mark.parametrize("record", [b"\xff", b'"' + b"x" * 200_000])
def test_refuses_a_record_that_cannot_be_read(site: Site, tmp_path: Path, make_wheel: MakeWheel, record: bytes) -> None:
    line = refusal(site, tmp_path, make_wheel(record=record))

    assert line.startswith("damaged wheel: vllm-1.0.dist-info/RECORD: ")


def test_refuses_a_zip_file_that_is_no_wheel(site: Site, tmp_path: Path, make_wheel: MakeWheel) -> None:
    line = refusal(site, tmp_path, make_wheel({"other.dist-info/RECORD": b""}))

    assert line == f"not a wheel: {site.url}/files/{NAME}: 2 RECORD files in it, not one"


def test_refuses_a_whole_wheel_with_another_hash(site: Site, tmp_path: Path) -> None:
    site.ranges = "ignored"
    wheel = find_wheel("1.0")
    site.files[NAME] = damaged(site.files[NAME], b"vllm/_moe.so", b"vllm/_foe.so")

    with pytest.raises(Failure) as caught, open_wheel(wheel):
        pass

    assert str(caught.value) == f"wrong bytes: {wheel.url}: its sha256 is not the one on the index"


@pytest.mark.parametrize(
    "name",
    ["../evil.py", "/evil.py", "vllm/../../evil.py", "vllm//evil.py", "./evil.py", "vllm\\evil.py", "evil.py\0x.py"],
)
def test_refuses_a_name_that_leads_out_of_the_tree(
    site: Site, tmp_path: Path, make_wheel: MakeWheel, name: str
) -> None:
    stand_in = "E" * (len(name) - 3) + ".py"
    wheel = damaged(make_wheel({stand_in: b"evil\n"}), stand_in.encode(), name.encode())

    line = refusal(site, tmp_path, wheel)

    assert line == f"unsafe name in wheel: {name!r}: it leads out of the tree"


def test_names_every_unsafe_member_at_once(site: Site, tmp_path: Path) -> None:
    body = io.BytesIO(site.files[NAME])
    with zipfile.ZipFile(body, "a") as archive:
        link = zipfile.ZipInfo("vllm/link.py")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("vllm/__init__.py", "evil")

    lines = refusal(site, tmp_path, body.getvalue()).splitlines()

    assert lines == [
        "unsafe file in wheel: vllm/link.py: a link or a special file",
        "unsafe name in wheel: vllm/__init__.py: it is there twice",
    ]


@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        ({"cuts": 99}, "cut off 3 times"),
        ({"cuts": 99, "ranges": "ignored"}, "cut off 3 times"),
        ({"ranges": "elsewhere"}, "another range"),
        ({"login": "me:secret"}, "401 unauthorized"),
        ({"page": "500"}, "500 internal server error"),
        ({"page": "404"}, "no such project"),
        ({"page": "garbage"}, "no such project"),
    ],
)
def test_leaves_nothing_behind_when_the_server_fails(
    site: Site, tmp_path: Path, trouble: dict[str, object], text: str
) -> None:
    for name, value in trouble.items():
        setattr(site, name, value)

    assert text in refusal(site, tmp_path, site.files[NAME])


def test_knows_no_such_release(site: Site, tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"^no such release: vllm 9.9.9: the index has 1.0$"):
        fetch("9.9.9", tmp_path / "tree")


# --- interrupts ------------------------------------------------------------------------------------------------

CHILD = """
import sys, time
from pathlib import Path
from vpatch.release import fetch as module
real, written = module._write, []
def write(path, member):
    real(path, member)
    written.append(path)
    if len(written) == int(sys.argv[2]):
        print("writing", flush=True)
        time.sleep(60)
module._write = write
module.fetch("1.0", Path(sys.argv[1]))
"""


def start(target: Path, stop_after: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(target), str(stop_after)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def interrupt(child: subprocess.Popen[str], number: signal.Signals) -> str:
    child.send_signal(number)
    _, errors = child.communicate(timeout=20)
    assert child.returncode == -number
    return errors


@pytest.mark.parametrize("where", ["writing", "reading"])
def test_an_interrupt_leaves_nothing_behind(site: Site, tmp_path: Path, where: str) -> None:
    before = sorted(tmp_path.iterdir())
    if where == "reading":
        site.stalls = "/files/"
    child = start(tmp_path / "new/tree", 3)
    if where == "reading":
        assert site.stalled.wait(20)
    else:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
    assert len(list((tmp_path / "new").glob(".tree.vpatch-*"))) == 1

    errors = interrupt(child, signal.SIGINT)

    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert sorted(tmp_path.iterdir()) == before


def test_the_next_fetch_removes_what_a_killed_one_left(site: Site, tmp_path: Path) -> None:
    child = start(tmp_path / "tree", 3)
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    interrupt(child, signal.SIGKILL)
    assert not (tmp_path / "tree").exists()
    assert len(list(tmp_path.glob(".tree.vpatch-*"))) == 1
    (tmp_path / ".tree.vpatch-mine").mkdir()

    fetch("1.0", tmp_path / "tree")

    assert files_of(tmp_path / "tree") == wanted_of(site.files[NAME])
    assert [path.name for path in tmp_path.glob(".tree.vpatch-*")] == [".tree.vpatch-mine"]


def test_two_fetches_of_one_target_give_one_result(site: Site, tmp_path: Path) -> None:
    began: list[bool] = []

    def slowly(*_: int) -> None:
        if not began:
            began.append(True)
            fetch("1.0", tmp_path / "tree")  # another one, which finds this one's folder and must leave it alone
            assert len(list(tmp_path.glob(".tree.vpatch-*"))) == 1

    with pytest.raises(Failure, match=r"tree: directory not empty$"):
        fetch("1.0", tmp_path / "tree", progress=slowly)

    assert files_of(tmp_path / "tree") == wanted_of(site.files[NAME])
    assert not list(tmp_path.glob(".*"))


# --- the extra, and the real thing -----------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["requests", "pypi_simple"])
def test_says_that_the_extra_is_not_installed(missing: str) -> None:
    code = f"""
import sys
from vpatch.errors import Failure
sys.modules[{missing!r}] = None
try:
    import vpatch.release.fetch
except Failure as failure:
    print(failure)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    assert done.stdout == f"cannot fetch: {missing}: not installed: pip install 'vpatch[fetch]'\n"


def test_fetches_a_real_release(tmp_path: Path) -> None:
    """The only test here that asks the user's own package index."""
    target = tmp_path / "tree"
    code = f"""
import re, pathlib
from vpatch.release.fetch import fetch
fetched = fetch("0.20.2", pathlib.Path({str(target)!r}))
status = pathlib.Path("/proc/self/status").read_text()  # the peak in getrusage may be the parent's
peak = re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]
print(fetched.version, fetched.files, fetched.bytes_read, fetched.wheel_bytes, peak)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    version, *numbers = done.stdout.split()
    files, bytes_read, wheel_bytes, peak = map(int, numbers)
    assert version == "0.20.2"
    assert bytes_read < 0.05 * wheel_bytes
    assert peak < 100 * 1024  # KiB
    with (target / "vllm-0.20.2.dist-info/RECORD").open(newline="") as record:
        sums = {name: digest for name, digest, _ in csv.reader(record)}
    expected = {name for name in sums if name.endswith(".py") or ".dist-info/" in name}
    found = files_of(target)
    assert files == len(found) > 1500
    assert set(found) == expected
    for name, data in found.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert sums[name] in ("", f"sha256={digest}")

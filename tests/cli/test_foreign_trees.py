"""A tree may hold pipes, devices, endless files and deep documents: no command hangs, takes gigabytes, or breaks."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Program, Ran, Trees
from tests.forks import output
from tests.hybrid import COMPANION, INFO, ONLY, UPSTREAMS
from tests.paths import link
from tests.tiers import WHOLE

KEPT = f"{INFO}/vpatch"
FOLDER, _, MODULE = UPSTREAMS[0].rpartition("/")
TWIN = f"{FOLDER}/__pycache__/{MODULE[:-3]}.cpython-311.pyc"
PLACES = (
    *(UPSTREAMS[0], "vllm/__init__.py", COMPANION, TWIN),
    *(f"{INFO}/{name}" for name in ("RECORD", "METADATA", "direct_url.json")),
    *(f"{KEPT}/{name}" for name in ("provenance.json", "under-way.json", f"originals/{INFO}/RECORD")),
    *(f"{KEPT}/{name}" for name in (f"originals/{UPSTREAMS[0]}", "originals")),
    *(KEPT, str(Path(COMPANION).parent)),
)
COMMANDS = ("status", "diff", "verify", "doctor", "apply", "revert")
MEMORY, SECONDS, PATIENCE = 1 << 30, 20, 120  # of the processor, and on the clock


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 3 << 30)


def holding(*data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(b"".join(data))


def noise(seed: int) -> Callable[[Path], object]:
    drawn = random.Random(seed)  # noqa: S311 - a test draws
    return holding(drawn.randbytes(drawn.randrange(4_000)))


HARMS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "sparse": sparse,
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path),
    "empty": holding(),
    "deep list": holding(b"[" * 100_000),
    "deep object": holding(b'{"schema": 1, "files": ', b'{"a": ' * 50_000, b"1", b"}" * 50_001),
    "field": holding(b'vllm/__init__.py,"', b"a" * 131_073, b'",1\n'),
    "bare field": holding(b"vllm/__init__.py,", b"a" * 131_073, b",1\n"),
    "lines": holding(b"\n" * (1 << 24)),
    "nulls": holding(b"vllm/a\0b.py,sha256=x,1\n" * 3),
    "digits": holding(b'{"schema": ', b"1" * 5_000, b"}"),
    **{f"noise {seed}": noise(seed) for seed in range(4)},
}
HARMS["other types"] = holding(json.dumps({"schema": 1, "files": {UPSTREAMS[0]: {"after": [["x"]]}}}).encode())
"""`tests/test_manifest.py` has every other document that vpatch did not write."""


def bounded() -> None:
    """End this process if it takes too long, and refuse it much more memory than it has."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(PATIENCE)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))


def fine(ran: Ran) -> bool:
    return ran.code in {0, 1} and "Traceback" not in ran.err and len(ran.err) < 60_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, slim: Trees) -> Path:
    """A slim 0.20.2 with one overlay, some metadata, and bytecode of a module that the overlay changes."""
    tree = shutil.copytree(slim("0.20.2"), tmp_path_factory.mktemp("trees") / "site-packages", copy_function=link)
    assert output("apply", tree, *ONLY)[0] == 0
    return tree


@pytest.fixture
def warm(whole: Path, vpatch: Program) -> Path:
    """The tree, once the engine of this process has parsed it."""
    for command in ("status", "verify"):
        assert vpatch(command, whole, *ONLY).code == 0
    return whole


def cases(seed: int, count: int) -> Iterator[tuple[str, str, str]]:
    drawn = random.Random(seed)  # noqa: S311 - a test draws
    every = [(place, harm, command) for place in PLACES for harm in HARMS for command in COMMANDS]
    yield from drawn.sample(every, count)


def hurt(tree: Path, to: Path, place: str, harm: str) -> Path:
    shutil.copytree(tree, to, copy_function=link, symlinks=True)
    path = to / place
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    HARMS[harm](path)
    return to


def wrong(tree: Path, folder: Path, chosen: Iterator[tuple[str, str, str]]) -> list[tuple[str, str, str, int, str]]:
    found = []
    for number, (place, harm, command) in enumerate(chosen):
        harmed = hurt(tree, folder / str(number), place, harm)
        ran = Ran(*output(command, harmed, *ONLY, first=bounded))
        if not fine(ran):
            found.append((place, harm, command, ran.code, ran.err[-300:]))
        shutil.rmtree(harmed)
    return found


FIRST = [
    (UPSTREAMS[0], "pipe", "status"),
    (COMPANION, "sparse", "diff"),
    (TWIN, "pipe", "apply"),
    (f"{KEPT}/originals", "pipe", "status"),
    (str(Path(COMPANION).parent), "pipe", "revert"),
    (f"{INFO}/RECORD", "device", "verify"),
    (f"{INFO}/RECORD", "bare field", "verify"),
    (f"{INFO}/direct_url.json", "deep object", "doctor"),
    (f"{KEPT}/provenance.json", "deep list", "doctor"),
    (f"{KEPT}/provenance.json", "other types", "status"),
    (f"{KEPT}/under-way.json", "sparse", "revert"),
]
"""Cases that hung, took gigabytes or ended in a traceback."""


@pytest.mark.deep
def test_no_command_hangs_or_breaks_on_a_file_of_others(warm: Path, tmp_path: Path) -> None:
    assert wrong(warm, tmp_path, iter(FIRST)) == []


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(8))
def test_no_command_hangs_or_breaks_on_drawn_files(warm: Path, tmp_path: Path, seed: int) -> None:
    assert wrong(warm, tmp_path, cases(seed, 500 if WHOLE else 25)) == []

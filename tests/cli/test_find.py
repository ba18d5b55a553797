"""`vpatch find`: what it prints, its exit code, and what it makes of logs that are large, binary or empty."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Process, Program, Ran, Trees
from tests.forks import ended, start
from tests.hybrid import HYBRID
from tests.known.cases import HYBRID as REFUSED
from tests.known.cases import LOCKED
from tests.terminals import written
from tests.tiers import deep

WORKSPACE = "turboquant-workspace"
ANSWER = {"overlay", "part", "state", "kind", "if", "beside", "lacks", "known", "seen", "do", "link"}
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
SIZES = "mtp-capture-sizes"
NOTHING = "Nothing is known of this. `vpatch list` has all overlays, `vpatch doctor` looks at your vLLM.\n"


def opened() -> None:
    """Open a standard input for the program, since a test's process has none."""
    sys.stdin = os.fdopen(0, closefd=False)


def used() -> float:
    """Return the seconds of processor time that ended children took."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


@pytest.fixture
def piped(tmp_path: Path) -> Callable[..., Ran]:
    """Run the program with a file as its standard input."""

    def run(data: bytes | Path, *arguments: str | Path) -> Ran:
        source = data if isinstance(data, Path) else tmp_path / "in"
        if isinstance(data, bytes):
            source.write_bytes(data)
        with source.open("rb") as given, (tmp_path / "o").open("w+b") as out, (tmp_path / "e").open("w+b") as err:
            code = ended(start("find", *arguments, streams=(given.fileno(), out.fileno(), err.fileno()), first=opened))
        return Ran(code, (tmp_path / "o").read_text(), (tmp_path / "e").read_text())

    return run


def test_state_and_command(vpatch: Program, slim: Trees) -> None:
    tree = slim("0.20.2")
    ran = vpatch("find", "--tree", tree, REFUSED)
    seen = vpatch("find", "--tree", tree, REFUSED, "--json").json

    head, *lines = ran.out.splitlines()
    assert (ran.code, head) == (0, f"  {HYBRID}  pending")
    assert lines == [f"      known error line: {REFUSED}", f"      `vpatch apply --overlay {HYBRID} {tree}`"]
    assert ran.err.splitlines()[-1] == f"1 overlay known for this. `vpatch show {HYBRID} {tree}` explains it."
    assert (seen["command"], seen["vllm"], [one["id"] for one in seen["overlays"]]) == ("find", "0.20.2", [HYBRID])
    (answer,) = seen["matches"]
    assert set(answer) == ANSWER
    assert (answer["overlay"], answer["state"], answer["kind"], answer["seen"]) == (HYBRID, "pending", "line", REFUSED)


def test_a_symptom_by_a_single_word_is_to_be_read_first(vpatch: Program, slim: Trees) -> None:
    tree = slim("0.20.2")

    assert vpatch("find", "server hangs", tree).out.endswith(f"`vpatch show hybrid-align-progress {tree}`\n")
    several = vpatch("find", "long prompt hangs", tree).out
    assert several.endswith(f"`vpatch apply --overlay hybrid-align-progress {tree}`\n")


def test_a_vllm_that_has_nothing_of_it(vpatch: Program, slim: Trees) -> None:
    ran = vpatch("find", "--tree", slim("0.33.0"), REFUSED)

    assert ran.code == 0
    assert ran.out.startswith(f"  {HYBRID}  merged\n")
    assert ran.out.endswith("this vLLM has nothing of it: the line is of another vLLM, or has another cause\n")


def test_without_a_vllm(process: Process, tmp_path: Path) -> None:
    """Words may stand alone, as a shell splits them; a cause that no overlay mends has advice and a link."""
    ran = process("find", "unspecified", "launch", "failure", env={"PYTHONPATH": "", "VIRTUAL_ENV": str(tmp_path)})
    mends = process("find", LOCKED, env={"PYTHONPATH": "", "VIRTUAL_ENV": str(tmp_path)})

    shown = ["  advice", "      known error line: unspecified launch failure"]
    assert (ran.code, ran.out.splitlines()[:2]) == (0, shown)
    assert "CUDA_LAUNCH_BLOCKING=1" in ran.out
    assert ran.out.splitlines()[-1].strip().startswith("https://")
    assert ran.err.endswith("No overlay is known for this alone: follow the advice.\n")
    assert mends.out.startswith(f"  {WORKSPACE}\n")
    assert mends.out.endswith(f"      `vpatch show {WORKSPACE}`\n")
    assert "note: no vLLM was found here, so no state is shown: name its folder by --tree, to see what" in mends.err


def test_nothing_is_known(vpatch: Program, slim: Trees) -> None:
    for text in ("hello big world", "内存不足", "x", "!?", "x" * 3000, "a/" * 3000):
        ran = vpatch("find", "--tree", slim("0.20.2"), text)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.endswith(NOTHING.replace("doctor`", f"doctor {slim('0.20.2')}`"))


def test_a_line_with_many_causes(vpatch: Program, slim: Trees) -> None:
    """The overlays that this vLLM lacks, each with its condition, then advice, then what it has nothing of."""
    tree = slim("0.20.2")
    ran = vpatch("find", "--tree", tree, ILLEGAL)
    heads = [line.strip() for line in ran.out.splitlines() if line[2] != " "]
    first, advice, last = vpatch("find", "--tree", tree, ILLEGAL, "--json").json["matches"]
    newer = vpatch("find", "--tree", slim("0.33.0"), "torch.AcceleratorError: CUDA error: device-side assert triggered")

    assert heads == [f"{SIZES}  pending", "advice", "hybrid-block-units  not_applicable"]
    assert "      mends this line if: With MTP, a hybrid model (Qwen3.5, Qwen3.6) and PIECEWISE CUDA" in ran.out
    assert ran.err.splitlines()[-1] == (
        "This line has many causes; 1 overlay mends one of them, under the condition shown."
        f" `vpatch show {SIZES} {tree}` explains it."
    )
    assert (first["overlay"], first["kind"], first["if"][:8]) == (SIZES, "possible", "With MTP")
    assert (advice["overlay"], advice["if"], last["overlay"]) == (None, None, "hybrid-block-units")
    assert newer.out.startswith("  advice\n")
    assert newer.err.endswith("Your vLLM lacks no overlay that is known for it: follow the advice.\n")


def test_a_pull_request_or_the_id_of_an_overlay(vpatch: Program, slim: Trees) -> None:
    tree = slim("0.20.2")
    number = vpatch("find", "--tree", tree, "#39931")
    has = vpatch("find", "--tree", slim("0.33.0"), "https://github.com/vllm-project/vllm/pull/39931")
    other = vpatch("find", "--tree", tree, "99999")

    assert number.out.startswith(f"  {HYBRID}  pending\n      mentions: vllm-project/vllm#39931\n      what it mends: ")
    assert number.out.endswith(f"      `vpatch apply --overlay {HYBRID} {tree}`\n")
    assert number.err.splitlines()[-1] == f"1 overlay mentions this. `vpatch show {HYBRID} {tree}` explains it."
    assert has.out.endswith("      this vLLM has the change\n")
    assert (other.code, other.out) == (1, "")
    assert other.err.splitlines()[-1].startswith("No overlay mentions vllm-project/vllm#99999. `vpatch list` ")
    assert "This is an overlay. `vpatch show" in vpatch("find", "--tree", tree, HYBRID).err


def test_a_tree_behind_the_text(vpatch: Program, slim: Trees, tmp_path: Path) -> None:
    """A folder with a vLLM is the tree; any other path is text; neither in silence."""
    tree = slim("0.20.2")
    taken = vpatch("find", REFUSED, tree)
    empty = vpatch("find", REFUSED, tmp_path)
    missing = vpatch("find", "hello", "big", tmp_path / "no")
    alone = vpatch("find", tmp_path)
    named = vpatch("find", "--tree", tree, "hello", tree)

    assert taken.out.startswith(f"  {HYBRID}  pending\n")
    assert f"note: {tree} is taken as TREE, not as text\n" in taken.err
    assert f"vLLM 0.20.2 in {tree.resolve()}\n" in taken.err
    assert f"note: {tmp_path} is taken as text, for in this folder is no vLLM: " in empty.err
    assert empty.out.startswith(f"  {HYBRID}")
    assert (missing.code, missing.out) == (1, "")
    assert f"note: {tmp_path / 'no'} is taken as text: it is no folder; --tree names a vLLM\n" in missing.err
    long = vpatch("find", "hello", "x" * 3000)
    assert "taken as" not in alone.err + named.err + vpatch("find", "see", "https://example.com/x").err + long.err
    assert long.code == 1


def test_usage(vpatch: Program, slim: Trees) -> None:
    assert vpatch("find", "x", "--tree", slim("0.20.2"), "--python", "python3").code == 2
    assert vpatch("find", "x", "--tree", "nowhere-at-all").code == 2
    assert vpatch("find", "").code == vpatch("find", " ", "--tree", slim("0.20.2")).code == 2


@pytest.mark.deep
def test_80_columns(slim: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").symlink_to(slim("0.20.2"))
    monkeypatch.chdir(tmp_path)

    for text in (REFUSED, "answers are garbage", "CUDA out of memory", "39931", ILLEGAL):
        seen = written("find", "--tree", "t", text, env={"COLUMNS": "80", "NO_COLOR": "1"})
        for line in seen.splitlines():
            assert len(line) <= 80 or "https://" in line, line


@pytest.mark.parametrize(
    "data",
    [b"", b" \n\n", b"\0" * 5000, b"a/" * 50_000, deep(b"is not supported for " * 5000), b"\xff\xfe\x1b[3" * 9000],
)
def test_input_that_says_nothing(piped: Callable[..., Ran], data: bytes) -> None:
    begun = used()
    ran = piped(data, "-")

    assert (ran.code, ran.out, len(ran.err.splitlines())) == (1, "", 1)
    assert used() - begun < 5  # a slow machine, but no pattern that goes back over all of it


def test_a_log_of_two_servers_in_color(piped: Callable[..., Ran]) -> None:
    lines = [
        f"\x1b[0;36m(Worker pid=1)\x1b[0;0m ERROR {LOCKED}",
        "INFO 09-12 14:02:11 [loggers.py:1] Engine 000: Unknown recipe",
        f"server-b | ERROR [core.py:9] {REFUSED}",
    ]
    ran = piped(("\n".join([*lines, "INFO 09-12 fine " * 10]) + "\n").encode() * 3000, "-")

    assert ran.code == 0
    assert [line.strip() for line in ran.out.splitlines() if line[2] != " "] == [WORKSPACE, HYBRID]


def test_a_file_is_a_log(vpatch: Program, slim: Trees, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"INFO fine\n{LOCKED}\nfine\n{REFUSED}\n")
    ran = vpatch("find", log, slim("0.20.2"))

    assert [line.split()[0] for line in ran.out.splitlines() if line[2] != " "] == [WORKSPACE, HYBRID]
    assert f"note: {log} is a file, so that its lines are searched\n" in ran.err
    assert "2 overlays known for these lines." in ran.err
    assert "They share words" not in ran.err
    log.write_text("INFO fine\nINFO drafts: 0 of 9 accepted\n")
    last = vpatch("find", log).err.splitlines()[-1]
    assert "Wrong answers and hangs leave none: describe what you see, as by `vpatch find answers are garbage`" in last
    assert last.endswith(f" `vpatch doctor --log {log}` lists what its server may need.")


def test_a_tree_behind_the_dash(piped: Callable[..., Ran], slim: Trees) -> None:
    ran = piped(REFUSED.encode(), "-", slim("0.20.2"))

    assert ran.out.startswith(f"  {HYBRID}  pending\n")
    assert "is taken as TREE" in ran.err


@pytest.mark.deep
def test_a_log_of_500_mb_is_read_at_its_end(piped: Callable[..., Ran], tmp_path: Path) -> None:
    """A sparse file, whose end is a real log; the processor's time is measured, since the machine has other work."""
    log = tmp_path / "log"
    with log.open("wb") as out:
        out.truncate(500 << 20)
        out.seek(0, os.SEEK_END)
        for number in range(100_000):
            out.write(b"INFO 09-12 14:02:%d [loggers.py:127] Engine 000: GPU memory usage, unknown requests\n" % number)
        out.write(LOCKED.encode())
    begun = used()
    ran = piped(log, "-")

    assert ran.out.startswith(f"  {WORKSPACE}")
    assert "only the last 16 of 508 MiB were searched" in ran.err
    assert used() - begun < 5  # a slow machine, but no pattern that goes back over all of it

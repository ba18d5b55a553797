"""vpatch finds what refuses a rename or a removal before the first one: nothing is left half patched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from vpatch.errors import Failure

from tests.needs import root_only
from tests.tree.conftest import COMPANION, INFO, Sandbox, flagged, mounted
from tests.tree.steps import Step, at_each_step

MODULE = "vllm/layers/m3.py"
ORIGINAL = f"{INFO}/vpatch/originals/{MODULE}"
IMMUTABLE = "immutable (chattr +i)"


@root_only
@pytest.mark.parametrize(
    ("path", "flag", "says"),
    [
        (MODULE, "i", f"cannot write: {MODULE}: it is {IMMUTABLE}"),
        (MODULE, "a", f"cannot write: {MODULE}: it is append-only (chattr +a)"),
        ("vllm/layers", "a", f"cannot write: {MODULE}: its folder is append-only (chattr +a)"),
        ("vllm/layers", "i", f"cannot write: {MODULE}: its folder is {IMMUTABLE}"),
        (f"{INFO}/RECORD", "i", f"cannot write: {INFO}/RECORD: it is {IMMUTABLE}"),
    ],
)
def test_flags_on_apply(sandbox: Sandbox, path: str, flag: str, says: str) -> None:
    with flagged(sandbox.root / path, flag):
        assert says in map(str, sandbox.refused(sandbox.first).problems)

    assert sandbox.settle(sandbox.first)


@root_only
@pytest.mark.parametrize(
    ("path", "says"),
    [
        (COMPANION, f"cannot remove: {COMPANION}: it is {IMMUTABLE}"),
        (ORIGINAL, f"cannot remove: {ORIGINAL}: it is {IMMUTABLE}"),
        (f"{INFO}/vpatch/originals/vllm", f"cannot remove: {INFO}/vpatch/originals/vllm: it is {IMMUTABLE}"),
        (f"{INFO}/vpatch/provenance.json", f"cannot remove: {INFO}/vpatch/provenance.json: it is {IMMUTABLE}"),
    ],
)
def test_flags_on_revert(sandbox: Sandbox, path: str, says: str) -> None:
    pristine = sandbox.snapshot()
    sandbox.settle(sandbox.first)

    with flagged(sandbox.root / path, "i"):
        assert str(sandbox.refused({})) == says

    sandbox.settle({})
    assert sandbox.snapshot() == pristine


def test_flags_that_the_system_reports(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """For machines without `chattr` and file systems without flags: only the answer is injected."""
    of = (sandbox.root / MODULE).stat().st_ino

    def ioctl(file: int, request: int, argument: bytes) -> bytes:
        assert request == 0x80086601
        if os.fstat(file).st_ino != of:
            raise OSError(25, "Inappropriate ioctl for device")
        return bytes([0x10, *bytes(7)])

    monkeypatch.setattr("vpatch.tree.guard.fcntl.ioctl", ioctl)
    assert f"cannot write: {MODULE}: it is immutable" in str(sandbox.refused(sandbox.first))


def test_a_file_that_something_is_mounted_over(sandbox: Sandbox, tmp_path: Path) -> None:
    """As `docker run -v ./m3.py:/.../m3.py` mounts it: the rename would be refused half way."""
    mine = tmp_path / "m3.py"
    mine.write_bytes(sandbox.modules[MODULE])
    with mounted(mine, sandbox.root / MODULE):
        assert f"cannot write: {MODULE}: it is a mount point" in str(sandbox.refused(sandbox.first))
    assert sandbox.settle(sandbox.first)


@pytest.mark.parametrize("size", ["the same", "another"])
@pytest.mark.parametrize("path", [MODULE, COMPANION, f"{INFO}/RECORD"])
def test_a_file_that_another_program_changes_meanwhile(sandbox: Sandbox, path: str, size: str) -> None:
    """What an editor or an installer wrote is not lost."""
    old = (sandbox.root / path).read_bytes() if path != COMPANION else b""
    new = old[:-1] + b" " if size == "the same" else old + b"# mine\n"
    done: list[str] = []

    def change(step: Step) -> None:
        if step.name == "fsync" and not done:
            done.append(path)
            sandbox.write(path, new)

    says = f"cannot write: {path}: another program changed it while vpatch was at work; run again"
    with at_each_step(change), pytest.raises(Failure, match=says):
        sandbox.settle(sandbox.first)

    assert (sandbox.root / path).read_bytes() == new


def test_a_file_that_another_program_removes_meanwhile(sandbox: Sandbox) -> None:
    def remove(step: Step) -> None:
        (sandbox.root / MODULE).unlink(missing_ok=True) if step.name == "fsync" else None

    with at_each_step(remove), pytest.raises(Failure, match=f"cannot write: {MODULE}: no such file"):
        sandbox.settle(sandbox.first)
    assert not (sandbox.root / MODULE).exists()

"""A replaced file keeps its access: access control lists and extended attributes."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.needs import root_only
from tests.tree.conftest import COMPANION, INFO, MODULE, RECORD, Sandbox, another_user, give_away

ORIGINAL = f"{INFO}/vpatch/originals/{MODULE}"
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
_NO_ID = 0xFFFFFFFF


def acl(group: int, mask: int, user: int = 4, of: int = 4321) -> bytes:
    """Return an access control list as the kernel takes it: the owner's rw-, and those of a user and of the group."""
    entries = ((1, 6, _NO_ID), (2, user, of), (4, group, _NO_ID), (16, mask, _NO_ID), (32, 0, _NO_ID))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


def set_attribute(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        pytest.skip(f"the file system of {path} has no {name}")


def test_lists_and_attributes_stay(sandbox: Sandbox) -> None:
    """The list denies the owning group what the mode, which shows the list's mask, would grant."""
    set_attribute(sandbox.root / MODULE, ACCESS, acl(group=0, mask=6))
    set_attribute(sandbox.root / MODULE, "user.checked", b"by somebody")
    before = attributes(sandbox.root / MODULE), (sandbox.root / MODULE).stat().st_mode
    assert before[1] & 0o777 == 0o660

    for desired in (sandbox.first, sandbox.second, {}):
        sandbox.settle(desired)
        assert (attributes(sandbox.root / MODULE), (sandbox.root / MODULE).stat().st_mode) == before


def test_an_original_is_as_private_as_its_module(sandbox: Sandbox) -> None:
    (sandbox.root / MODULE).chmod(0o600)
    set_attribute(sandbox.root / "vllm/engine/m1.py", ACCESS, acl(group=0, mask=4))

    sandbox.settle(sandbox.first)

    assert (sandbox.root / ORIGINAL).stat().st_mode & 0o777 == 0o600
    assert attributes(sandbox.root / ORIGINAL.replace("m0", "m1")) == {ACCESS: acl(group=0, mask=4)}
    (sandbox.root / MODULE).unlink()
    sandbox.settle({})
    assert (sandbox.root / MODULE).stat().st_mode & 0o777 == 0o600


def test_what_a_folder_hands_down_does_not_widen_access(sandbox: Sandbox) -> None:
    """New files and folders inherit a folder's default list; the replaced ones had none."""
    for folder in ("vllm/engine", "vllm", INFO):
        set_attribute(sandbox.root / folder, DEFAULT, acl(group=6, mask=6, user=6))

    sandbox.settle(sandbox.first)

    new = (MODULE, "vllm/_vpatch", COMPANION, f"{INFO}/vpatch/provenance.json", ORIGINAL, RECORD)
    assert {path: attributes(sandbox.root / path).get(ACCESS) for path in new} == dict.fromkeys(new)


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [(ACCESS, acl(group=0, mask=6), "access control list"), ("user.checked", b"1", "extended attribute")],
    ids=["list", "attribute"],
)
def test_what_cannot_be_kept_is_refused(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, name: str, value: bytes, what: str
) -> None:
    set_attribute(sandbox.root / MODULE, name, value)
    real: Callable[..., None] = os.setxattr

    def setxattr(path: Any, refused: str, value: bytes, **options: Any) -> None:
        if refused == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, refused, value, **options)

    monkeypatch.setattr(os, "setxattr", setxattr)

    says = f"cannot write: {MODULE}: its {what} {name} cannot be kept: no space left on device"
    assert says in str(sandbox.refused(sandbox.first))


def test_an_attribute_that_grants_nothing_is_left_behind(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the system may set those; one that describes the old bytes would be wrong for the new ones."""
    names = ("security.other", "security.ima", "trusted.overlay.origin")
    set_by_us: list[str] = []
    monkeypatch.setattr(os, "listxattr", lambda path: list(names))
    monkeypatch.setattr(os, "getxattr", lambda path, name: str(path).encode())

    def setxattr(path: Any, name: str, value: bytes, **options: Any) -> None:
        set_by_us.append(name)
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "setxattr", setxattr)
    sandbox.settle(sandbox.first)

    assert set(set_by_us) == {"security.other"}


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EIO])
def test_a_file_system_without_attributes(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def listxattr(path: Any) -> list[str]:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "listxattr", listxattr)
    if code == errno.ENOTSUP:
        sandbox.settle(sandbox.first)
        assert sandbox.settled(sandbox.first)
    else:
        assert "input/output error" in str(sandbox.refused(sandbox.first))


@root_only
def test_files_of_another_owner(sandbox: Sandbox) -> None:
    give_away(sandbox.root)
    os.chown(sandbox.root / MODULE, 0, 0)

    with another_user():
        assert f"cannot write: {MODULE}: its owner or mode cannot be kept" in str(sandbox.refused(sandbox.first))

"""Access to a file: its owner, its mode, its access control list and other extended attributes."""

from __future__ import annotations

import os
from contextlib import suppress
from errno import ENODATA, ENOTSUP
from stat import S_IMODE

_LISTS = ("system.", "security.selinux", "security.SMACK64")
"""Attributes that grant or deny access: access control lists, and labels of security modules."""
_KEPT = (*_LISTS, "user.")
# These describe the bytes, which change, or how a file system stores them. The kernel renews the first two, and drops
# capabilities when a file is written.
_OF_THE_BYTES = ("security.ima", "security.evm", "security.capability", "trusted.overlay.", "user.overlay.")


def keep(new: int, model: int, *, same: bool) -> None:
    """Make an open file or folder accessible exactly as another one is.

    So far, only its owner may read `new`; it may have inherited an access control list. If it will replace `model`
    (`same`), its other extended attributes are copied, too.

    Raises:
        OSError: the owner, the mode, a list or a user's attribute cannot be kept. Other attributes grant no access:
            they are copied as far as the system permits.
    """
    old, now = os.fstat(model), os.fstat(new)
    try:
        if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
            os.fchown(new, old.st_uid, old.st_gid)
        # Lists first: the mode alone, without the list that limits it, would let the whole group in for a moment.
        refused = _copy(new, _attributes(model), same=same)
        os.fchmod(new, S_IMODE(old.st_mode))
    except PermissionError as error:
        raise PermissionError(error.errno, f"its owner or mode cannot be kept: {error.strerror}") from error
    # Some file systems show a mode as a list: then setting the mode has set the list, too.
    for name, (value, refusal) in refused.items():
        if _value(new, name) != value:
            what = "access control list" if name.startswith("system.") else "extended attribute"
            raise OSError(refusal.errno, f"its {what} {name} cannot be kept: {refusal.strerror}") from refusal


def _copy(new: int, wanted: dict[str, bytes], *, same: bool) -> dict[str, tuple[bytes | None, OSError]]:
    """Copy extended attributes; return those that matter and that the system refused, with what they should be."""
    chosen = {name: value for name, value in wanted.items() if same or name.startswith("system.posix_acl")}
    refused: dict[str, tuple[bytes | None, OSError]] = {}
    for name in dict.fromkeys((*chosen, *_attributes(new))):
        value = chosen.get(name)
        inherited = value is None and name.startswith("system.posix_acl")
        if name.startswith(_OF_THE_BYTES) or _value(new, name) == value or (value is None and not inherited):
            continue
        try:
            if value is None:
                os.removexattr(new, name)
            else:
                os.setxattr(new, name, value)
        except OSError as error:
            if name.startswith(_KEPT):
                refused[name] = (value, error)
    return refused


def _attributes(file: int) -> dict[str, bytes]:
    try:
        names = os.listxattr(file)
    except OSError as error:
        if error.errno == ENOTSUP:
            return {}
        raise
    return {name: value for name in names if (value := _value(file, name)) is not None}


def _value(file: int, name: str) -> bytes | None:
    """Return an extended attribute; None if it does not exist or this user may not read it."""
    with suppress(PermissionError):
        try:
            return os.getxattr(file, name)
        except OSError as error:
            if error.errno not in (ENODATA, ENOTSUP):
                raise
    return None

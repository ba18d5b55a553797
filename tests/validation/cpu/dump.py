"""Config objects as plain values, so that those of two processes can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import FunctionType
from typing import Any

RANDOM = {"instance_id"}  # random in each process


def plain(value: Any) -> Any:
    """Convert a value to JSON types, with the type of every object and every member except `RANDOM`.

    Raises:
        TypeError: the members of an object in it cannot be listed.
    """
    match value:
        case Enum():  # before str and int, from which many of vLLM's enums inherit, too
            return f"{type(value).__name__}.{value.name}"
        case None | bool() | int() | float() | str():
            return value
        case Path():
            return str(value)
        case type() | FunctionType():
            return f"{value.__module__}.{value.__qualname__}"
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case set() | frozenset():
            return sorted((plain(item) for item in value), key=repr)
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if name in ("torch.dtype", "torch.device"):
        return str(value)
    if is_dataclass(value):
        members = {field.name: getattr(value, field.name) for field in fields(value)} | vars(value)
    elif hasattr(value, "__dict__"):
        members = vars(value)
    else:
        raise TypeError(f"cannot list the members of {value!r}, a {name}")
    return {"": name} | {key: plain(item) for key, item in members.items() if key not in RANDOM}

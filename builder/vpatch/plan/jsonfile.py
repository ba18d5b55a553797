"""JSON that nobody vouches for: read from a regular file of bounded size, then key by key with a type and a range."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from vpatch.errors import Failure, Problem

T = TypeVar("T")

UNREADABLE = "cannot be read"
CONFIG_BYTES = 16 << 20
"""More than the longest list of quantised modules that is known takes by far."""


def contents(path: Path, most: int) -> bytes:
    """Give a regular file's bytes, `most` of them at most.

    Raises:
        Failure: it is not there, not a regular file, too long, or must not be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would wait for a writer
        with open(descriptor, "rb") as file:  # noqa: PTH123  # it is open already
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise Failure(Problem(UNREADABLE, str(path), "it is not a regular file"))
            data = file.read(most + 1)
    except OSError as error:
        raise Failure(Problem(UNREADABLE, str(path), error.strerror or str(error))) from error
    if len(data) > most:
        raise Failure(Problem(UNREADABLE, str(path), f"it is longer than {most:,} bytes"))
    return data


def parsed(data: bytes, where: str) -> dict[str, Any]:
    """Give the object that JSON text says.

    Raises:
        Failure: it is not JSON, or not an object.
    """
    try:
        found = json.loads(data, parse_constant=_refuse)
    except RecursionError as error:
        raise Failure(Problem(UNREADABLE, where, "its JSON is nested too deeply")) from error
    except ValueError as error:  # not JSON, not UTF-8, a number of thousands of digits
        raise Failure(Problem(UNREADABLE, where, f"it is not JSON: {error}")) from error
    if not isinstance(found, dict):
        raise Failure(Problem(UNREADABLE, where, f"its JSON is {_kind(found)}, not an object"))
    return found


def load(path: Path, most: int = CONFIG_BYTES) -> dict[str, Any]:
    """Give the object that a JSON file says; `Failure` as of `contents` and `parsed`."""
    return parsed(contents(path, most), str(path))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


@dataclass(frozen=True)
class Fields:
    """One JSON object and where it comes from. What is wrong with its values is gathered in `problems`.

    A value of null counts as left out; where it means something else, `nulled` tells.
    """

    data: Mapping[str, Any]
    where: str
    problems: list[Problem] = field(default_factory=list)
    scope: str = ""

    def wrong(self, key: str, cause: str) -> None:
        """Note a problem with a key."""
        self.problems.append(Problem("wrong value", self.where, f"{self.scope}{key} {cause}"))

    def raise_problems(self) -> None:
        """Raise `Failure` with every problem noted so far, each once, if there are any."""
        if self.problems:
            raise Failure(*dict.fromkeys(self.problems))

    def has(self, key: str) -> bool:
        """Tell whether a key is there and not null."""
        return self.data.get(key) is not None

    def nulled(self, key: str) -> bool:
        """Tell whether a key is there and null."""
        return key in self.data and self.data[key] is None

    def first(self, *keys: str) -> str:
        """Give the first of the keys that is there, the first of all if none is."""
        return next((key for key in keys if self.has(key)), keys[0])

    def number(self, *keys: str, default: int | None = None, least: int = 1, most: int = 1 << 24) -> int:
        """Give a whole number under the first of `keys` that is there; noted as missing where there is no default."""
        key = self.first(*keys)
        value = self.data.get(key)
        if value is None:
            if default is None:
                self.problems.append(Problem("missing key", self.where, f"{self.scope}{' or '.join(keys)}"))
            return least if default is None else default
        if type(value) is not int:  # bool is an int
            self.wrong(key, f"is {_kind(value)}, not a whole number" if type(value) is not float else f"is {value}")
        elif not least <= value <= most:
            self.wrong(key, f"is {_short(value)}, not {least:,} to {most:,}")
        else:
            return value
        return least

    def flag(self, key: str, *, default: bool) -> bool:
        """Give true or false."""
        return self._typed(key, bool, default, "true or false")

    def text(self, key: str, default: str = "") -> str:
        """Give a string."""
        return self._typed(key, str, default, "a string")

    def texts(self, key: str) -> tuple[str, ...]:
        """Give a list of strings, empty if left out."""
        found = self._typed(key, list, [], "a list of strings")
        if not all(isinstance(one, str) for one in found):
            self.wrong(key, "is not a list of strings")
            return ()
        return tuple(found)

    def inside(self, key: str) -> Fields:
        """Give an object in this one, an empty one if it is left out."""
        return Fields(self._typed(key, dict, {}, "an object"), self.where, self.problems, f"{self.scope}{key}.")

    def _typed(self, key: str, kind: type[T], default: T, words: str) -> T:
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, kind):
            self.wrong(key, f"is {_kind(value)}, not {words}")
            return default
        return value


def _short(value: int) -> str:
    return str(value) if abs(value) < 10**30 else "a number of more than thirty digits"

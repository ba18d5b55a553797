"""An image as a TOML file says it: `images/*.toml`. Which keys there are is in `definition.schema.json`."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from vpatch.errors import Failure, Problem

FOLDER = "images"


@dataclass(frozen=True)
class Definition:
    """An image to publish.

    `base` has the digest where one is pinned, `overlays` is empty for the default ones.
    """

    name: str
    base: str
    platform: str
    overlays: tuple[str, ...]
    tags: tuple[str, ...]
    architectures: tuple[str, ...]
    tests: frozenset[str]


def read(paths: list[Path]) -> list[Definition]:
    """Read definitions.

    Raises:
        Failure: some cannot be read, or are not as the schema has it; says all that is wrong with all of them.
    """
    found: list[Definition] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            found.append(_read(path))
        except Failure as failure:
            problems += failure.problems
    taken: dict[str, str] = {}
    for one in found:
        for tag in one.tags:
            if taken.setdefault(tag, one.name) != one.name:
                problems.append(Problem("tag taken", one.name, f"{tag} is a tag of {taken[tag]} too"))
    if problems:
        raise Failure(*problems)
    return found


def everything(folder: Path) -> list[Path]:
    """Give the paths of all definitions in `images/`.

    Raises:
        Failure: there are none.
    """
    found = sorted((folder / FOLDER).glob("*.toml"))
    if not found:
        raise Failure(Problem("no image definitions", str(folder / FOLDER), "there is no *.toml in it"))
    return found


def _read(path: Path) -> Definition:
    try:
        said = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise Failure(Problem("cannot read", str(path), (error.strerror or str(error)).lower())) from error
    except ValueError as error:
        raise Failure(Problem("bad image definition", str(path), f"not TOML: {error}")) from error
    schema = json.loads((files("vpatch.image") / "definition.schema.json").read_text("utf-8"))
    errors = sorted(Draft202012Validator(schema).iter_errors(said), key=lambda error: error.json_path)
    if errors:
        raise Failure(*(Problem("bad image definition", str(path), _told(error)) for error in errors))
    return Definition(
        path.stem,
        said["base"] + (f"@{said['digest']}" if "digest" in said else ""),
        said.get("platform", "linux/amd64"),
        tuple(said.get("overlays", ())),
        tuple(said["tags"]),
        tuple(said.get("architectures", ())),
        frozenset(said.get("tests", ("files", "containers"))),
    )


def _told(error: Any) -> str:
    """Say what is wrong with a key; a pattern says nothing to people, the key's description does."""
    where = error.json_path.removeprefix("$").removeprefix(".")
    if error.validator == "pattern":
        forms = {"digest": "sha256: and 64 hexadecimal digits", "architectures": "sm_120, say"}
        form = forms.get(where.partition("[")[0], "registry/repository:tag in full")
        return f"{where}: {error.instance!r} is not {form}"
    return f"{where}: {error.message}" if where else str(error.message)

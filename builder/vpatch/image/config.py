"""An image's configuration and labels, and the JSON documents that describe it.

Anybody can push an image, so each document is validated before anything relies on it; fields that vpatch does not read
may hold anything. The formats are those of the OCI image specification: config.md, manifest.md and annotations.md.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from vpatch.errors import Failure, UnknownName
from vpatch.installation import needing
from vpatch.settings import rfc3339, source_date_epoch

LABEL = "io.vpatch.overlays"  # holds the provenance
STEP = "vpatch build"  # in the history of an image, what made vpatch's layer
OCI = "org.opencontainers.image"  # begins the labels that every registry knows
_OWN = frozenset({LABEL, *(f"{OCI}.{name}" for name in ("base.name", "base.digest", "created"))})

Schema = Mapping[str, Any]
TEXT: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_TEXTS: Schema = {"type": ["array", "null"], "items": TEXT}
_LABELS: Schema = {"type": ["object", "null"], "additionalProperties": TEXT}
_ANY: Schema = {"type": ["object", "null"]}
_SETTINGS = {"Env": _TEXTS, "Labels": _LABELS, "WorkingDir": TEXT_OR_NULL, "User": TEXT_OR_NULL, "Volumes": _ANY}
CONFIG: Schema = {
    "type": "object",
    "properties": {
        "os": TEXT,
        "architecture": TEXT,
        "created": TEXT_OR_NULL,
        "config": {**_ANY, "properties": _SETTINGS},
        "rootfs": {"type": "object", "properties": {"diff_ids": {"type": "array", "items": TEXT}}},
        "history": {"type": ["array", "null"], "items": {"type": "object"}},
    },
}
MANIFEST: Schema = {"type": "object", "properties": {"annotations": _LABELS}}


def object_with(**properties: Schema) -> Schema:
    """Return the schema of an object that has at least these properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


class NoEngineError(Failure):
    """There is no engine, or it does not let the user in."""


class NotHereError(UnknownName):
    """The engine lacks an image; the hint is the question for those that are named like it, "" for none."""


class NoGpusError(Failure):
    """The engine does not give containers the GPUs."""


def extra_required(task: str = "cannot work on images") -> AbstractContextManager[None]:
    """Return `needing` for the extra of images."""
    return needing("image", task)


@dataclass(frozen=True)
class Base:
    """An image to build on."""

    ref: str
    id: str  # digest of its configuration
    config: Mapping[str, Any]  # `architecture`, `os`, `config` (`Env`, `Labels`, ...), `rootfs`, `history`
    digest: str = ""  # of its manifest; empty for an image that was made in the engine and came from no registry

    @property
    def _settings(self) -> Mapping[str, Any]:
        return self.config.get("config") or {}

    @property
    def env(self) -> dict[str, str]:
        """The environment of its containers."""
        return dict(pair.partition("=")[::2] for pair in self._settings.get("Env") or ())

    @property
    def workdir(self) -> str:
        """The folder in which its containers start, empty if unset."""
        return str(self._settings.get("WorkingDir") or "")

    @property
    def user(self) -> str:
        """The user of its containers, by name or number, perhaps with a group; empty if unset, which is root."""
        return str(self._settings.get("User") or "")

    @property
    def command(self) -> tuple[str, ...]:
        """What its containers run: the entry point, then the command."""
        parts = (self._settings.get(name) for name in ("Entrypoint", "Cmd"))
        return tuple(str(word) for part in parts if isinstance(part, list) for word in part)

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        return self._settings.get("Labels") or {}


def build_labels(base: Base, name: str, provenance: str, given: Sequence[str] = ()) -> dict[str, str]:
    """Return the labels of a new image, also its manifest's annotations.

    Where its source is and which revision was built, only the user can tell, or the base.

    Args:
        base: the image that it is built on.
        name: the base's, with its registry.
        provenance: what was done to vLLM.
        given: the user's own labels, each `KEY=VALUE`, as of `check_label`.
    """
    labels = {
        f"{OCI}.base.name": name,
        f"{OCI}.base.digest": base.digest,
        f"{OCI}.created": rfc3339(source_date_epoch()),
        f"{OCI}.version": f"{json.loads(provenance)['vllm']}-vpatch{version('vpatch')}",
        LABEL: provenance,
        **dict(label.split("=", 1) for label in given),
    }
    return {key: value for key, value in labels.items() if value}


def check_label(label: str) -> str:
    """Return what is wrong with a label of the user's, `KEY=VALUE`; "" if nothing is."""
    key, equals, value = label.partition("=")
    if not (equals and value and key and key.isprintable() and " " not in key):
        return f"{label!r} is not KEY=VALUE, such as {OCI}.source=https://example.com/me/repo"
    if key in _OWN:
        return f"vpatch sets {key}, which `vpatch inspect` reads"
    return ""


def extend_config(base: Base, diff_id: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the new image's configuration: the base's with one more layer, one more step of history and `labels`."""
    config = copy.deepcopy(dict(base.config))
    config["config"] = {**(config.get("config") or {}), "Labels": {**base.labels, **labels}}
    config["rootfs"]["diff_ids"].append(diff_id)
    config["created"] = labels[f"{OCI}.created"]
    if config.get("history"):
        step = {"created": config["created"], "created_by": STEP, "comment": f"vpatch {version('vpatch')}"}
        config["history"].append(step)
    return config


def steps_of(config: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """Return what made each layer, from the lowest, as an image's history has it; "" for each if it tells nothing."""
    history = config.get("history")
    made = [step for step in history if not step.get("empty_layer")] if isinstance(history, list) else []
    if len(made) != layers:  # squashed or edited: the steps do not match the layers
        return ("",) * layers
    return tuple(str(step.get("created_by")) for step in made)


def serialize(config: Mapping[str, Any]) -> bytes:
    """Return a configuration's bytes, whose digest is the image's ID."""
    return json.dumps(config, separators=(",", ":"), sort_keys=True).encode()


def digest_of(data: bytes) -> str:
    """Return the digest of `data` in the form that registries use: `sha256:<hex>`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def validate(document: object, schema: Schema, wrong: str) -> None:
    """Check a parsed JSON document; raise a `ValueError` of `wrong` and where, without the value, which may be long."""
    from jsonschema import Draft202012Validator

    error = next(Draft202012Validator(schema).iter_errors(document), None)
    if error is None:
        return
    where = error.json_path.removeprefix("$").removeprefix(".") or "it"
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        raise ValueError(f"{wrong}: {where} has no {missing}")
    kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
    raise ValueError(f"{wrong}: {where} is no {kinds[0]}")

"""JSON that others wrote, and its shapes: an image's configuration and manifest, and vpatch's own provenance.

Anybody can push an image: each document is held to its shape before anything relies on it. What vpatch does not read is
left alone. The configuration and the manifest are those of the OCI image specification, config.md and manifest.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vpatch.errors import Failure, Problem

Schema = Mapping[str, Any]

_TEXT: Schema = {"type": "string"}
_TEXT_OR_NOTHING: Schema = {"type": ["string", "null"]}
_TEXTS: Schema = {"type": ["array", "null"], "items": _TEXT}
_ANY: Schema = {"type": ["object", "null"]}
_LABELS: Schema = {"type": ["object", "null"], "additionalProperties": _TEXT}

CONFIG: Schema = {
    "type": "object",
    "properties": {
        "os": _TEXT,
        "architecture": _TEXT,
        "created": _TEXT_OR_NOTHING,
        "config": {
            "type": ["object", "null"],
            "properties": {"Env": _TEXTS, "Labels": _LABELS, "WorkingDir": _TEXT_OR_NOTHING, "Volumes": _ANY},
        },
        "rootfs": {"type": "object", "properties": {"diff_ids": {"type": "array", "items": _TEXT}}},
        "history": {"type": ["array", "null"], "items": {"type": "object"}},
    },
}
MANIFEST: Schema = {"type": "object", "properties": {"annotations": _LABELS}}
PROVENANCE: Schema = {
    "type": "object",
    "required": ["vpatch", "vllm", "root", "python", "overlays", "files"],
    "properties": {
        "vpatch": _TEXT,
        "vllm": _TEXT,
        "root": _TEXT,
        "python": _TEXT_OR_NOTHING,
        "overlays": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "state", "because"],
                "properties": {"id": _TEXT, "state": _TEXT, "because": _TEXT},
            },
        },
        "files": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["before", "after"],
                "properties": {"before": _TEXT_OR_NOTHING, "after": {"type": "array", "items": _TEXT}},
            },
        },
    },
}


def read_json(text: str | bytes) -> Any:
    """Parse JSON of a registry, an image or a container.

    Raises:
        ValueError: it is no JSON, nests too deeply, or has a lone surrogate, which UTF-8 cannot encode.
    """
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("its JSON nests too deeply") from error
    return found


def hold(found: object, schema: Schema, wrong: str) -> None:
    """Check a parsed JSON document.

    Raises:
        ValueError: it has another shape. The message is `wrong` and where, without what is there, which may be long.
    """
    from jsonschema import Draft202012Validator

    error = next(Draft202012Validator(schema).iter_errors(found), None)
    if error is None:
        return
    where = error.json_path.removeprefix("$").removeprefix(".") or "it"
    if error.validator == "required":
        lacks = next(name for name in error.validator_value if name not in error.instance)
        raise ValueError(f"{wrong}: {where} has no {lacks}")
    kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
    raise ValueError(f"{wrong}: {where} is no {kinds[0]}")


def read_provenance(text: str | bytes, where: str) -> dict[str, Any]:
    """Parse what vpatch said of an image: of its label, or of the file in its dist-info.

    Raises:
        Failure: vpatch did not write it.
    """
    wrong = "not what vpatch writes"
    try:
        said: dict[str, Any] = read_json(text)
        hold(said, PROVENANCE, wrong)
    except ValueError as error:
        cause = str(error) if str(error).startswith(wrong) else f"{wrong}: no JSON"
        raise Failure(Problem("cannot read provenance", where, cause)) from error
    return said

"""A checkpoint's config and its tensors' sizes from the hub, of which only headers are downloaded, to memory.

huggingface_hub knows where the hub is, and the user's token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vpatch.errors import Failure, Problem
from vpatch.plan import tensors, weights
from vpatch.plan.checkpoint import model_of
from vpatch.plan.hub_cache import DEFAULT_REVISION, NAME
from vpatch.plan.jsonfile import CONFIG_BYTES, Fields, parsed
from vpatch.plan.model import Model

FAILED = "cannot download"
FIRST = 128 << 10
"""Bytes of a file that are asked for at first: nearly every header is shorter."""
TIMEOUT = 20.0
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Answer:
    """What the hub answers: so many bytes, how long the whole file is, and the commit that it is of."""

    data: bytes
    size: int | None
    commit: str | None


def fetch(name: str, revision: str | None, weights_gib: float | None) -> Model:
    """Give a model by its name on the hub; `weights_gib` spares looking for its weights' sizes.

    Raises:
        Failure: it is not there or must not be read, the hub cannot be reached, or what comes cannot be used.
    """
    if not NAME.fullmatch(name):
        raise Failure(Problem(FAILED, name[:200], "the hub has names of the form ORGANISATION/NAME only"))
    at = revision or DEFAULT_REVISION
    where = f"config.json of {name} ({at})"
    config = _get(name, at, "config.json", CONFIG_BYTES)
    if config is None:
        raise Failure(Problem(FAILED, f"{name} ({at})", "it has no config.json"))
    at = config.commit or at  # all from one commit, whatever is pushed meanwhile
    modelopt = _json(name, at, "hf_quant_config.json", CONFIG_BYTES)
    model = model_of(parsed(config.data, where), where, name=name, revision=revision, modelopt=modelopt)
    if weights_gib is not None:
        return weights.given(model, weights_gib)
    return _weighed(model, name, at)


def _weighed(model: Model, name: str, at: str) -> Model:
    index = _json(name, at, weights.INDEX, weights.INDEX_BYTES)
    files = ["model.safetensors"] if index is None else weights.shards(Fields(index, f"{weights.INDEX} of {name}"))
    sizes: dict[str, int] = {}
    problems: list[Problem] = []
    for file in files:
        try:
            found = _header(name, at, file)
        except Failure as failure:
            problems += failure.problems
            continue
        if found is None and index is None:
            return model
        if found is None:
            problems.append(Problem(FAILED, f"{file} of {name}", "the index names it, and it is not there"))
        else:
            sizes |= found
    if problems:
        raise Failure(*problems)
    return weights.measured(model, sizes, f"the headers of {len(files)} files on the hub")


def _header(name: str, at: str, file: str) -> Mapping[str, int] | None:
    first = _get(name, at, file, FIRST, part=True)
    if first is None:
        return None
    if first.size is None:
        raise Failure(Problem(FAILED, f"{file} of {name}", "the hub does not say how long it is"))

    def read(start: int, count: int) -> bytes:
        if start + count <= len(first.data):
            return first.data[start : start + count]
        rest = _get(name, at, file, count, start=start, part=True)
        return rest.data if rest else b""

    return tensors.sizes(read, first.size, f"{file} of {name}")


def _json(name: str, at: str, file: str, most: int) -> dict[str, Any] | None:
    found = _get(name, at, file, most)
    return None if found is None else parsed(found.data, f"{file} of {name} ({at})")


def _get(name: str, at: str, file: str, most: int, *, start: int = 0, part: bool = False) -> Answer | None:
    """Give a file, or `most` bytes of it from `start` on if only a `part` is wanted; None if it is not there.

    Raises:
        Failure: the hub cannot be reached, refuses, or sends something else.
    """
    try:
        from huggingface_hub import constants, get_token, hf_hub_url
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # documented
    except ImportError as error:
        raise Failure(Problem(FAILED, name, "it needs huggingface_hub: pip install 'vpatch[plan]'")) from error
    headers = {"User-Agent": "vpatch", "Accept-Encoding": "identity"}
    # Not by `build_hf_headers`: to say who calls, it asks the hub more, and keeps the answer.
    if not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := get_token()):
        headers["Authorization"] = f"Bearer {token}"
    if part:
        headers["Range"] = f"bytes={start}-{start + most - 1}"
    where = f"{file} of {name} ({at})"
    try:
        url = hf_hub_url(name, file, revision=at)
        with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT) as response:
            if response.status_code == 404 and response.headers.get("X-Error-Code") == "EntryNotFound":
                return None
            if response.status_code not in (200, 206):
                raise Failure(Problem(FAILED, where, _refusal(response.status_code, response.headers, at)))
            size = _size(response.status_code, response.headers, start)
            if (start and response.status_code != 206) or size == -1:
                raise Failure(Problem(FAILED, where, "the hub sends another part of it than was asked for"))
            data = bytearray()
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > most:
                    break
            commit = response.headers.get("X-Repo-Commit", "")
    except Failure:
        raise
    except Exception as error:  # whatever its client of the day raises
        raise Failure(Problem(FAILED, where, _cause(error))) from error
    if len(data) > most and not part:
        raise Failure(Problem(FAILED, where, f"it is longer than {most:,} bytes"))
    return Answer(bytes(data[:most]), size, commit if _COMMIT.fullmatch(commit) else None)


def _size(status: int, headers: Mapping[str, str], start: int) -> int | None:
    """Give the length of the whole file, None if it is not said, -1 if it is another part than asked for."""
    if status == 206:
        found = _RANGE.fullmatch(headers.get("Content-Range", ""))
        return int(found[2]) if found and int(found[1]) == start else -1
    length = headers.get("Content-Length", "")
    return int(length) if re.fullmatch(r"\d{1,18}", length) else None


def _refusal(status: int, headers: Mapping[str, str], at: str) -> str:
    code = headers.get("X-Error-Code", "")
    if code == "RevisionNotFound":
        return f"there is no revision {at}"
    if status in (401, 403) or code == "GatedRepo":
        return f"the hub answers {status}: it is gated, private or not there; accept its terms there and set HF_TOKEN"
    return "there is no such model" if status == 404 else f"the hub answers {status}"


def _cause(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{first[:1].lower()}{first[1:]}" or type(error).__name__

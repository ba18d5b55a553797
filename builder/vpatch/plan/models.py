"""Find the model that `--model` names: at a path, in the local Hugging Face cache, on the hub, or among the recorded.

huggingface_hub is an extra, so this module reads the cache itself. For the hub, it takes the address, the token and the
session from it, but not its metadata functions: these send more requests, store files, read an answer of any length,
and do not check which range of which commit came.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from vpatch.errors import Failure, Problem, UnknownName, closest
from vpatch.foreign import read_regular
from vpatch.installation import needing
from vpatch.plan import GIB, Model, checkpoint, weights
from vpatch.plan.checkpoint_files import CONFIG_BYTES, Fields, cache_home, load_json, parse_json, tensor_sizes

FOLDER = Path(__file__).with_name("recorded")
FAILED = "cannot download"
FIRST = 128 << 10  # bytes of a safetensors file in the first request: nearly every header is shorter
TIMEOUT = 20.0
DEFAULT_REVISION = "main"
_NAME = re.compile(r"(?!\.)[\w.-]+/(?!\.)[\w.-]+", re.ASCII)  # of a model on the hub: organization/name
_REVISION = re.compile(r"(?!.*\.\.)(?!/)[\w./-]{1,200}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})")


def load(model: str, revision: str | None = None, *, weights_gib: float | None = None, download: bool = False) -> Model:
    """Return the model at a path, or with a name in the local cache, on the hub (only with `download`), or recorded."""
    path, exists = Path(model), False
    with suppress(OSError, ValueError):  # too long for a path, or in a folder that must not be read
        exists = bool(model) and path.exists()
    if exists:
        if revision:
            raise UnknownName(Problem("no such revision", f"{model} ({revision})", "a model in a folder has none"))
        folder = path if path.is_dir() else path.parent
        # The name is the path for vLLM; its last part becomes the name in a container, so it must not be `..`.
        whole = folder.resolve() if ".." in folder.parts else folder.absolute()
        return checkpoint.read(path, name=str(whole), weights_gib=weights_gib)
    revisions = recorded_revisions(model)
    name = revisions[0].name if revisions else model
    if cached := cached_folder(name, revision):  # the checkpoint itself has more than what is recorded of it
        return replace(checkpoint.read(cached, name=name, weights_gib=weights_gib), revision=revision)
    if download:
        return _download(name, revision, weights_gib)
    if found := next((one for one in revisions if revision in (None, one.revision)), None):
        return _recorded_model(found, weights_gib)
    remedy = "--download reads it from the hub"
    if revisions:
        there = ", ".join(one.revision for one in revisions)
        raise UnknownName(Problem("no such revision", f"{model} ({revision})", f"recorded are {there}", hint=remedy))
    near = closest(model[:200], (one.name for one in recorded()), key=lambda name: name.rpartition("/")[2].casefold())
    cause = "neither a path, nor recorded, nor in the local cache"
    raise UnknownName(Problem("no such model", model[:200], cause, hint=f"{near}; {remedy}"))


@dataclass(frozen=True)
class Recorded:
    """A checkpoint whose config ships with vpatch, with the sources of its numbers, and the size of its weights."""

    name: str
    revision: str
    source: Sequence[str]
    config: Mapping[str, Any]
    weights_gib: float | None = None


@cache
def recorded() -> tuple[Recorded, ...]:
    """Return every recorded checkpoint in order of names; of one name, the default revision first."""
    found = [Recorded(**load_json(path)) for path in FOLDER.glob("*.json")]
    return tuple(sorted(found, key=lambda one: (one.name, one.revision != DEFAULT_REVISION, one.revision)))


def recorded_revisions(name: str) -> tuple[Recorded, ...]:
    """Return the recorded revisions of `ORGANIZATION/NAME` or a unique `NAME`, in any case; the default first."""
    wanted = name.casefold()
    found = [one for one in recorded() if wanted in (one.name.casefold(), one.name.casefold().rpartition("/")[2])]
    return tuple(found) if len({one.name for one in found}) == 1 else ()


def _recorded_model(one: Recorded, weights_gib: float | None) -> Model:
    where = f"the recorded config of {one.name} ({one.revision})"
    model = checkpoint.model_of(one.config, where, name=one.name, revision=one.revision)
    if weights_gib is not None or one.weights_gib is None:
        return model if weights_gib is None else weights.with_total(model, weights_gib)
    source = f"{one.weights_gib} GiB as recorded, split by the shapes in the config"
    return replace(model, weights=weights.scaled(model.weights, model, round(one.weights_gib * GIB), source))


def cached_folder(name: str, revision: str | None) -> Path | None:
    """Return a snapshot's folder in the local cache, by default of `main`; None if it or its config is missing."""
    revision = revision or DEFAULT_REVISION
    if not _NAME.fullmatch(name) or not _REVISION.fullmatch(revision):
        return None
    try:
        folder = cache_home() / f"models--{name.replace('/', '--')}"
        reference = folder / "refs" / revision
        commits = (read_regular(reference, 100).decode().strip() if reference.is_file() else "", revision)
        snapshots = (folder / "snapshots" / commit for commit in commits if _COMMIT.fullmatch(commit))
        return next((one for one in snapshots if (one / "config.json").exists()), None)
    except (OSError, UnicodeDecodeError, RuntimeError):  # not a cache that vpatch can read, or no home folder
        return None


def _download(name: str, revision: str | None, weights_gib: float | None) -> Model:
    """Read a model from the hub, to memory: its configs, and the headers of its weights unless their size is given."""
    if not _NAME.fullmatch(name):
        raise Failure(Problem(FAILED, name[:200], "the hub has names of the form ORGANISATION/NAME only"))
    at = revision or DEFAULT_REVISION
    if (config := _get(name, at, "config.json", CONFIG_BYTES)) is None:
        raise Failure(Problem(FAILED, f"{name} ({at})", "it has no config.json"))
    commit = config.commit or at  # everything else from the same commit, even if a push comes in between
    beside = _get(name, commit, "hf_quant_config.json", CONFIG_BYTES)
    modelopt = parse_json(beside.data, beside.where) if beside else None
    parsed = parse_json(config.data, config.where)
    model = checkpoint.model_of(parsed, config.where, name=name, revision=revision, modelopt=modelopt)
    return _weighed(model, name, commit) if weights_gib is None else weights.with_total(model, weights_gib)


def _weighed(model: Model, name: str, at: str) -> Model:
    if (listed := _get(name, at, weights.INDEX, weights.INDEX_BYTES)) is None:
        single = _tensor_sizes(name, at, "model.safetensors")
        return model if single is None else weights.from_tensors(model, single, "the headers of 1 files on the hub")

    def read(file: str) -> Mapping[str, int]:
        if (sizes := _tensor_sizes(name, at, file)) is None:
            raise Failure(Problem(FAILED, f"{file} of {name}", "the index names it, and it is not there"))
        return sizes

    files = weights.shards(Fields(parse_json(listed.data, listed.where), f"{weights.INDEX} of {name}"))
    return weights.from_tensors(model, weights.gathered(read, files), f"the headers of {len(files)} files on the hub")


def _tensor_sizes(name: str, at: str, file: str) -> Mapping[str, int] | None:
    if (first := _get(name, at, file, FIRST, start=0)) is None:
        return None
    if first.size is None:
        raise Failure(Problem(FAILED, f"{file} of {name}", "the hub does not say how long it is"))

    def read(start: int, count: int) -> bytes:
        if start + count <= len(first.data):
            return first.data[start : start + count]
        rest = _get(name, at, file, count, start=start)
        return rest.data if rest else b""

    return tensor_sizes(read, first.size, f"{file} of {name}")


class _Answer(NamedTuple):
    """What the hub sent, what problems call it, the length of the whole file, and its commit."""

    data: bytes
    where: str
    size: int | None
    commit: str | None


def _get(name: str, at: str, file: str, most: int, start: int | None = None) -> _Answer | None:
    """Download a file of at most `most` bytes, or so many of a longer one from `start` on; None if it is missing."""
    with needing("plan", FAILED):
        from huggingface_hub import constants, get_token, hf_hub_url
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # documented
    headers = {"User-Agent": "vpatch", "Accept-Encoding": "identity"}
    # Not by `build_hf_headers`: for the user agent, it asks the hub more, and keeps the answer.
    if not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := get_token()):
        headers["Authorization"] = f"Bearer {token}"
    if start is not None:
        headers["Range"] = f"bytes={start}-{start + most - 1}"
    where = f"{file} of {name} ({at})"
    data = bytearray()
    try:
        url = hf_hub_url(name, file, revision=at)
        with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT) as response:
            status, answered = response.status_code, response.headers
            if status == 404 and answered.get("X-Error-Code") == "EntryNotFound":
                return None
            size = _checked_size(status, answered, at, start or 0, where)
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > most:
                    break
    except Failure:
        raise
    except Exception as error:  # huggingface_hub's client, and so its exceptions, differ by release
        first = str(error).strip().partition("\n")[0]
        cause = f"{first[:1].lower()}{first[1:]}" or type(error).__name__
        raise Failure(Problem(FAILED, where, cause)) from error
    if len(data) > most and start is None:
        raise Failure(Problem(FAILED, where, f"it is longer than {most:,} bytes"))
    commit = answered.get("X-Repo-Commit", "")
    return _Answer(bytes(data[:most]), where, size, commit if _COMMIT.fullmatch(commit) else None)


def _checked_size(status: int, headers: Mapping[str, str], at: str, start: int, where: str) -> int | None:
    """Return the length of the whole file, None if it is not stated; raise `Failure` for any other answer."""
    code, hint = headers.get("X-Error-Code", ""), ""
    size = re.fullmatch(r"\d{1,18}", headers.get("Content-Length", ""))
    part = _RANGE.fullmatch(headers.get("Content-Range", ""))
    if status == 200 and not start:
        return int(size[0]) if size else None
    if status == 206 and part and int(part[1]) == start:
        return int(part[2])
    if status in (200, 206):
        cause = "the hub sends another part of it than was asked for"
    elif code == "RevisionNotFound":
        cause = f"there is no revision {at}"
    elif status in (401, 403) or code == "GatedRepo":
        cause = f"the hub answers {status}: it is gated, private or not there"
        hint = "accept its terms there and set HF_TOKEN"
    elif status == 404:
        raise UnknownName(Problem(FAILED, where, "there is no such model"))
    else:
        cause = f"the hub answers {status}"
    raise Failure(Problem(FAILED, where, cause, hint=hint))

"""Where a model's config is: a path, a name in the local cache, on the hub if asked, or among what is recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vpatch.errors import Failure, Problem
from vpatch.plan import checkpoint, hub, hub_cache, recorded
from vpatch.plan.model import Model


def load(model: str, revision: str | None = None, *, weights_gib: float | None = None, download: bool = False) -> Model:
    """Give the model that `--model` means.

    That is an existing path, or a name that the local Hugging Face cache has, or, only if `download`, one on the hub,
    or one that is recorded. `revision` chooses among those of a name. `weights_gib` is what its weights take in GiB.

    Raises:
        Failure: there is no such model, or no such revision of it; or its config cannot be used.
    """
    if _exists(model):
        path = Path(model)
        if revision:
            raise Failure(Problem("no such revision", f"{model} ({revision})", "what is in a folder has none"))
        folder = path if path.is_dir() else path.parent
        whole = folder.resolve() if ".." in folder.parts else folder.absolute()  # what is mounted is called by its last
        return checkpoint.read(path, name=str(whole), weights_gib=weights_gib)  # as vLLM is to be told
    revisions = recorded.named(model)
    name = revisions[0].name if revisions else model
    if cached := hub_cache.snapshot(name, revision):  # the checkpoint itself says more than what is recorded of it
        return replace(checkpoint.read(cached, name=name, weights_gib=weights_gib), revision=revision)
    if download:
        return hub.fetch(name, revision, weights_gib)
    if found := next((one for one in revisions if revision in (None, one.revision)), None):
        return recorded.model(found, weights_gib)
    raise Failure(_missing(model, revision, revisions))


def _exists(model: str) -> bool:
    try:
        return bool(model) and Path(model).exists()
    except (OSError, ValueError):  # too long for a path, or in a folder that must not be read
        return False


def _missing(model: str, revision: str | None, revisions: tuple[recorded.Recorded, ...]) -> Problem:
    there = ", ".join(f"{one.name} ({one.revision})" for one in revisions or recorded.models())
    nothing = "nothing is downloaded unless --download is given"
    if revisions:
        return Problem("no such revision", f"{model} ({revision})", f"recorded are {there}; {nothing}")
    what = "it is neither a path, nor recorded, nor in the local cache"
    return Problem("no such model", model[:200], f"{what}; recorded are {there}; {nothing}")

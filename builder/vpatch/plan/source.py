"""Where a model's config is: a path, or a name among what is recorded."""

from __future__ import annotations

from pathlib import Path

from vpatch.errors import Failure, Problem
from vpatch.plan import checkpoint, recorded
from vpatch.plan.model import Model


def load(model: str, revision: str | None = None, *, weights_gib: float | None = None, download: bool = False) -> Model:
    """Give the model that `--model` means: an existing path, a recorded name.

    `weights_gib` is what its weights take in GiB.

    Raises:
        Failure: there is no such model, or no such revision of it; or its config cannot be used.
    """
    if Path(model).exists():
        return checkpoint.read(Path(model), weights_gib=weights_gib)
    revisions = recorded.named(model)
    if found := next((one for one in revisions if revision in (None, one.revision)), None):
        return recorded.model(found, weights_gib)
    there = ", ".join(f"{one.name} ({one.revision})" for one in recorded.models())
    raise Failure(Problem("no such model", model, f"it is neither a path nor recorded; recorded are: {there}"))

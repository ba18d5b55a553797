"""The commands that put a deployment to work: overlays on, image built, vLLM served."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from vpatch.plan.images import image
from vpatch.plan.model import Deployment, Model

Lines = tuple[tuple[str, ...], ...]

HUB = ("huggingface", "/root/.cache/huggingface")
CACHE = ("vllm-cache", "/root/.cache")
"""Volumes and where vLLM's images want them: what was downloaded, and what was compiled."""


@dataclass(frozen=True)
class Command:
    """A command; `lines` are its arguments, those together that stand on one line when it is shown."""

    lines: Lines

    @property
    def arguments(self) -> tuple[str, ...]:
        """What to execute."""
        return tuple(argument for line in self.lines for argument in line)

    def __str__(self) -> str:
        """Give the text to paste into a shell."""
        return " \\\n  ".join(map(shlex.join, self.lines))


def serve(model: Model, deployment: Deployment) -> Command:
    """Give `vllm serve`."""
    wants = deployment.environment
    first, *rest = options(model.name, model, deployment)
    return Command(((*(("env", *wants) if wants else ()), "vllm", "serve", *first), *rest))


def docker(
    model: Model, deployment: Deployment, overlays: Collection[str], *, host: str = "127.0.0.1", port: int = 8000
) -> Command:
    """Give `docker run` of the image that has these overlays, published on a host's address and port."""
    inside, mounted = folder(model)
    mount = (("--mount", _csv("type=bind", f"source={model.name}", f"target={inside}", "readonly")),) if mounted else ()
    return Command(
        (
            ("docker", "run", "--rm"),
            ("--gpus", str(gpus(deployment))),
            ("--ipc=host",),
            ("-e", "HF_TOKEN"),
            *(("-e", variable) for variable in deployment.environment),
            *(("-v", ":".join(volume)) for volume in (CACHE, HUB)),
            *mount,
            ("-p", f"{host}:{port}:8000"),
            (image(deployment, overlays).name,),
            *options(inside, model, deployment),
        )
    )


def apply(overlays: Collection[str]) -> Command | None:
    """Give `vpatch apply` of these overlays to the vLLM that is installed; None if there are none."""
    return Command((("vpatch", "apply"), *_named(overlays))) if overlays else None


def build(deployment: Deployment, overlays: Collection[str]) -> Command | None:
    """Give `vpatch build` of the image that `docker` and `compose` run; None if that is there already."""
    wanted = image(deployment, overlays)
    if not wanted.built:
        return None
    return Command(
        (("vpatch", "build"), ("--base", wanted.base), *_named(wanted.overlays), ("--tag", wanted.name)),
    )


def _named(overlays: Collection[str]) -> Lines:
    return tuple(("--overlay", one) for one in sorted(overlays))


def _csv(*fields: str) -> str:
    """Give fields as docker reads them: quoted if there is a comma in them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()


def gpus(deployment: Deployment) -> int:
    """Give how many GPUs it takes."""
    return deployment.tensor_parallel_size * deployment.pipeline_parallel_size


def folder(model: Model) -> tuple[str, bool]:
    """Give what a model is called inside a container, and whether it is a folder, which is to be mounted there."""
    mounted = model.name.startswith("/")
    return (f"/models/{PurePosixPath(model.name).name}" if mounted else model.name), mounted


def options(name: str, model: Model, deployment: Deployment) -> Lines:
    """Give what follows `vllm serve`: the model by this name, and the options.

    Said are those whose defaults differ by release, GPU or model, and what differs from all defaults.
    """
    said: list[tuple[str, ...]] = [(name,)]
    if model.revision:
        said.append(("--revision", model.revision))
    for option, size in (
        ("--tensor-parallel-size", deployment.tensor_parallel_size),
        ("--pipeline-parallel-size", deployment.pipeline_parallel_size),
    ):
        said += [(option, str(size))] if size > 1 else []
    if deployment.kv_cache_dtype != "auto":
        said.append(("--kv-cache-dtype", deployment.kv_cache_dtype))
    said += [
        ("--max-model-len", "auto" if deployment.longest else str(deployment.max_model_len)),
        ("--max-num-seqs", str(deployment.max_num_seqs)),
        ("--max-num-batched-tokens", str(deployment.max_num_batched_tokens)),
        ("--gpu-memory-utilization", str(deployment.gpu_memory_utilization)),
    ]
    if deployment.kv_cache_memory_bytes is not None:
        said.append(("--kv-cache-memory-bytes", str(deployment.kv_cache_memory_bytes)))
    said.append(("--enable-prefix-caching" if deployment.enable_prefix_caching else "--no-enable-prefix-caching",))
    if tokens := deployment.speculative_tokens:
        said.append(("--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": tokens})))
    said += [("--enforce-eager",)] if deployment.enforce_eager else []
    said += [("--language-model-only",)] if deployment.language_model_only else []
    for argument in deployment.extra:
        if argument.startswith("--"):
            said.append((argument,))
        else:
            said[-1] = (*said[-1], argument)
    return tuple(said)

"""Whether an image's compiled extensions serve the GPUs that it is wanted for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib import import_module
from typing import IO, Any

from vpatch.errors import Problem
from vpatch.image.cuda.arch import parse_gpu
from vpatch.image.extra import importing
from vpatch.image.find import Vllm, listed
from vpatch.image.model import Base, Files


@dataclass(frozen=True)
class Served:
    """What the extensions carry, and what is missing: `problems` is empty where every wanted GPU is served.

    `json` has it under `cuda`, nothing where no GPU is wanted.
    """

    problems: tuple[Problem, ...] = ()
    lines: tuple[str, ...] = ()
    json: Mapping[str, Any] = field(default_factory=dict)


def check(architectures: Sequence[str]) -> None:
    """Look whether these are names of GPU architectures, and what looks for them is installed, before anything is read.

    Raises:
        Failure: one is not.
    """
    for name in architectures:
        parse_gpu(name)
    if architectures:
        with importing():
            import_module("vpatch.image.cuda.check")


def serve(files: Files, vllm: Vllm, base: Base, architectures: Sequence[str]) -> Served:
    """Survey the extensions that RECORD lists, and hold them against the wanted architectures, if there are any.

    Raises:
        Failure: a file of the image cannot be read.
    """
    if not architectures:
        return Served()
    from vpatch.image.cuda.check import as_json, judge, lines, survey, verdicts

    metadata = files.read(f"{vllm.root}/{vllm.dist_info}/METADATA")
    found = survey(_extensions(files, vllm), metadata.decode("utf-8", "replace") if metadata else None, base.env)
    said = [(name, verdicts(found, name)) for name in architectures]
    return Served(
        tuple(problem for name in architectures for problem in judge(found, name)),
        (*lines(found), *(f"{name}: {verdict}" for name, all_of in said for verdict in all_of)),
        {
            "cuda": {
                **as_json(found),
                "required": {
                    name: [{"name": v.name, "says": v.says.value, "because": v.because} for v in all_of]
                    for name, all_of in said
                },
            }
        },
    )


def _extensions(files: Files, vllm: Vllm) -> Iterator[tuple[str, IO[bytes]]]:
    found = listed(files, vllm)
    rows = found.rows if found else ()
    for path in sorted(row.path for row in rows if row.path.startswith("vllm/") and row.path.endswith(".so")):
        file = files.open(f"{vllm.root}/{path}")
        if file is not None:
            with closing(file):
                yield path, file

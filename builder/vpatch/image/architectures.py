"""Whether an image's compiled extensions serve the GPUs that it is wanted for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import IO, Any

from vpatch.errors import Problem
from vpatch.gpu.fatbin import parse_gpu
from vpatch.gpu.fitness import Served, fitness, lacking, survey
from vpatch.image.config import Base, extra_required
from vpatch.image.filesystem import Files, Place, read_record


def check_names(architectures: Sequence[str]) -> None:
    """Check, before anything is read, the names of GPU architectures, and that the ELF reader is installed."""
    for name in architectures:
        parse_gpu(name)
    if architectures:
        with extra_required("cannot look"):
            import elftools.common.exceptions  # noqa: F401


@dataclass(frozen=True)
class Support:
    """Whether an image's extensions serve the wanted architectures."""

    problems: tuple[Problem, ...] = ()
    unserved: tuple[str, ...] = ()  # the architectures that the problems are about
    notes: tuple[str, ...] = ()  # what they need
    details: tuple[str, ...] = ()  # how well each file serves each of them; what is a problem is not repeated
    extra: dict[str, Any] = field(default_factory=dict)  # for the JSON


def check_support(files: Files, vllm: Place, base: Base, architectures: Sequence[str]) -> Support:
    """Survey the extensions that RECORD lists."""
    if not architectures:
        return Support()
    metadata = files.read(f"{vllm.root}/{vllm.dist_info}/METADATA")
    found = survey(_extensions(files, vllm), metadata.decode("utf-8", "replace") if metadata else None, base.env)
    by_name = {name: fitness(found, name) for name in architectures}
    required = {
        name: [{"name": one.name, "says": one.level.value, "because": one.because} for one in of_all]
        for name, of_all in by_name.items()
    }
    served = (f"{name}: {one}" for name, of_all in by_name.items() for one in of_all if one.level is not Served.LACKS)
    *carried, needs = found.lines()
    lacks = {f"sm_{parse_gpu(name)}": lacking(found, name) for name in architectures}
    return Support(
        problems=tuple(problem for why in lacks.values() for problem in why),
        unserved=tuple(name for name, why in lacks.items() if why),
        notes=(needs,),
        details=(*carried, *served),
        extra={"cuda": {**found.as_json(), "required": required}},
    )


def _extensions(files: Files, vllm: Place) -> Iterator[tuple[str, IO[bytes]]]:
    found = read_record(files, vllm)
    rows = found.rows if found else ()
    for path in sorted(row.path for row in rows if row.path.startswith("vllm/") and row.path.endswith(".so")):
        if (file := files.open(f"{vllm.root}/{path}")) is not None:
            with closing(file):
                yield path, file

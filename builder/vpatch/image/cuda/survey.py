"""What CUDA code an image's compiled extensions carry, and what they need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import IO, Any

from packaging.requirements import InvalidRequirement, Requirement

from vpatch.errors import Failure, Problem
from vpatch.image.cuda import fatbin
from vpatch.image.cuda.arch import Image, Kind
from vpatch.image.cuda.drivers import compiling_driver, oldest_driver, release_of


@dataclass(frozen=True)
class Extension:
    """One shared object.

    `binaries` are its fat binaries, usually one for each CUDA source file, `needed` the libraries that it needs;
    `problem` says why it could not be read, and then it has neither.
    """

    name: str
    binaries: tuple[tuple[Image, ...], ...] = ()
    needed: tuple[str, ...] = ()
    problem: Problem | None = None

    @property
    def images(self) -> tuple[Image, ...]:
        """All that the fat binaries hold."""
        return tuple(image for binary in self.binaries for image in binary)

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architectures that it has machine code for, oldest first: `sm_90a`, `sm_120`."""
        return names(image for image in self.images if image.kind is Kind.CUBIN)

    @property
    def ptx(self) -> tuple[str, ...]:
        """The virtual architectures that it has PTX for, oldest first: `compute_80`."""
        return names(image for image in self.images if image.kind is Kind.PTX)


@dataclass(frozen=True)
class Survey:
    """What was found. A version is "" where nothing tells it.

    `cuda` is the CUDA release that the extensions were compiled with ("13.0"; "13" where only the library that they
    need tells), `image_cuda` the one that the image's `CUDA_VERSION` names, `torch` the release that vLLM wants.
    `driver` are the Linux drivers for machine code of that CUDA, `ptx_driver` the driver branches that compile all of
    the PTX, as version specifiers: ">=580.65.06", ">=580".
    """

    extensions: tuple[Extension, ...]
    cuda: str
    image_cuda: str
    torch: str
    driver: str
    ptx_driver: str


def survey(files: Iterable[tuple[str, IO[bytes]]], metadata: str | None, env: Mapping[str, str]) -> Survey:
    """Look at the shared objects of an image: each a name and a file that can seek, used before the next is asked for.

    `metadata` is the METADATA of its vLLM, `env` the environment of its containers. A file that cannot be read is not
    raised but told in its place, `Extension.problem`: only who requires an architecture need mind.
    """
    extensions = tuple(sorted((_look(name, file) for name, file in files), key=lambda one: one.name))
    isas = [image.isa for one in extensions for image in one.images if image.kind is Kind.PTX]
    linked = re.findall(
        r"^libcudart\.so\.(\d{1,3})(?!\d)", "\n".join(lib for one in extensions for lib in one.needed), re.MULTILINE
    )
    cuda = release_of(isas) or max(linked, key=int, default="")
    image_cuda = env.get("CUDA_VERSION", "")
    return Survey(
        extensions,
        cuda,
        image_cuda,
        _torch(metadata or ""),
        oldest_driver(cuda or image_cuda),
        compiling_driver(isas),
    )


def as_json(found: Survey) -> dict[str, Any]:
    """Give it for machines."""
    return {
        "cuda": found.cuda,
        "image_cuda": found.image_cuda,
        "torch": found.torch,
        "driver": found.driver,
        "ptx_driver": found.ptx_driver,
        "extensions": [
            {
                "name": one.name,
                "architectures": list(one.architectures),
                "ptx": list(one.ptx),
                "fat_binaries": len(one.binaries),
                "problem": one.problem and str(one.problem),
            }
            for one in found.extensions
        ],
    }


def lines(found: Survey) -> Iterator[str]:
    """Give it for people, a line for each extension with device code, and one for what they need."""
    for one in found.extensions:
        if one.problem:
            yield f"{one.name}: {one.problem.cause}"
        elif one.images:
            yield f"{one.name}: {', '.join((*one.architectures, *one.ptx))}"
    said = f" (the image says {found.image_cuda})" if found.image_cuda else ""
    more = found.ptx_driver and not found.driver.startswith(found.ptx_driver)
    compiling = f", {found.ptx_driver} where it compiles PTX" if more else ""
    driver = f"{found.driver or 'unknown'}{compiling}"
    yield f"CUDA {found.cuda or 'unknown'}{said}, torch {found.torch or 'unknown'}, driver {driver}"


def names(images: Iterable[Image]) -> tuple[str, ...]:
    """Give the names of their architectures, each once, oldest first."""
    return tuple(map(str, sorted(set(images), key=lambda image: (image.arch, str(image)))))


def _look(name: str, file: IO[bytes]) -> Extension:
    try:
        return Extension(name, *fatbin.read(name, file))
    except Failure as failure:
        return Extension(name, problem=failure.problems[0])


def _torch(metadata: str) -> str:
    """Give the one release of torch that a METADATA file asks for, or the range."""
    for line in HeaderParser().parsestr(metadata).get_all("Requires-Dist", ()):
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            continue
        if wanted.name == "torch" and not wanted.marker:
            return str(wanted.specifier).removeprefix("==")
    return ""

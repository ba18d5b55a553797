"""Find the vLLM that an image's own interpreter would import, from the image's files alone: nothing of it is started.

That the guess is right is proven by the image tests, inside a container.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from vpatch.errors import Failure, Problem
from vpatch.image.model import Base, Entry, Files, Kind
from vpatch.tree.record import Record, parse

_MINORS = range(10, 15)  # those of the Pythons that vLLM's releases name
# Virtual environments and conda, where images by custom have them; others are found by PATH.
_CUSTOMARY = ("opt/venv", "opt/conda", "usr/local", "usr")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOPS = 16


@dataclass(frozen=True)
class Vllm:
    """A vLLM in an image.

    `root` is the folder that holds `vllm/`, relative to the image's root, `dist_info` the name of its `*.dist-info`
    there.
    """

    root: str
    dist_info: str

    @property
    def version(self) -> str:
        """The version, for people only: no decision is taken from it."""
        return self.dist_info.removesuffix(".dist-info").partition("-")[2]

    @property
    def record(self) -> str:
        """RECORD's path, relative to `root`."""
        return f"{self.dist_info}/RECORD"


def find(files: Files, image: Base, python: str | None = None) -> Vllm:
    """Find vLLM.

    Args:
        files: the image's.
        image: what its containers have for an environment, and where they start.
        python: an interpreter, absolute inside the image, whose vLLM is meant.

    Raises:
        Failure: there is none, or more than one.
    """
    name = image.ref
    if python:
        folders = list(_site_folders(files, _prefixes_of(files, _inside(python))))
    else:
        folders = [*_from_variables(image), *_site_folders(files, _prefixes(files, image.env))]
    # The interpreter takes the first, but a second one is a trap for whoever looks into the image.
    found = [folder for folder in dict.fromkeys(folders) if files.kind(f"{folder}/vllm/__init__.py") is not None]
    if not found:
        looked = ", ".join(f"/{folder}" for folder in dict.fromkeys(folders)) or "no site-packages at all"
        raise Failure(Problem("no vllm", name, f"looked in {looked}; name its interpreter with --python"))
    if len(found) > 1 and not python:
        both = " and ".join(f"/{folder}/vllm" for folder in found)
        raise Failure(Problem("more than one vllm", name, f"{both}: name an interpreter in the image with --python"))
    return Vllm(found[0], _dist_info(files, found[0], name))


def listed(files: Files, vllm: Vllm) -> Record | None:
    """Read RECORD; None where there is none.

    Raises:
        Failure: it cannot be read, or is no RECORD.
    """
    path = f"{vllm.root}/{vllm.record}"
    content = files.read(path)
    if content is None:
        return None
    try:
        rows = parse(content)
        for _ in csv.reader(content.decode().splitlines()):  # as the test of the new image will read it
            continue
        return rows
    except (ValueError, csv.Error) as error:
        raise Failure(Problem("cannot read RECORD", f"/{path}", str(error))) from error


def _inside(path: str) -> str:
    return str(PurePosixPath("/", path)).strip("/")


def _path(env: Mapping[str, str]) -> list[str]:
    return [_inside(folder) for folder in env.get("PATH", _DEFAULT_PATH).split(":") if folder.startswith("/")]


def _prefixes(files: Files, env: Mapping[str, str]) -> list[str]:
    """Give the folders that have `bin/` on PATH, and those where interpreters are by custom."""
    on_path = [folder.rpartition("/")[0] for folder in _path(env) if folder.endswith(("/bin", "/sbin"))]
    named = [_inside(env[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name, "").startswith("/")]
    known = dict.fromkeys((*named, *on_path, *_CUSTOMARY))
    return [prefix for prefix in known if prefix and _is_folder(files, prefix)]


def _prefixes_of(files: Files, python: str) -> list[str]:
    """Give the prefixes of one interpreter: where it lies, and where Debian's installs beside `/usr`.

    A virtual environment's is its own alone; any other link leads to the interpreter that it stands for.
    """
    seen = python
    for _ in range(_HOPS):
        prefix = str(PurePosixPath(seen).parent.parent)
        here = files.entry(seen)
        if files.kind(f"{prefix}/pyvenv.cfg") is not None or here is None or here.kind is not Kind.LINK:
            break
        seen = _led(here)
    return ["usr/local", "usr"] if prefix == "usr" else [prefix]


def _led(link: Entry) -> str:
    parts: list[str] = []
    for part in PurePosixPath("/", link.path).parent.joinpath(link.target).parts[1:]:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def _from_variables(image: Base) -> list[str]:
    folders = [*image.env.get("PYTHONPATH", "").split(":"), image.workdir]
    return [_inside(folder) for folder in folders if folder.strip("/")]


def _site_folders(files: Files, prefixes: list[str]) -> Iterator[str]:
    for prefix in prefixes:
        if _is_folder(files, f"{prefix}/lib/python3/dist-packages"):
            yield f"{prefix}/lib/python3/dist-packages"
        for minor in _MINORS:
            library = f"{prefix}/lib/python3.{minor}"
            if _is_folder(files, library):
                yield from (f"{library}/{kind}-packages" for kind in ("site", "dist"))


def _is_folder(files: Files, path: str) -> bool:
    return files.kind(path) is Kind.FOLDER


def _dist_info(files: Files, root: str, name: str) -> str:
    """Give the dist-info's name: by the version in vLLM, since listing a folder of an engine means reading it whole."""
    told = re.search(rb"^__version__ = .*?'([^']+)'", files.read(f"{root}/vllm/_version.py") or b"", re.MULTILINE)
    if told:
        guess = f"vllm-{told[1].decode(errors='replace')}.dist-info"
        if files.kind(f"{root}/{guess}/RECORD") is not None:
            return guess
    infos = [one for one in files.names(root) if re.fullmatch(r"vllm-.+\.dist-info", one)]
    if len(infos) != 1:
        cause = f"{' and '.join(infos)}: remove the wrong one" if infos else "vllm/ has no dist-info beside it"
        raise Failure(Problem("more than one vllm" if infos else "no dist-info", f"{name}: /{root}", cause))
    return infos[0]

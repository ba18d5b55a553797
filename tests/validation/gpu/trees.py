"""The vLLM trees to compare, copied from the installed one: stock, with default overlays, and with tiles as well.

Others are made for the probes that ask for them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.paths import ROOT, link
from tests.validation.gpu.engines import DECODE, FARM, KEYED, PATCHED, STOCK, TILES, WORKSPACE

OPT_IN = {TILES: "turboquant-tiles", DECODE: "turboquant-decode", KEYED: "compile-cache-key"}
"""The overlays that trees have beside the default ones."""
SINGLE = "turboquant-workspace"
VPATCH = (sys.executable, "-m", "vpatch")
_MANIFEST = """
from importlib.util import find_spec
from pathlib import Path
print(Path(find_spec("vllm").origin).parents[1].joinpath("vpatch.json").read_text())
"""


@dataclass(frozen=True)
class Trees:
    """Folders that hold a `vllm` and its dist-info, by the names of `scenarios.TREES`.

    overlays: by tree, the state of each overlay from `vpatch status`; those of a farm, from its own manifest.
    """

    vllm: str
    folders: Mapping[str, Path]
    overlays: Mapping[str, Mapping[str, str]]


def installed() -> Path | None:
    """Return the folder that holds the installed vLLM, without importing it."""
    spec = find_spec("vllm")
    return Path(spec.origin).parents[1] if spec and spec.origin else None


def make(site: Path, where: Path, *, extra: Collection[str] = (), farms: Path | None = None) -> Trees:
    """Make the trees.

    Args:
        site: the folder that holds the installed vLLM.
        where: a folder to make them in; those of an earlier run are replaced.
        extra: those of `engines.EXTRA` that are needed.
        farms: the folder for farms; by default one in `where`.

    Raises:
        RuntimeError: vpatch does not run in this interpreter, or refuses.
    """
    listed = [item["id"] for item in _vpatch("list")["overlays"]]
    wanted: dict[str, list[Sequence[str]]] = {STOCK: [], PATCHED: [()]}
    for tree in (TILES, *(name for name in OPT_IN if name in extra)):
        wanted[tree] = [(), ("--overlay", OPT_IN[tree])]
    if WORKSPACE in extra:
        wanted[WORKSPACE] = [("--overlay", SINGLE)]
    folders = {name: where / name for name in wanted}
    # `status` shows an opt-in overlay only if it is named.
    asked = {tree: [name for name in listed if name not in {*OPT_IN.values()} - {own}] for tree, own in OPT_IN.items()}

    def one(name: str) -> dict[str, str]:
        copy(site, folders[name])
        _vpatch("revert", str(folders[name]))  # the installed vLLM may be patched
        for chosen in wanted[name]:
            _vpatch("apply", str(folders[name]), *chosen)
        options = [word for overlay in asked.get(name, []) for word in ("--overlay", overlay)]
        return {item["id"]: item["state"] for item in _vpatch("status", str(folders[name]), *options)["overlays"]}

    with ThreadPoolExecutor() as pool:
        states = dict(zip(wanted, pool.map(one, wanted), strict=True))
    if FARM in extra:
        # Here rather than with the first probe: what vpatch refuses must not cost time on a GPU.
        folders[FARM] = folders[STOCK]
        states[FARM] = _run(folders[FARM], farms_of(farms or where / "farms"))
    return Trees(version(site), folders, states)


def search_path(tree: Path) -> str:
    """Return a PYTHONPATH that begins with a tree. This project's `tests` precede any other package of that name."""
    return os.pathsep.join((str(tree), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])))


def vpatch_run(cache: Path) -> tuple[str, ...]:
    """Return what precedes a command that runs from a farm in a folder, with the overlays of the tree `tiles`."""
    return (*VPATCH, "run", "--with", OPT_IN[TILES], "--cache", str(cache), "--")


def farms_of(farms: Path, cold: str = "") -> Path:
    """Return the folder for the farm that all processes share; for that of one `cold` probe, a folder of its own."""
    return farms / (re.sub(r"\W+", "_", cold) or "shared")


def copy(site: Path, tree: Path) -> None:
    """Copy vLLM and its dist-info, by hard links if possible: vpatch and Python replace files, not rewrite them."""
    shutil.rmtree(tree, ignore_errors=True)
    for top in (site / "vllm", _info(site)):
        shutil.copytree(top, tree / top.name, symlinks=True, copy_function=link)


def version(site: Path) -> str:
    return Distribution.at(_info(site)).version


def _info(site: Path) -> Path:
    found = sorted(site.glob("vllm-*.dist-info"))
    if len(found) != 1:
        raise RuntimeError(f"{site}: expected one dist-info of vLLM, found {len(found)}")
    return found[0]


def _run(stock: Path, cache: Path) -> dict[str, str]:
    """Make the farm, and return the overlays that it says it has."""
    command = [*vpatch_run(cache), sys.executable, "-P", "-c", _MANIFEST]
    env = os.environ | {"PYTHONPATH": search_path(stock)}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(vpatch_run(cache))}: exit status {ran.returncode}: {ran.stderr.strip()[-2000:]}")
    return dict.fromkeys(json.loads(ran.stdout)["overlays"], "applied")


def _vpatch(command: str, *arguments: str) -> dict[str, Any]:
    ran = subprocess.run([*VPATCH, command, "--json", *arguments], capture_output=True, text=True, check=False)
    # `status` exits 1 if something needs attention, which the reader of the results decides
    if ran.returncode and (command != "status" or not ran.stdout):
        why = (ran.stderr or ran.stdout).strip()[-2000:]
        raise RuntimeError(f"{' '.join((*VPATCH, command, *arguments))}: exit status {ran.returncode}: {why}")
    found: dict[str, Any] = json.loads(ran.stdout)
    return found

"""The vLLM trees to compare, copied from the installed one: stock, with default overlays, and with tiles as well.

Others are made for the probes that ask for them.
"""

from __future__ import annotations

import json
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

from tests.paths import link
from tests.validation.gpu.engines import DECODE, PATCHED, STOCK, TILES, WORKSPACE

OPT_IN = {TILES: "turboquant-tiles", DECODE: "turboquant-decode"}
"""The overlays that trees have beside the default ones."""
SINGLE = "turboquant-workspace"
VPATCH = (sys.executable, "-m", "vpatch")


@dataclass(frozen=True)
class Trees:
    """Folders that hold a `vllm` and its dist-info, by the names of `scenarios.TREES`.

    overlays: by tree, the state of each overlay from `vpatch status`.
    missing: by tree, why it could not be made.
    """

    vllm: str
    folders: Mapping[str, Path]
    overlays: Mapping[str, Mapping[str, str]]
    missing: Mapping[str, str]


def installed() -> Path | None:
    """Return the folder that holds the installed vLLM, without importing it."""
    spec = find_spec("vllm")
    return Path(spec.origin).parents[1] if spec and spec.origin else None


def make(site: Path, where: Path, *, extra: Collection[str] = ()) -> Trees:
    """Make the trees.

    Args:
        site: the folder that holds the installed vLLM.
        where: a folder to make them in; those of an earlier run are replaced.
        extra: those of `engines.EXTRA` that are needed.

    Raises:
        RuntimeError: vpatch does not run in this interpreter, or refuses.
    """
    listed = [item["id"] for item in _vpatch("list")["overlays"]]
    wanted: dict[str, list[Sequence[str]]] = {STOCK: [], PATCHED: [()]}
    missing = {}
    for tree in (TILES, *(name for name in OPT_IN if name in extra)):
        if OPT_IN[tree] in listed:
            wanted[tree] = [(), ("--overlay", OPT_IN[tree])]
        else:
            missing[tree] = f"this vpatch has no overlay {OPT_IN[tree]}"
    if WORKSPACE in extra:
        wanted[WORKSPACE] = [("--overlay", SINGLE)]
    folders = {name: where / name for name in wanted}
    # `status` shows an opt-in overlay only if it is named.
    asked = {tree: [name for name in listed if name not in {*OPT_IN.values()} - {own}] for tree, own in OPT_IN.items()}

    def one(name: str) -> dict[str, str]:
        copy(site, folders[name])
        _vpatch("revert", str(folders[name]))  # the installed vLLM may be patched
        for options in wanted[name]:
            _vpatch("apply", str(folders[name]), *options)
        return _states(folders[name], asked.get(name, []))

    with ThreadPoolExecutor() as pool:
        states = dict(zip(wanted, pool.map(one, wanted), strict=True))
    return Trees(version(site), folders, states, missing)


def copy(site: Path, tree: Path) -> None:
    """Copy vLLM and its dist-info, by hard links if possible: vpatch and Python replace files, not rewrite them."""
    shutil.rmtree(tree, ignore_errors=True)
    for top in (site / "vllm", _info(site)):
        shutil.copytree(top, tree / top.name, symlinks=True, copy_function=link)


def version(site: Path) -> str:
    """Return the release of the vLLM in a folder."""
    return Distribution.at(_info(site)).version


def _info(site: Path) -> Path:
    found = sorted(site.glob("vllm-*.dist-info"))
    if len(found) != 1:
        raise RuntimeError(f"{site}: expected one dist-info of vLLM, found {len(found)}")
    return found[0]


def _states(tree: Path, asked: Sequence[str]) -> dict[str, str]:
    options = [word for name in asked for word in ("--overlay", name)]
    return {item["id"]: item["state"] for item in _vpatch("status", str(tree), *options)["overlays"]}


def _vpatch(command: str, *arguments: str) -> dict[str, Any]:
    ran = subprocess.run([*VPATCH, command, "--json", *arguments], capture_output=True, text=True, check=False)
    # `status` exits 1 if something needs attention, which the reader of the results decides
    if ran.returncode and (command != "status" or not ran.stdout):
        told = (ran.stderr or ran.stdout).strip()[-2000:]
        raise RuntimeError(f"{' '.join((*VPATCH, command, *arguments))}: exit status {ran.returncode}: {told}")
    found: dict[str, Any] = json.loads(ran.stdout)
    return found

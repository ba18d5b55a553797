"""Prove that this process runs a farm's code. vLLM calls `register` in each of its processes, as a general plugin.

This file is copied into each farm, where nothing else of vpatch may be installed: it needs the standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FARM = Path(__file__).parent
MANIFEST = FARM / "vpatch.json"
DIGEST = "VPATCH_RUN"  # the variable that names the digest that a process was started for

_held: int | None = None  # a descriptor: vpatch finds it in /proc/PID/fd, where titles of processes cannot destroy it


def register() -> None:
    """Compare this process with what it was started for, log the result, and hold the receipt until it ends.

    Raises:
        RuntimeError: it runs other code. vLLM then ends the process.
    """
    global _held  # noqa: PLW0603 - vLLM may call it again
    if _held is not None:
        return
    told = json.loads(MANIFEST.read_bytes())
    asked = os.environ.get(DIGEST, "")
    wrong = [*_differences(told)]
    if not told["digest"].startswith(asked):
        wrong.append(f"started for {asked[:12]}, and finds {told['digest'][:12]}")
    if wrong:
        raise RuntimeError(f"vpatch: this process does not run what was asked for: {'; '.join(wrong[:5])}")
    _held = os.open(MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    _tell(told)


def digest() -> str:
    """Return the digest of what this process runs.

    Raises:
        RuntimeError: as `register`.
    """
    register()
    return str(json.loads(MANIFEST.read_bytes())["digest"])


class Proof:
    """A base for vLLM's workers: `--worker-extension-cls vpatch_receipt.Proof`.

    A worker that does not find the farm cannot import it, and does not start.
    """

    def vpatch_digest(self) -> str:
        """Return the digest of what this worker runs, to `LLM.collective_rpc("vpatch_digest")`."""
        return digest()


def _differences(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is not as the manifest says: files of the farm, those of vLLM that they replace, loaded modules."""
    for root, expected in ((FARM, told["files"]), (Path(told["root"]), told["replaced"])):
        for file, known in expected.items():
            try:
                if hashlib.sha256((root / file).read_bytes()).hexdigest() != known:
                    yield f"{root / file} has changed"
            except OSError as error:
                yield f"{root / file}: {error.strerror}"
    for file in ("vllm/__init__.py", *told["files"]):
        name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded and loaded != str(FARM / file):
            yield f"{name} comes from {loaded}"


def _tell(told: Mapping[str, Any]) -> None:
    """Write a line to vLLM's log, and export the digest with vLLM's metrics."""
    from vllm.logger import init_logger

    overlays = ", ".join(told["overlays"]) or "no overlay"
    init_logger("vllm.vpatch").info("vpatch: this process runs %s (digest %s)", overlays, told["digest"][:12])
    try:
        from prometheus_client import Gauge  # type: ignore[import-not-found,unused-ignore]
    except ImportError:  # a vLLM without metrics
        return
    # A gauge, since an Info metric is lost where several API servers share their metrics.
    about = {"digest": told["digest"], "overlays": ",".join(told["overlays"])}
    gauge = Gauge("vpatch_info", "Overlays that this server runs.", [*about], multiprocess_mode="max")
    gauge.labels(**about).set(1)

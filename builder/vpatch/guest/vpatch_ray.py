"""The hook that gives a farm to the workers of a Ray cluster that runs already. Ray calls it in the driver.

This file is copied into each farm, where nothing else of vpatch may be installed: it needs the standard library and
Ray. `vpatch run` sets the variables that it reads.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FARM = Path(__file__).parent
DIGEST = "VPATCH_RUN"
HOOK = "VPATCH_RAY_HOOK"  # the hook that Ray would call without vpatch
UV = "VPATCH_RAY_UV"  # what RAY_ENABLE_UV_RUN_RUNTIME_ENV was without vpatch

_UV_HOOK = "ray._private.runtime_env.uv_runtime_env_hook"
_SETUP, _PASSED = "worker_process_setup_hook", "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"

RuntimeEnv = Mapping[str, Any]
Hook = Callable[[RuntimeEnv | None], RuntimeEnv | None]


def hook(runtime_env: RuntimeEnv | None) -> dict[str, Any]:
    """Return a job's runtime environment in which its workers import from the farm first, and check that they do.

    A job that has a setup function for its workers keeps that one, since Ray takes only one.

    Args:
        runtime_env: the argument of `ray.init`.

    Raises:
        ImportError: the module of the hook that was set before cannot be imported.
        AttributeError: that module has no such hook.
    """
    earlier = _earlier()
    changed = dict((earlier(runtime_env) if earlier else runtime_env) or {})
    variables = dict(changed.get("env_vars") or {})
    # Ray fills in the node's own PYTHONPATH, or nothing: the empty entry is the current folder, behind the farm.
    others = variables.get("PYTHONPATH", "${PYTHONPATH}")
    ours = {"PYTHONPATH": os.pathsep.join((str(FARM), *filter(None, [others]))), DIGEST: os.environ.get(DIGEST, "")}
    if not changed.get(_SETUP) and _PASSED not in variables:
        changed[_SETUP] = f"{__name__}.check"
    return {**changed, "env_vars": {**variables, **ours}}


def check() -> None:
    """Compare a worker with what its driver was started for. Ray calls it in each worker, before the first task.

    Where the farm is missing, Ray cannot import it, and ends the worker, too.

    Raises:
        RuntimeError: the worker would import another vLLM. Ray then ends it.
    """
    found = find_spec("vllm")
    origin, expected = found and found.origin, str(FARM / "vllm/__init__.py")
    if origin != expected:
        raise RuntimeError(f"vpatch: this worker imports {origin}, not {expected}")
    told = json.loads((FARM / "vpatch.json").read_bytes())
    for problem in importlib.import_module("vpatch_receipt").foreign(told):
        raise RuntimeError(f"vpatch: this worker runs in another environment: {problem}")
    asked, digest = os.environ.get(DIGEST, ""), told["digest"]
    if not digest.startswith(asked):
        raise RuntimeError(f"vpatch: this worker was started for {asked[:12]}, and finds {digest[:12]}")


def _earlier() -> Hook | None:
    """Return the hook that Ray would call without vpatch: below `uv run` that of uv, and else the user's."""
    if os.environ.get(UV, "").lower() in ("", "1", "true"):
        try:
            uv = importlib.import_module(_UV_HOOK)
        except ModuleNotFoundError:  # a Ray that knows no uv
            uv = None
        if uv and uv._get_uv_run_cmdline():
            return _callable(uv, "hook")
    module, _, name = os.environ.get(HOOK, "").rpartition(".")
    return _callable(importlib.import_module(module), name) if name else None


def _callable(module: object, name: str) -> Hook:
    found: Hook = getattr(module, name)
    return found

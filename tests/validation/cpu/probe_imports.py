"""Print which modules of vLLM can be imported with a simulated H100, and why others cannot, as one JSON object."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.validation.cpu.models import write
from tests.validation.cpu.probing import engine_config, report


def hindrance(name: str) -> str | None:
    """Return why a module cannot be imported: None if it can, "absent" if this vLLM has no such module."""
    try:
        if find_spec(name) is None:
            return "absent"
    except ModuleNotFoundError:  # of a package that holds it
        return "absent"
    try:
        importlib.import_module(name)
    except Exception as error:  # the tests decide which errors are expected
        return f"{type(error).__name__}: {error}"
    return None


def main(home: str, *names: str) -> dict[str, Any]:
    """Import the modules, then make a hybrid model's config as `vllm serve` does."""
    config = engine_config(str(write(Path(home)) / "35B"))
    return {"modules": {name: hindrance(name) for name in names}, "hybrid": config.model_config.is_hybrid}


if __name__ == "__main__":
    report(main)

"""Print which modules of vLLM can be imported with a simulated H100, and why others cannot, as one JSON object."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.validation.cpu.models import write
from tests.validation.cpu.platform import pretend_h100


def hindrance(name: str) -> str | None:
    """Return why a module cannot be imported: None if it can, "absent" if this vLLM has no such module."""
    if find_spec(name) is None:
        return "absent"
    try:
        importlib.import_module(name)
    except Exception as error:  # the tests decide which errors are expected
        return f"{type(error).__name__}: {error}"
    return None


def main(home: str, *names: str) -> None:
    """Import the modules, then make a hybrid model's config as `vllm serve` does."""
    with contextlib.redirect_stdout(sys.stderr):
        pretend_h100()
        from vllm.engine.arg_utils import EngineArgs

        model = str(write(Path(home)) / "35B")
        config = EngineArgs(model=model, skip_tokenizer_init=True, max_model_len=8192).create_engine_config()
        found = {
            "modules": {name: hindrance(name) for name in names},
            "hybrid": config.model_config.is_hybrid,
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])

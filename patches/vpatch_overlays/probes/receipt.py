"""A receipt: loading vLLM's plugins leaves one that names the digest of what was applied."""

import json
import os
from pathlib import Path
from typing import Any

from vpatch_overlays.probes.bare import expect, settle


def main() -> None:
    """Load plugins as each process of vLLM does, and look for the receipt among this process's open files."""
    settle()
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    expect("receipts that this process holds", 1, len(found := receipts()))
    named = [name for name in found[0]["manifest"]["overlays"] if name == "receipt"]
    expect("this overlay among those of the receipt", ["receipt"], named)


def receipts() -> list[Any]:
    """Return the receipts: memory of this process, which names it and what was applied."""
    links = (descriptor for descriptor in Path("/proc/self/fd").iterdir() if descriptor.is_symlink())
    held = [descriptor for descriptor in links if "memfd:vpatch-receipt" in os.readlink(descriptor)]  # noqa: PTH115
    return [json.loads(descriptor.read_bytes()) for descriptor in held]


if __name__ == "__main__":
    main()

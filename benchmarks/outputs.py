"""Compare what two vpatch installations find and write: every overlay, alone, on every release.

    python -m benchmarks.outputs BEFORE AFTER [--release RELEASE]...

BEFORE and AFTER are interpreters that have a vpatch each. For each release it prints a digest of the states and one of
the new files with both, side by side, and then what differs. The exit code is 1 if anything does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

from tests.releases import RELEASES, tree_of

FOUND = """
import hashlib, json, re, sys
from pathlib import Path
from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine
from vpatch.tree.locate import locate
tree = locate(Path(sys.argv[1]))
engine = Engine(discover())
found = {}
for item in engine.overlays:
    changes = engine.plan(tree.read, [item])
    for part in changes.before[0].parts:
        found[f"{item.id} {part.name}"] = f"{part.state} {part.shape}"
    for file, data in changes.files.items():
        found[f"{item.id} {file}"] = hashlib.sha256(data).hexdigest()[:12]
        bare = re.sub(rb" *# vpatch: [a-z0-9-]+", b"", data)
        found[f"{item.id} {file} without marks"] = hashlib.sha256(bare).hexdigest()[:12]
print(json.dumps(found))
"""


def findings(python: str, release: str) -> dict[str, str]:
    """Return the states and the digests of new files, by overlay and part or file."""
    ran = subprocess.run([python, "-c", FOUND, str(tree_of(release))], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{python} on {release}:\n{ran.stderr}")
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def digest(found: dict[str, str], *, files: bool) -> str:
    """Return one digest of the states, or of the files."""
    chosen = sorted(f"{key} {value}" for key, value in found.items() if (".py" in key) is files)
    return sha256("\n".join(chosen).encode()).hexdigest()[:12]


def differences(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    """Yield a line for each state or file that differs."""
    for key in sorted({*before, *after}):
        one, other = before.get(key, "-"), after.get(key, "-")
        if one != other:
            yield f"    {key}: {one} -> {other}"


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--release", action="append", metavar="RELEASE")
    arguments: Any = parser.parse_args()
    differing = 0
    for release in arguments.release or RELEASES:
        with ThreadPoolExecutor(2) as pool:
            pythons = (arguments.before, arguments.after)
            before, after = pool.map(findings, pythons, (release, release))
        lines = list(differences(before, after))
        differing += len(lines)
        states, files = ([digest(one, files=kind) for one in (before, after)] for kind in (False, True))
        print(f"{release:8} states {states[0]} {states[1]}   files {files[0]} {files[1]}", *lines, sep="\n", flush=True)
    print(f"{differing} differ")
    raise SystemExit(1 if differing else 0)


if __name__ == "__main__":
    main()

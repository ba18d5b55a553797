"""`python -m tests.image.cuda.record TOOLS [RELEASE...]`: record what NVIDIA's tools report, to compare with ours.

TOOLS is a folder with `cuobjdump`, `ptxas` and `fatbinary` of one CUDA release, such as `nvidia/cu13/bin` in the wheels
`nvidia-cuda-cuobjdump` and `nvidia-cuda-nvcc`. It must be new: that of CUDA 12.8 says sm_90 where it is sm_90a. What is
written: `docs/cuda/RELEASE.json`, what `cuobjdump` lists in each extension of a release of vLLM, and `headers.json`
here, the header of an entry of a fat binary for every architecture that the tools compile for.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vpatch.release.index import find_wheel
from vpatch.release.wheel import open_wheel, read_members

from tests.image.cuda.fetching import extensions
from tests.paths import ROOT

RECORDS = ROOT / "docs/cuda"
HEADERS = Path(__file__).with_name("headers.json")
PTX = ".version {isa}\n.target {arch}\n.address_size 64\n.visible .entry k() {{ ret; }}\n"


def main(tools: Path, releases: list[str]) -> None:
    """Write the records."""
    HEADERS.write_text(json.dumps(headers(tools), indent=1) + "\n")
    RECORDS.mkdir(parents=True, exist_ok=True)
    for release in releases:
        (RECORDS / f"{release}.json").write_text(json.dumps(of_release(tools, release), indent=2) + "\n")


def of_release(tools: Path, release: str) -> dict[str, Any]:
    """Return what `cuobjdump` lists in the extensions of a release: architectures and their counts."""
    wheel = find_wheel(release)
    with open_wheel(wheel) as file:
        (record,) = read_members(file, lambda name: name.endswith(".dist-info/RECORD"))
    rows = [line.rsplit(",", 2) for line in record.data.decode().splitlines()]
    sums = {name: digest for name, digest, _ in rows if name.endswith(".so")}
    return {
        "wheel": wheel.filename,
        "tool": version(tools / "cuobjdump"),
        "commands": {
            "list_elf": "cuobjdump --list-elf FILE",
            "list_ptx": "cuobjdump --list-ptx FILE",
            "elf, ptx": "cuobjdump FILE",
        },
        "files": {
            name: {"sha256": sums[name].removeprefix("sha256="), **listed(tools / "cuobjdump", path)}
            for name, path in sorted(extensions(release, sums).items())
        },
    }


def listed(cuobjdump: Path, file: Path) -> dict[str, dict[str, int]]:
    """Count the architectures in the listings, and in the text about each image."""
    found: dict[str, Counter[str]] = {}
    for key, extension in (("list_elf", "cubin"), ("list_ptx", "ptx")):
        text = run(cuobjdump, f"--{key.replace('_', '-')}", file)
        found[key] = Counter(re.findall(rf"\.(sm_\w+)\.{extension}$", text, re.MULTILINE))
    text = run(cuobjdump, file)
    for key in ("elf", "ptx"):
        found[key] = Counter(re.findall(rf"^Fatbin {key} code:\n=+\narch = (\w+)$", text, re.MULTILINE))
    return {key: dict(sorted(counts.items())) for key, counts in found.items()}


def headers(tools: Path) -> dict[str, Any]:
    """Return the entry's header for a cubin and for PTX of every architecture, and what `cuobjdump` reports for it."""
    text = run(tools / "cuobjdump", "--help")
    archs = sorted(set(re.findall(r"'(sm_\w+)'", text)), key=lambda arch: (len(arch.rstrip("af")), arch))
    isa = "9.4"  # the oldest that knows sm_107
    with TemporaryDirectory() as name:
        folder = Path(name)
        images = []
        for arch in archs:
            source, cubin = folder / f"{arch}.ptx", folder / f"{arch}.cubin"
            source.write_text(PTX.format(isa=isa, arch=arch))
            run(tools / "ptxas", f"-arch={arch}", source, "-o", cubin)
            images += [
                f"--image3=kind=elf,sm={arch[3:]},file={cubin}",
                f"--image3=kind=ptx,sm={arch[3:]},file={source}",
            ]
        made = folder / "all.fatbin"
        run(tools / "fatbinary", "-64", "--create", made, *images)
        said = re.findall(r"^Fatbin (\w+) code:\n=+\narch = (\w+)$", run(tools / "cuobjdump", made), re.MULTILINE)
        return {
            "tool": version(tools / "fatbinary"),
            "isa": isa,
            "entries": {
                " ".join(words): header.hex() for words, header in zip(said, entries(made.read_bytes()), strict=True)
            },
        }


def entries(data: bytes) -> list[bytes]:
    """Return the headers of the entries of one fat binary."""
    found, at = [], 16
    while at < len(data):
        header, size = struct.unpack_from("<IQ", data, at + 4)
        found.append(data[at : at + header])
        at += header + size
    return found


def version(tool: Path) -> str:
    """Return the line with a tool's version."""
    (line,) = re.findall(r"^Cuda compilation tools, (.*)$", run(tool, "--version"), re.MULTILINE)
    return f"{tool.name} {line}"


def run(*command: str | Path) -> str:
    """Return a tool's output; `cuobjdump` fails if there is no device code."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode and "does not contain device code" not in ran.stdout + ran.stderr:
        raise RuntimeError(f"{command}: {ran.stdout}{ran.stderr}")
    return ran.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

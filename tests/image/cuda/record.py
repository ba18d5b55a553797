"""`python -m tests.image.cuda.record TOOLS [RELEASE...]`: record what NVIDIA's tools report, to compare with ours.

TOOLS is a folder with `cuobjdump`, `ptxas` and `fatbinary` of one CUDA release, such as `nvidia/cu13/bin` in the wheels
`nvidia-cuda-cuobjdump` and `nvidia-cuda-nvcc`. It must be new: that of CUDA 12.8 says sm_90 where it is sm_90a. What is
written: `docs/cuda/RELEASE.json`, what `cuobjdump` lists in each extension of a release of vLLM, and `headers.json`
here, the header of an entry of a fat binary for every architecture that the tools compile for.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vpatch.release.index import find_wheel
from vpatch.release.wheel import open_wheel, read_members

from tests.paths import CACHE, ROOT

RECORDS = ROOT / "docs/cuda"
HEADERS = Path(__file__).with_name("headers.json")
PTX = ".version {isa}\n.target {arch}\n.address_size 64\n.visible .entry k() {{ ret; }}\n"


def extensions(release: str, names: Collection[str]) -> dict[str, Path]:
    """Return compiled files of a release's wheel, fetched once; do not modify them.

    They are larger than what `read_members` accepts, and a caller knows the hash that each must have.
    """
    top = CACHE / "extensions" / release
    if wanted := {name for name in names if not (top / name).exists()}:
        with open_wheel(find_wheel(release)) as wheel, zipfile.ZipFile(wheel) as archive:
            infos = [archive.getinfo(name) for name in wanted]
            wheel.prefetch((one.header_offset, one.header_offset + one.compress_size + 4096) for one in infos)
            for name in wanted:
                path = top / name
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_suffix(".part")
                with archive.open(name) as packed, part.open("wb") as file:
                    shutil.copyfileobj(packed, file, 1 << 20)
                part.rename(path)
    return {name: top / name for name in names}


def of_release(tools: Path, release: str) -> dict[str, Any]:
    """Return what `cuobjdump` lists in the extensions of a release: architectures and their counts."""
    wheel = find_wheel(release)
    with open_wheel(wheel) as file:
        (record,) = read_members(file, lambda name: name.endswith(".dist-info/RECORD"))
    rows = [line.rsplit(",", 2) for line in record.data.decode().splitlines()]
    sums = {name: digest.removeprefix("sha256=") for name, digest, _ in rows if name.endswith(".so")}
    commands = {"list_elf": "cuobjdump --list-elf FILE", "list_ptx": "cuobjdump --list-ptx FILE"}
    return {
        "wheel": wheel.filename,
        "tool": version(tools / "cuobjdump"),
        "commands": {**commands, "elf, ptx": "cuobjdump FILE"},
        "files": {
            name: {"sha256": sums[name], **listed(tools / "cuobjdump", path)}
            for name, path in sorted(extensions(release, sums).items())
        },
    }


def listed(cuobjdump: Path, file: Path) -> dict[str, dict[str, int]]:
    """Count the architectures in the listings, and in the text about each image."""
    found = {
        "list_elf": re.findall(r"\.(sm_\w+)\.cubin$", run(cuobjdump, "--list-elf", file), re.MULTILINE),
        "list_ptx": re.findall(r"\.(sm_\w+)\.ptx$", run(cuobjdump, "--list-ptx", file), re.MULTILINE),
    }
    images = re.findall(r"^Fatbin (\w+) code:\n=+\narch = (\w+)$", run(cuobjdump, file), re.MULTILINE)
    found |= {key: [arch for kind, arch in images if kind == key] for key in ("elf", "ptx")}
    return {key: dict(sorted(Counter(names).items())) for key, names in found.items()}


def headers(tools: Path) -> dict[str, Any]:
    """Return the entry's header for a cubin and for PTX of every architecture, and what `cuobjdump` reports for it."""
    archs = {*re.findall(r"'(sm_\w+)'", run(tools / "cuobjdump", "--help"))}
    isa = "9.4"  # the oldest that knows sm_107
    with TemporaryDirectory() as name:
        folder, images = Path(name), list[str]()
        for arch in sorted(archs, key=lambda arch: (len(arch.rstrip("af")), arch)):
            source, cubin = folder / f"{arch}.ptx", folder / f"{arch}.cubin"
            source.write_text(PTX.format(isa=isa, arch=arch))
            run(tools / "ptxas", f"-arch={arch}", source, "-o", cubin)
            files = (("elf", cubin), ("ptx", source))
            images += [f"--image3=kind={kind},sm={arch[3:]},file={file}" for kind, file in files]
        made = folder / "all.fatbin"
        run(tools / "fatbinary", "-64", "--create", made, *images)
        said = re.findall(r"^Fatbin (\w+) code:\n=+\narch = (\w+)$", run(tools / "cuobjdump", made), re.MULTILINE)
        found = {" ".join(words): one.hex() for words, one in zip(said, entries(made.read_bytes()), strict=True)}
    return {"tool": version(tools / "fatbinary"), "isa": isa, "entries": found}


def entries(data: bytes) -> Iterator[bytes]:
    at = 16
    while at < len(data):
        header, size = struct.unpack_from("<IQ", data, at + 4)
        yield data[at : at + header]
        at += header + size


def version(tool: Path) -> str:
    (line,) = re.findall(r"^Cuda compilation tools, (.*)$", run(tool, "--version"), re.MULTILINE)
    return f"{tool.name} {line}"


def run(*command: str | Path) -> str:
    """Return a tool's output; `cuobjdump` fails if there is no device code."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode and "does not contain device code" not in ran.stdout + ran.stderr:
        raise RuntimeError(f"{command}: {ran.stdout}{ran.stderr}")
    return ran.stdout


if __name__ == "__main__":
    HEADERS.write_text(json.dumps(headers(Path(sys.argv[1])), indent=1) + "\n")
    for name in sys.argv[2:]:
        (RECORDS / f"{name}.json").write_text(json.dumps(of_release(Path(sys.argv[1]), name), indent=2) + "\n")

"""Real releases: vpatch reads in their extensions what NVIDIA's `cuobjdump` lists."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter

import pytest
from vpatch.image.fatbin import Image, Kind, read

from tests.image.cuda.fetching import extensions
from tests.image.cuda.record import RECORDS
from tests.tiers import deep

RELEASES = {path.stem: json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))}

# 41 MB of 0.20.2's wheel. Its other files are 190 MB of it, and with the other releases for the matrix.
SMALL = {
    "vllm/_C_stable_libtorch.abi3.so",
    "vllm/_flashmla_C.abi3.so",
    "vllm/_flashmla_extension_C.abi3.so",
    "vllm/_moe_C.abi3.so",
    "vllm/cumem_allocator.abi3.so",
    "vllm/third_party/deep_gemm/_C.cpython-312-x86_64-linux-gnu.so",
}
CASES = [
    pytest.param("0.20.2", SMALL, id="0.20.2"),
    *(deep(one, {*RELEASES[one]["files"]}, id=f"{one}, all") for one in RELEASES),
]


@pytest.mark.parametrize(("release", "names"), CASES)
def test_read_agrees_with_cuobjdump(release: str, names: set[str]) -> None:
    for name, path in extensions(release, names).items():
        said = RELEASES[release]["files"][name]
        with path.open("rb") as file:
            digest = base64.urlsafe_b64encode(hashlib.file_digest(file, "sha256").digest()).decode().rstrip("=")
            assert digest == said["sha256"], f"{name}: another file than was recorded"
            binaries, _ = read(name, file)
        ours = [image for binary in binaries for image in binary]

        assert counted(ours, Kind.CUBIN) == said["elf"], name
        assert counted(ours, Kind.PTX) == said["ptx"] == said["list_ptx"], name
        # `--list-elf` makes a file name of each, in which it leaves out the letter of a family.
        assert counted(ours, Kind.CUBIN, without="f") == said["list_elf"], name


def counted(images: list[Image], kind: Kind, without: str = " ") -> Counter[str]:
    return Counter(f"sm_{image.arch}".rstrip(without) for image in images if image.kind is kind)

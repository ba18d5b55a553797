"""Which code runs on which GPU."""

from __future__ import annotations

import re

import pytest
from vpatch.errors import Failure
from vpatch.image.cuda.fatbin import Arch, Image, Kind, parse_gpu

# Code, and the GPUs of those below that it serves.
GPUS = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")
SERVED = {
    "sm_80": "8.0 8.6 8.9",
    "sm_86": "8.6 8.9",
    "sm_89": "8.9",
    "sm_90": "9.0",
    "sm_90a": "9.0",
    "sm_100": "10.0 10.3",
    "sm_100a": "10.0",
    "sm_100f": "10.0 10.3",
    "sm_103": "10.3",
    "sm_103f": "10.3",
    "sm_120": "12.0 12.1",
    "sm_120a": "12.0",
    "sm_120f": "12.0 12.1",
    "sm_121": "12.1",
    "sm_121f": "12.1",
    "compute_80": "8.0 8.6 8.9 9.0 10.0 10.3 11.0 12.0 12.1",
    "compute_90": "9.0 10.0 10.3 11.0 12.0 12.1",
    "compute_90a": "9.0",
    "compute_100f": "10.0 10.3",
    "compute_120": "12.0 12.1",
    "compute_120a": "12.0",
    "compute_120f": "12.0 12.1",
    "compute_121": "12.1",
}


def image(name: str) -> Image:
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
    assert found
    return Image(Kind.CUBIN if found[1] == "sm" else Kind.PTX, Arch(int(found[2]), int(found[3]), found[4]))


@pytest.mark.parametrize("name", SERVED)
def test_the_rules_of_the_programming_guide(name: str) -> None:
    assert str(image(name)) == name
    assert [gpu for gpu in GPUS if image(name).serves(parse_gpu(gpu))] == SERVED[name].split()


def test_what_is_neither_cubin_nor_ptx_serves_none() -> None:
    assert not Image(Kind.OTHER, Arch(12, 0)).serves(Arch(12, 0))


@pytest.mark.parametrize(("text", "arch"), [("sm_120", Arch(12, 0)), ("12.0", Arch(12, 0)), ("sm_89", Arch(8, 9))])
def test_a_gpu_is_read(text: str, arch: Arch) -> None:
    assert parse_gpu(text) == arch


@pytest.mark.parametrize(
    "text", ["5090", "", "sm_", "sm_1", "sm_120a", "compute_120", "12", "12.0.0", "SM_120", "sm_१२०"]
)
def test_what_is_no_gpu_is_refused(text: str) -> None:
    with pytest.raises(Failure) as caught:
        parse_gpu(text)

    assert str(caught.value) == f"not a GPU architecture: {text}: it reads like sm_120 or 12.0, which is an RTX 5090"

"""GPU architectures and fat binaries: read as NVIDIA's tools read them; damaged ones are reported."""

from __future__ import annotations

import io
import json
import re
import struct
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vpatch.errors import Failure
from vpatch.image.fatbin import Arch, Image, Kind, parse_gpu, read

from tests.failures import problem_of
from tests.image.cuda.making import box, boxes, elf, entry, extension, without_device_code
from tests.image.cuda.record import HEADERS

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


def test_other_images_serve_no_gpu() -> None:
    assert not Image(Kind.OTHER, Arch(12, 0)).serves(Arch(12, 0))


@pytest.mark.parametrize(("text", "arch"), [("sm_120", Arch(12, 0)), ("12.0", Arch(12, 0)), ("sm_89", Arch(8, 9))])
def test_parse_gpu(text: str, arch: Arch) -> None:
    assert parse_gpu(text) == arch


@pytest.mark.parametrize(
    "text", ["5090", "", "sm_", "sm_1", "sm_120a", "compute_120", "12", "12.0.0", "SM_120", "sm_१२०"]
)
def test_parse_gpu_refuses_other_text(text: str) -> None:
    assert (
        str(problem_of(parse_gpu, text))
        == f"not a GPU architecture: {text}: it reads like sm_120 or 12.0, which is an RTX 5090"
    )


MADE = json.loads(HEADERS.read_text())


def images(data: bytes) -> list[list[str]]:
    binaries, _ = read("vllm/_C.abi3.so", io.BytesIO(data))
    return [[str(image) for image in binary] for binary in binaries]


def refused(data: bytes) -> str:
    problem = problem_of(read, "vllm/_C.abi3.so", io.BytesIO(data))
    assert (problem.what, problem.where) == ("cannot read extension", "vllm/_C.abi3.so")
    return problem.cause


def test_every_architecture_is_read_as_cuobjdump_reads_it() -> None:
    headers = [bytes.fromhex(header) for header in MADE["entries"].values()]
    payloads = [bytes(struct.unpack_from("<Q", header, 8)[0]) for header in headers]
    section = box(b"".join(header + payload for header, payload in zip(headers, payloads, strict=True)))
    (binary,), _ = read("all.so", io.BytesIO(elf({".nv_fatbin": section})))

    kinds = {Kind.CUBIN: "elf", Kind.PTX: "ptx"}
    said = [f"{kinds[image.kind]} sm_{image.arch}" for image in binary]
    assert said == list(MADE["entries"])
    assert {"elf sm_120", "elf sm_120a", "elf sm_120f", "ptx sm_90a", "ptx sm_103f"} <= set(said)
    isa = tuple(map(int, MADE["isa"].split(".")))
    assert {image.isa for image in binary} == {isa, (0, 0)}


def test_fat_binaries_in_order_and_libraries() -> None:
    data = extension("sm_90a sm_120f", "compute_80 sm_80", needed=("libc10.so", "libcudart.so.13"))
    binaries, needed = read("x.so", io.BytesIO(data))

    assert images(data) == [["sm_90a", "sm_120f"], ["compute_80", "sm_80"]]
    assert binaries[1][0].isa == (9, 0)
    assert needed == ("libc10.so", "libcudart.so.13")


@pytest.mark.parametrize("zeros", [8, 3 << 20])
def test_zeros_between_and_behind(zeros: int) -> None:
    section = boxes("sm_80") + bytes(zeros) + boxes("sm_120") + bytes(zeros)

    assert images(elf({".nv_fatbin": section})) == [["sm_80"], ["sm_120"]]


def test_linked_code_goes_before_its_parts() -> None:
    parts = boxes("sm_75")

    assert images(elf({"__nv_relfatbin": parts})) == [["sm_75"]]
    assert images(elf({"__nv_relfatbin": parts, ".nv_fatbin": boxes("sm_120")})) == [["sm_120"]]
    assert images(elf({"__nv_relfatbin": parts, ".nv_fatbin": b""})) == [["sm_75"]]
    assert images(elf({"__nv_relfatbin": parts}, empty=[".nv_fatbin"])) == [["sm_75"]]


def test_sections_that_a_linker_did_not_merge() -> None:
    data = elf({".nv_fatbin": boxes("sm_80"), ".nv_fatbix": boxes("sm_120")}).replace(b".nv_fatbix", b".nv_fatbin")

    assert images(data) == [["sm_80"], ["sm_120"]]


def test_images_of_other_kinds() -> None:
    (((image,),), _) = read("x.so", io.BytesIO(elf({".nv_fatbin": box(entry("sm_120", kind=64))})))

    assert image.kind is Kind.OTHER


def test_little_of_a_temporary_file_is_read() -> None:
    big = entry("sm_120", bytes(40 << 20))
    with tempfile.TemporaryFile() as file:
        file.write(elf({".nv_fatbin": box(big) + box(entry("sm_90a"))}))
        binaries, _ = read("x.so", file)

    assert len(binaries) == 2


def test_a_shared_object_without_device_code() -> None:
    binaries, needed = read("native.so", io.BytesIO(without_device_code()))

    assert binaries == ()
    assert "libc.so.6" in needed


GOOD = extension("sm_80 compute_80", "sm_120f")


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "not an ELF file"),
        (b"/* a linker script */ INPUT(libx.so)", "not an ELF file"),
        (GOOD[:40], "a damaged ELF file"),
        (GOOD[:-64], "a damaged ELF file"),
        (elf({".nv_fatbin": boxes("sm_80")[:-8]}), "no fat binary at byte 64"),
        (elf({".nv_fatbin": boxes("sm_80") + b"\x01" * 8}), "no fat binary at byte 152"),
        (elf({".nv_fatbin": box(entry("sm_80"), magic=0xBA55ED51)}), "no fat binary at byte 64"),
        (elf({".nv_fatbin": box(entry("sm_80"), version=2)}), "no fat binary at byte 64"),
        (elf({".nv_fatbin": box(entry("sm_80"), header=0, size=0)}), "no fat binary at byte 64"),
        (elf({".nv_fatbin": box(entry("sm_80"), size=1 << 63)}), "no fat binary at byte 64"),
        (elf({".nv_fatbin": box(entry("sm_80") + bytes(24))}), "no entry of a fat binary at byte 152"),
        (elf({".nv_fatbin": box(bytes(64))}), "no entry of a fat binary at byte 80"),
        (elf({".nv_fatbin": box(entry("sm_80")[:-4] + bytes(3))}), "no entry of a fat binary at byte 80"),
    ],
)
def test_damaged_files(data: bytes, cause: str) -> None:
    assert refused(data).startswith(cause)


def test_cut_short_behind_its_section_headers() -> None:
    data = bytearray(elf({".text": boxes("sm_80"), ".nv_fatbin": boxes("sm_80")}))
    (headers,) = struct.unpack_from("<Q", data, 40)
    struct.pack_into("<Q", data, headers + 2 * 64 + 24, len(data) - 10)

    assert refused(bytes(data)) == f"it is cut short: its device code ends at byte {len(data) + 78} of {len(data)}"


def test_cut_short_inside_a_header() -> None:
    data = bytearray(GOOD + b"\0\0\0\x50\xed\x55")
    (headers,) = struct.unpack_from("<Q", data, 40)
    struct.pack_into("<QQ", data, headers + 2 * 64 + 24, len(data) - 6, 6)

    assert refused(bytes(data)) == f"it is cut short at byte {len(data)}"


def test_more_sections_than_there_can_be() -> None:
    data = bytearray(GOOD)
    (headers,) = struct.unpack_from("<Q", data, 40)
    struct.pack_into("<H", data, 60, 0)
    struct.pack_into("<Q", data, headers + 32, 1 << 60)

    assert refused(bytes(data)) == f"it says that it has {1 << 60} sections"


def outcome(data: bytes) -> str:
    try:
        read("x.so", io.BytesIO(data))
    except Failure as failure:
        return failure.problems[0].what
    return "read"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=6), st.integers(0, len(GOOD)))
def test_damage_never_crashes(changes: list[tuple[int, int]], length: int) -> None:
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value

    assert {outcome(bytes(data)), outcome(bytes(data[:length]))} <= {"read", "cannot read extension"}


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=400).filter(any))
def test_noise_after_a_fat_binary(noise: bytes) -> None:
    assert outcome(elf({".nv_fatbin": boxes("sm_80") + noise})) == "cannot read extension"

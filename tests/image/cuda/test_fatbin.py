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
from vpatch.gpu.fatbin import Arch, DeviceCode, Form, parse_gpu, read

from tests.failures import problem_of
from tests.image.cuda.making import COUNT, HEADERS, box, boxes, elf, entry, extension, without_device_code
from tests.image.cuda.record import HEADERS as RECORDED
from tests.tiers import WHOLE

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
    "sm_103f": "10.3",
    "sm_120": "12.0 12.1",
    "sm_120a": "12.0",
    "sm_120f": "12.0 12.1",
    "sm_121f": "12.1",
    "compute_80": "8.0 8.6 8.9 9.0 10.0 10.3 11.0 12.0 12.1",
    "compute_90": "9.0 10.0 10.3 11.0 12.0 12.1",
    "compute_90a": "9.0",
    "compute_100f": "10.0 10.3",
    "compute_120a": "12.0",
    "compute_121": "12.1",
}


def image(name: str) -> DeviceCode:
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
    assert found
    return DeviceCode(Form.CUBIN if found[1] == "sm" else Form.PTX, Arch(int(found[2]), int(found[3]), found[4]))


@pytest.mark.parametrize("name", SERVED)
def test_the_rules_of_the_programming_guide(name: str) -> None:
    assert str(image(name)) == name
    assert [gpu for gpu in GPUS if image(name).serves(parse_gpu(gpu))] == SERVED[name].split()
    assert not DeviceCode(Form.OTHER, image(name).arch).serves(image(name).arch)


def test_names_of_gpus() -> None:
    assert [parse_gpu(text) for text in ("sm_120", "12.0", "sm_89")] == [Arch(12, 0), Arch(12, 0), Arch(8, 9)]
    for text in ("5090", "", "sm_", "sm_1", "sm_120a", "compute_120", "12", "12.0.0", "SM_120", "sm_१२०"):
        why = "it reads like sm_120 or 12.0, which is an RTX 5090"
        assert str(problem_of(parse_gpu, text)) == f"not a GPU architecture: {text}: {why}"


def images(data: bytes) -> list[list[str]]:
    binaries, _ = read("vllm/_C.abi3.so", io.BytesIO(data))
    return [[str(image) for image in binary] for binary in binaries]


def test_every_architecture_is_read_as_cuobjdump_reads_it() -> None:
    made = json.loads(RECORDED.read_text())
    headers = [bytes.fromhex(header) for header in made["entries"].values()]
    section = box(b"".join(header + bytes(struct.unpack_from("<Q", header, 8)[0]) for header in headers))
    (binary,), _ = read("all.so", io.BytesIO(elf({".nv_fatbin": section})))

    forms = {Form.CUBIN: "elf", Form.PTX: "ptx"}
    said = [f"{forms[image.form]} sm_{image.arch}" for image in binary]
    assert said == list(made["entries"])
    assert {"elf sm_120", "elf sm_120a", "elf sm_120f", "ptx sm_90a", "ptx sm_103f"} <= set(said)
    assert {image.isa for image in binary} == {tuple(map(int, made["isa"].split("."))), (0, 0)}


PARTS, NEW, OLD = "__nv_relfatbin", boxes("sm_120"), boxes("sm_75")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (extension("sm_90a sm_120f", "compute_80 sm_80"), [["sm_90a", "sm_120f"], ["compute_80", "sm_80"]]),
        (elf({".nv_fatbin": OLD + bytes(8) + NEW + bytes(8)}), [["sm_75"], ["sm_120"]]),
        (elf({".nv_fatbin": OLD + bytes(3 << 20) + NEW + bytes(3 << 20)}), [["sm_75"], ["sm_120"]]),
        # Linked code goes before its parts.
        (elf({PARTS: OLD}), [["sm_75"]]),
        (elf({PARTS: OLD, ".nv_fatbin": NEW}), [["sm_120"]]),
        (elf({PARTS: OLD, ".nv_fatbin": b""}), [["sm_75"]]),
        (elf({PARTS: OLD}, empty=[".nv_fatbin"]), [["sm_75"]]),
        # Sections that a linker did not merge.
        (elf({".nv_fatbin": OLD, ".nv_fatbix": NEW}).replace(b".nv_fatbix", b".nv_fatbin"), [["sm_75"], ["sm_120"]]),
        (elf({".nv_fatbin": box(entry("sm_120", kind=64))}), [["sm_120"]]),
        (without_device_code(), []),
    ],
)
def test_fat_binaries_in_order(data: bytes, expected: list[list[str]]) -> None:
    assert images(data) == expected


def test_libraries_versions_and_forms() -> None:
    binaries, needed = read("x.so", io.BytesIO(extension("compute_80 sm_80", needed=("libc10.so", "libcudart.so.13"))))
    assert ([one.isa for one in binaries[0]], needed) == ([(9, 0), (0, 0)], ("libc10.so", "libcudart.so.13"))
    assert "libc.so.6" in read("x.so", io.BytesIO(without_device_code()))[1]
    (((other,),), _) = read("x.so", io.BytesIO(elf({".nv_fatbin": box(entry("sm_120", kind=64))})))
    assert other.form is Form.OTHER
    with tempfile.TemporaryFile() as file:  # of which little is read
        file.write(elf({".nv_fatbin": box(entry("sm_120", bytes(4 << 20))) + box(entry("sm_90a"))}))
        assert len(read("x.so", file)[0]) == 2


GOOD = extension("sm_80 compute_80", "sm_120f")


def spoiled(data: bytes, at: int, *values: int) -> bytes:
    """Return an ELF file with other values of 8 bytes at a place in the headers of its sections, of 64 bytes each."""
    (headers,) = struct.unpack_from("<Q", data, HEADERS)
    changed = bytearray(data)
    struct.pack_into(f"<{len(values)}Q", changed, headers + at, *values)
    return bytes(changed)


TWO = elf({".text": boxes("sm_80"), ".nv_fatbin": boxes("sm_80")})
CUT = GOOD + b"\0\0\0\x50\xed\x55"  # inside a header
COUNTLESS = spoiled(GOOD[:COUNT] + bytes(2) + GOOD[COUNT + 2 :], 32, 1 << 60)


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
        (
            spoiled(TWO, 2 * 64 + 24, len(TWO) - 10),
            f"it is cut short: its device code ends at byte {len(TWO) + 78} of {len(TWO)}",
        ),
        (spoiled(CUT, 2 * 64 + 24, len(CUT) - 6, 6), f"it is cut short at byte {len(CUT)}"),
        (COUNTLESS, f"it says that it has {1 << 60} sections"),
    ],
)
def test_damaged_files(data: bytes, cause: str) -> None:
    problem = problem_of(read, "vllm/_C.abi3.so", io.BytesIO(data))

    assert (problem.what, problem.where) == ("cannot read extension", "vllm/_C.abi3.so")
    assert problem.cause.startswith(cause)


def outcome(data: bytes) -> str:
    try:
        read("x.so", io.BytesIO(data))
    except Failure as failure:
        return failure.problems[0].what
    return "read"


@settings(max_examples=1000 if WHOLE else 40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=6), st.integers(0, len(GOOD)))
def test_damage_never_crashes(changes: list[tuple[int, int]], length: int) -> None:
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value

    assert {outcome(bytes(data)), outcome(bytes(data[:length]))} <= {"read", "cannot read extension"}


@settings(max_examples=1000 if WHOLE else 20, deadline=None)
@given(st.binary(min_size=1, max_size=400).filter(any))
def test_noise_after_a_fat_binary(noise: bytes) -> None:
    assert outcome(elf({".nv_fatbin": boxes("sm_80") + noise})) == "cannot read extension"

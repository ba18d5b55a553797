"""The survey of an image's extensions: what they carry and need."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Mapping

import pytest
from vpatch.image import fatbin
from vpatch.image.architectures import Survey, survey
from vpatch.installation import how_to_add

from tests.image.cuda.making import box, elf, entry, extension

METADATA = """Metadata-Version: 2.4
Name: vllm
Requires-Dist: {}
Requires-Dist: torchaudio==2.11.0

Requires-Dist: torch==1.0
"""


def look(files: Mapping[str, bytes], torch: str = "torch==2.11.0", env: Mapping[str, str] | None = None) -> Survey:
    opened = ((name, io.BytesIO(data)) for name, data in files.items())
    return survey(opened, METADATA.format(torch), env or {})


def test_an_image() -> None:
    found = look(
        {
            "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": extension("sm_80 compute_80"),
            "vllm/_C.abi3.so": extension("sm_120 sm_90a sm_90 sm_100f", "sm_120f compute_90 compute_80"),
            "vllm/spinloop.abi3.so": elf({".text": bytes(8)}),
            "vllm/broken.so": b"nothing",
        },
        env={"CUDA_VERSION": "13.0.2"},
    )

    assert list(found.lines()) == [
        "vllm/_C.abi3.so: sm_90, sm_90a, sm_100f, sm_120, sm_120f, compute_80, compute_90",
        "vllm/broken.so: not an ELF file",
        "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so: sm_80, compute_80",
        "CUDA 13.0 (the image says 13.0.2), torch 2.11.0, driver >=580.65.06",
    ]
    told = json.loads(json.dumps(found.as_json()))
    assert told["extensions"][:2] == [
        {
            "name": "vllm/_C.abi3.so",
            "architectures": ["sm_90", "sm_90a", "sm_100f", "sm_120", "sm_120f"],
            "ptx": ["compute_80", "compute_90"],
            "fat_binaries": 2,
            "problem": None,
        },
        {
            "name": "vllm/broken.so",
            "architectures": [],
            "ptx": [],
            "fat_binaries": 0,
            "problem": "cannot read extension: vllm/broken.so: not an ELF file",
        },
    ]
    assert {key: value for key, value in told.items() if key != "extensions"} == {
        "cuda": "13.0",
        "image_cuda": "13.0.2",
        "torch": "2.11.0",
        "driver": ">=580.65.06",
        "ptx_driver": ">=580",
    }


def test_ptx_of_a_later_minor_release_needs_a_newer_driver_than_its_machine_code() -> None:
    data = elf({".nv_fatbin": box(entry("sm_80") + entry("compute_80", isa=(8, 8)))}, ["libcudart.so.12"])
    found = look({"vllm/_C.abi3.so": data})

    assert [*found.lines()][-1] == ("CUDA 12.9, torch 2.11.0, driver >=525.60.13, >=575 where it compiles PTX")


ENDLESS = "9" * 5000


@pytest.mark.parametrize(
    ("needed", "said", "cuda", "driver"),
    [
        (["libcudart.so.9", "libcudart.so.12", "libc.so.6"], None, "12", ">=525.60.13"),
        ([], "12.9.1", "", ">=525.60.13"),
        ([f"libcudart.so.{ENDLESS}"], None, "", ""),
        ([], ENDLESS, "", ""),
    ],
    ids=["by the library", "by the environment", "a library of too many digits", "a variable of too many digits"],
)
def test_without_ptx(needed: list[str], said: str | None, cuda: str, driver: str) -> None:
    files = {"vllm/_C.abi3.so": extension("sm_80", needed=needed)} if needed else {}
    found = look(files, env={"CUDA_VERSION": said} if said else None)

    assert (found.cuda, found.driver, found.ptx_driver) == (cuda, driver, "")


def test_an_empty_image() -> None:
    found = survey([], None, {"CUDA_VERSION": "edge"})

    assert list(found.lines()) == ["CUDA unknown (the image says edge), torch unknown, driver unknown"]


@pytest.mark.parametrize(
    ("line", "torch"),
    [
        ("torch==2.14.0", "2.14.0"),
        ("torch>=2.9,<3", "<3,>=2.9"),
        ("torch", ""),
        ("torch==2.9; extra == 'cpu'", ""),
        ("torch ==(", ""),
        ("torchvision==0.1", ""),
    ],
)
def test_the_required_torch(line: str, torch: str) -> None:
    assert look({}, torch=line).torch == torch


def test_unknown_ptx_versions() -> None:
    assert fatbin.compiling_driver([(9, 0), (99, 0)]) == ">610"
    assert fatbin.release_of([(99, 0)]) == ""
    assert fatbin.compiling_driver([(6, 5)]) == ""
    known = [(7, minor) for minor in range(9)] + [(8, minor) for minor in range(9)] + [(9, minor) for minor in range(4)]
    branches = [int(fatbin.compiling_driver([version]).removeprefix(">=")) for version in known]
    assert branches == sorted({*branches})  # each version needs a newer driver


def test_without_the_extra_the_error_shows_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['elftools'] = None; from vpatch.image.architectures import *; check_names(['sm_120'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ran.stderr.endswith(
        f"vpatch.errors.Failure: cannot look: elftools.common: not installed: {how_to_add('image')}\n"
    )

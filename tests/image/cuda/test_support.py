"""What an image's extensions carry and need, whether a GPU is served, and by which files."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import pytest
from vpatch.gpu import fatbin
from vpatch.gpu.fitness import Fitness, Served, Survey, fitness, lacking, survey

from tests.image.cuda.making import box, elf, entry, extension, without_device_code
from tests.image.standin import SITE

KERNEL, ROUTER, FLASH = "vllm/_C.abi3.so", "vllm/_moe_C.abi3.so", "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so"
# The fat binaries of a few files of 0.20.2, one of each sort.
LIST = "sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120"
KERNELS = (
    *(LIST, "sm_90a", "compute_80 sm_80 compute_90 sm_90", "sm_75", "sm_100f sm_120f", "sm_89 sm_120"),
    "sm_90a sm_100f",
)
ROUTING = ("compute_80 sm_80", LIST, "sm_75", "sm_89 sm_120", "sm_90a sm_100f")
FILES = {
    KERNEL: extension(*KERNELS),
    ROUTER: extension(*ROUTING),
    FLASH: extension("compute_80 sm_80"),
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": extension("sm_90a"),
    "vllm/_flashmla_C.abi3.so": extension("sm_90a sm_100f"),
    "vllm/cumem_allocator.abi3.so": elf({".text": bytes(8)}),
    "vllm/third_party/deep_gemm/_C.cpython-312-x86_64-linux-gnu.so": elf({".text": bytes(8)}),
}
METADATA = """Metadata-Version: 2.4
Name: vllm
Requires-Dist: {}
Requires-Dist: torchaudio==2.11.0

Requires-Dist: torch==1.0
"""


def look(files: Mapping[str, bytes], torch: str = "torch==2.11.0", **env: str) -> Survey:
    opened = ((name, io.BytesIO(data)) for name, data in files.items())
    return survey(opened, METADATA.format(torch), env)


def told(files: Mapping[str, bytes], arch: str = "sm_120") -> list[str]:
    return [str(problem) for problem in lacking(look(files), arch)]


def later(name: str) -> str:
    return name.replace("C.abi3", "C_stable_libtorch.abi3") if name in (KERNEL, ROUTER) else name


def test_the_fitness_of_each_file() -> None:
    found = {one.name.rpartition("/")[2]: one for one in fitness(look(FILES), "12.0")}

    assert {name: one.level for name, one in found.items()} == {
        "_C.abi3.so": Served.OK,
        "_moe_C.abi3.so": Served.OK,
        "_vllm_fa2_C.abi3.so": Served.JIT,
        "_vllm_fa3_C.abi3.so": Served.OTHERS,
        "_flashmla_C.abi3.so": Served.OTHERS,
        "cumem_allocator.abi3.so": Served.NOTHING,
        "_C.cpython-312-x86_64-linux-gnu.so": Served.NOTHING,
    }
    assert str(found["_vllm_fa3_C.abi3.so"]).endswith("_vllm_fa3_C.abi3.so: others: for sm_90a only")
    jit = "1 of {} fat binaries by JIT (driver >=580): compute_80"
    assert found["_C.abi3.so"].because == f"3 of 7 fat binaries run: sm_120, sm_120f; {jit.format(7)}, compute_90"
    assert found["_vllm_fa2_C.abi3.so"].because == jit.format(1)
    assert found["_flashmla_C.abi3.so"].because == "for sm_90a, sm_100f only"
    old = Fitness(FLASH, Served.OTHERS, "for compute_80, sm_80 only")
    assert old in fitness(look(FILES), "sm_75"), "it is older than what FlashAttention needs"
    mixed = look({KERNEL: extension("sm_120 compute_120", "sm_90 compute_90")})
    run = "1 of 2 fat binaries run: sm_120; 1 of 2 fat binaries by JIT (driver >=580): compute_90"
    assert str(fitness(mixed, "sm_120")[0]) == f"{KERNEL}: ok: {run}", "machine code runs before PTX"
    any_driver = look({KERNEL: elf({".nv_fatbin": box(entry("compute_80", isa=(6, 5)))})})
    assert str(fitness(any_driver, "sm_120")[0]).endswith(": jit: 1 of 1 fat binaries by JIT (driver any): compute_80")


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"])
def test_the_architectures_of_the_release_are_served(arch: str) -> None:
    assert told(FILES, arch) == told({later(name): data for name, data in FILES.items()}, arch) == []
    assert told({f"{SITE}/{name}": data for name, data in FILES.items()}, arch) == []


BUILT = {
    "before Blackwell": ("sm_80 sm_90", False),
    "before Blackwell, special kernels with PTX": ("sm_90; compute_80 sm_80 compute_90 sm_90", False),
    "before Blackwell, with PTX": ("sm_80 sm_90 compute_90; sm_90a; sm_75", True),
    "PTX alone": ("compute_90", True),
    "PTX bound to Hopper": ("sm_90 compute_90a", False),
    "PTX of a newer GPU": ("sm_90 compute_121", False),
    "for this GPU alone": ("sm_120; compute_80 sm_80; sm_120f", True),
    "bound to this GPU": ("sm_120a", True),
    "for its family": ("sm_120f", True),
    "for the next one": ("sm_121", False),
    "bound to this family, and other kernels to others": ("sm_90a; sm_100f; sm_120f", True),
    "bound to others": ("sm_90a; sm_100f", False),
}


@pytest.mark.parametrize("name", BUILT)
def test_how_the_kernels_may_have_been_built(name: str) -> None:
    binaries, served = BUILT[name]
    problems = lacking(look({**FILES, KERNEL: extension(*binaries.split("; "))}), "sm_120")

    assert [(one.what, one.where) for one in problems] == ([] if served else [("lacks sm_120", KERNEL)])


NONE = "nothing for it in 1 of {} fat binaries: {}"
SEVEN = LIST.replace(" ", ", ")
NEEDED = {
    "vllm/_C*.so": "vLLM's kernels",
    "vllm/_moe_C*.so": "the kernels of mixtures of experts",
    "vllm/vllm_flash_attn/_vllm_fa2_C*.so": "FlashAttention 2",
}


@pytest.mark.parametrize(
    ("files", "arch", "why"),
    [
        # Only special kernels are built for this one.
        (FILES, "sm_110", {KERNEL: NONE.format(7, SEVEN), ROUTER: NONE.format(5, SEVEN)}),
        ({name: data for name, data in FILES.items() if "flash_attn" not in name}, "sm_75", {}),
        # An unlisted extension fails only if it is for any GPU.
        ({**FILES, "vllm/_new_C.abi3.so": extension("sm_90a sm_100f")}, "sm_120", {}),
        (
            {**FILES, "vllm/_new_C.abi3.so": extension("sm_80 sm_90")},
            "sm_120",
            {"vllm/_new_C.abi3.so": NONE.format(1, "sm_80, sm_90")},
        ),
        ({}, "sm_120", {name: f"no such file: {what}" for name, what in NEEDED.items()}),
        ({**FILES, ROUTER: without_device_code()}, "sm_120", {ROUTER: "no device code in it"}),
        ({**FILES, "vllm/_flashmla_C.abi3.so": b"MZ"}, "sm_120", {"vllm/_flashmla_C.abi3.so": "not an ELF file"}),
    ],
)
def test_what_is_lacking(files: Mapping[str, bytes], arch: str, why: Mapping[str, str]) -> None:
    assert told(files, arch) == [f"lacks {arch}: {name}: {cause}" for name, cause in why.items()]


def test_the_survey_of_an_image() -> None:
    found = look(
        {
            FLASH: extension("sm_80 compute_80"),
            KERNEL: extension("sm_120 sm_90a sm_90 sm_100f", "sm_120f compute_90 compute_80"),
            "vllm/spinloop.abi3.so": elf({".text": bytes(8)}),
            "vllm/broken.so": b"nothing",
        },
        CUDA_VERSION="13.0.2",
    )

    assert list(found.lines()) == [
        f"{KERNEL}: sm_90, sm_90a, sm_100f, sm_120, sm_120f, compute_80, compute_90",
        "vllm/broken.so: not an ELF file",
        f"{FLASH}: sm_80, compute_80",
        "CUDA 13.0 (the image says 13.0.2), torch 2.11.0, driver >=580.65.06",
    ]
    as_json = json.loads(json.dumps(found.as_json()))
    kernels, broken, *_ = as_json.pop("extensions")
    assert kernels == {
        "name": KERNEL,
        "architectures": ["sm_90", "sm_90a", "sm_100f", "sm_120", "sm_120f"],
        "ptx": ["compute_80", "compute_90"],
        "fat_binaries": 2,
        "problem": None,
    }
    nothing: dict[str, object] = {"name": "vllm/broken.so", "architectures": [], "ptx": [], "fat_binaries": 0}
    assert broken == {**nothing, "problem": "cannot read extension: vllm/broken.so: not an ELF file"}
    drivers = {"driver": ">=580.65.06", "ptx_driver": ">=580"}
    assert as_json == {"cuda": "13.0", "image_cuda": "13.0.2", "torch": "2.11.0", **drivers}


ENDLESS = "9" * 5000
LATER = elf({".nv_fatbin": box(entry("sm_80") + entry("compute_80", isa=(8, 8)))}, ["libcudart.so.12"])


@pytest.mark.parametrize(
    ("data", "said", "last"),
    [
        # PTX of a later minor release needs a newer driver than its machine code.
        (LATER, "", "CUDA 12.9, torch 2.11.0, driver >=525.60.13, >=575 where it compiles PTX"),
        (
            extension("sm_80", needed=["libcudart.so.9", "libcudart.so.12", "libc.so.6"]),
            "",
            "CUDA 12, torch 2.11.0, driver >=525.60.13",
        ),
        (b"", "12.9.1", "CUDA unknown (the image says 12.9.1), torch 2.11.0, driver >=525.60.13"),
        (extension("sm_80", needed=[f"libcudart.so.{ENDLESS}"]), "", "CUDA unknown, torch 2.11.0, driver unknown"),
        (b"", ENDLESS, f"CUDA unknown (the image says {ENDLESS}), torch 2.11.0, driver unknown"),
    ],
    ids=["later PTX", "by the library", "by the environment", "too many digits", "a variable of too many digits"],
)
def test_cuda_and_drivers(data: bytes, said: str, last: str) -> None:
    found = look({KERNEL: data} if data else {}, **({"CUDA_VERSION": said} if said else {}))

    assert [*found.lines()][-1] == last


@pytest.mark.parametrize(
    ("line", "torch"),
    [
        ("torch==2.14.0", "2.14.0"),
        ("torch>=2.9,<3", "<3,>=2.9"),
        *(("torch", ""), ("torch==2.9; extra == 'cpu'", ""), ("torch ==(", ""), ("torchvision==0.1", "")),
    ],
)
def test_the_required_torch(line: str, torch: str) -> None:
    assert look({}, torch=line).torch == torch
    assert survey([], None, {}).torch == ""


def test_unknown_ptx_versions() -> None:
    assert fatbin.compiling_driver([(9, 0), (99, 0)]) == ">610"
    assert fatbin.release_of([(99, 0)]) == ""
    assert fatbin.compiling_driver([(6, 5)]) == ""
    known = [(7, minor) for minor in range(9)] + [(8, minor) for minor in range(9)] + [(9, minor) for minor in range(4)]
    branches = [int(fatbin.compiling_driver([version]).removeprefix(">=")) for version in known]
    assert branches == sorted({*branches}), "each version needs a newer driver"

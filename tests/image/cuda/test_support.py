"""Whether a GPU is served, and by which files."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest
from vpatch.errors import Failure
from vpatch.image.architectures import Level, Survey, Verdict, lacking, survey, verdicts

from tests.image.cuda.fetching import extensions
from tests.image.cuda.making import box, elf, entry, extension, without_device_code
from tests.image.cuda.test_recorded import RELEASES, SMALL
from tests.image.standin import SITE

# The fat binaries of a few files of 0.20.2, one of each sort.
LIST = "sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120"
KERNELS = (
    *(LIST, "sm_90a", "compute_80 sm_80 compute_90 sm_90", "sm_75", "sm_100f sm_120f", "sm_89 sm_120"),
    "sm_90a sm_100f",
)
ROUTING = ("compute_80 sm_80", LIST, "sm_75", "sm_89 sm_120", "sm_90a sm_100f")
FILES = {
    "vllm/_C.abi3.so": extension(*KERNELS),
    "vllm/_moe_C.abi3.so": extension(*ROUTING),
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": extension("compute_80 sm_80"),
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": extension("sm_90a"),
    "vllm/_flashmla_C.abi3.so": extension("sm_90a sm_100f"),
    "vllm/cumem_allocator.abi3.so": elf({".text": bytes(8)}),
    "vllm/third_party/deep_gemm/_C.cpython-312-x86_64-linux-gnu.so": elf({".text": bytes(8)}),
}
LATER = {
    "vllm/_C.abi3.so": "vllm/_C_stable_libtorch.abi3.so",
    "vllm/_moe_C.abi3.so": "vllm/_moe_C_stable_libtorch.abi3.so",
}


def look(files: Mapping[str, bytes]) -> Survey:
    return survey(((name, io.BytesIO(data)) for name, data in files.items()), None, {})


def told(files: Mapping[str, bytes], arch: str = "sm_120") -> list[str]:
    return [str(problem) for problem in lacking(look(files), arch)]


def test_the_verdict_of_each_file() -> None:
    found = verdicts(look(FILES), "12.0")

    assert {(one.name.rpartition("/")[2], one.level) for one in found} == {
        ("_C.abi3.so", Level.OK),
        ("_moe_C.abi3.so", Level.OK),
        ("_vllm_fa2_C.abi3.so", Level.JIT),
        ("_vllm_fa3_C.abi3.so", Level.OTHERS),
        ("_flashmla_C.abi3.so", Level.OTHERS),
        ("cumem_allocator.abi3.so", Level.NOTHING),
        ("_C.cpython-312-x86_64-linux-gnu.so", Level.NOTHING),
    }
    because = {one.name: one.because for one in found}
    assert "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so: others: for sm_90a only" in map(str, found)
    assert because["vllm/_C.abi3.so"] == (
        "3 of 7 fat binaries run: sm_120, sm_120f; 1 of 7 fat binaries by JIT (driver >=580): compute_80, compute_90"
    )
    assert because["vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so"] == (
        "1 of 1 fat binaries by JIT (driver >=580): compute_80"
    )
    assert because["vllm/_flashmla_C.abi3.so"] == "for sm_90a, sm_100f only"
    assert lacking(look(FILES), "12.0") == ()


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"])
def test_the_architectures_of_the_release_are_served(arch: str) -> None:
    assert told(FILES, arch) == []
    assert told({LATER.get(name, name): data for name, data in FILES.items()}, arch) == []


def test_a_gpu_that_only_special_kernels_are_built_for_is_not_served() -> None:
    assert told(FILES, "sm_110") == [
        f"lacks sm_110: vllm/{name}: nothing for it in 1 of {count} fat binaries: {LIST.replace(' ', ', ')}"
        for name, count in (("_C.abi3.so", len(KERNELS)), ("_moe_C.abi3.so", len(ROUTING)))
    ]


def test_older_than_flash_attention_needs_none() -> None:
    found = verdicts(look(FILES), "sm_75")

    assert Verdict("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", Level.OTHERS, "for compute_80, sm_80 only") in found
    assert told({name: data for name, data in FILES.items() if "flash_attn" not in name}, "sm_75") == []


BUILT = {
    "before Blackwell": ("sm_80 sm_90", ["lacks sm_120"]),
    "before Blackwell, special kernels with PTX": ("sm_90; compute_80 sm_80 compute_90 sm_90", ["lacks sm_120"]),
    "before Blackwell, with PTX": ("sm_80 sm_90 compute_90; sm_90a; sm_75", []),
    "PTX alone": ("compute_90", []),
    "PTX bound to Hopper": ("sm_90 compute_90a", ["lacks sm_120"]),
    "PTX of a newer GPU": ("sm_90 compute_121", ["lacks sm_120"]),
    "for this GPU alone": ("sm_120; compute_80 sm_80; sm_120f", []),
    "bound to this GPU": ("sm_120a", []),
    "for its family": ("sm_120f", []),
    "for the next one": ("sm_121", ["lacks sm_120"]),
    "bound to this family, and other kernels to others": ("sm_90a; sm_100f; sm_120f", []),
    "bound to others": ("sm_90a; sm_100f", ["lacks sm_120"]),
}


@pytest.mark.parametrize("name", BUILT)
def test_how_the_kernels_may_have_been_built(name: str) -> None:
    binaries, expected = BUILT[name]
    problems = lacking(look({**FILES, "vllm/_C.abi3.so": extension(*binaries.split("; "))}), "sm_120")

    assert [problem.what for problem in problems] == expected
    assert all(problem.where == "vllm/_C.abi3.so" for problem in problems)


def test_an_unlisted_extension_fails_only_if_it_is_for_any_gpu() -> None:
    assert told({**FILES, "vllm/_new_C.abi3.so": extension("sm_90a sm_100f")}) == []
    assert told({**FILES, "vllm/_new_C.abi3.so": extension("sm_80 sm_90")}) == [
        "lacks sm_120: vllm/_new_C.abi3.so: nothing for it in 1 of 1 fat binaries: sm_80, sm_90"
    ]


def test_machine_code_runs_before_ptx() -> None:
    found = verdicts(look({"vllm/_C.abi3.so": extension("sm_120 compute_120", "sm_90 compute_90")}), "sm_120")

    assert str(found[0]) == (
        "vllm/_C.abi3.so: ok: 1 of 2 fat binaries run: sm_120; 1 of 2 fat binaries by JIT (driver >=580): compute_90"
    )


def test_ptx_that_any_driver_compiles() -> None:
    data = elf({".nv_fatbin": box(entry("compute_80", isa=(6, 5)))})

    assert str(verdicts(look({"vllm/_C.abi3.so": data}), "sm_120")[0]) == (
        "vllm/_C.abi3.so: jit: 1 of 1 fat binaries by JIT (driver any): compute_80"
    )


def test_missing_needed_files() -> None:
    assert told({}) == [
        "lacks sm_120: vllm/_C*.so: no such file: vLLM's kernels",
        "lacks sm_120: vllm/_moe_C*.so: no such file: the kernels of mixtures of experts",
        "lacks sm_120: vllm/vllm_flash_attn/_vllm_fa2_C*.so: no such file: FlashAttention 2",
    ]


def test_a_needed_file_without_device_code() -> None:
    assert told({**FILES, "vllm/_moe_C.abi3.so": without_device_code()}) == [
        "lacks sm_120: vllm/_moe_C.abi3.so: no device code in it"
    ]


def test_a_file_that_cannot_be_read() -> None:
    assert told({**FILES, "vllm/_flashmla_C.abi3.so": b"MZ"}) == [
        "lacks sm_120: vllm/_flashmla_C.abi3.so: not an ELF file"
    ]


def test_names_with_folders() -> None:
    assert told({f"{SITE}/{name}": data for name, data in FILES.items()}) == []


def test_an_invalid_gpu_is_refused() -> None:
    with pytest.raises(Failure, match=r"^not a GPU architecture: 5090: it reads like sm_120 or 12\.0"):
        lacking(look(FILES), "5090")


def real(release: str, names: set[str]) -> Survey:
    opened = []
    try:
        for name, path in extensions(release, names).items():
            opened.append((name, path.open("rb")))
        return survey(opened, None, {})
    finally:
        for _, file in opened:
            file.close()


def test_the_smaller_files_of_a_real_release() -> None:
    found = real("0.20.2", SMALL)

    assert [(one.name, one.level) for one in verdicts(found, "sm_120")] == [
        ("vllm/_C_stable_libtorch.abi3.so", Level.OK),
        ("vllm/_flashmla_C.abi3.so", Level.OTHERS),
        ("vllm/_flashmla_extension_C.abi3.so", Level.OTHERS),
        ("vllm/_moe_C.abi3.so", Level.OK),
        ("vllm/cumem_allocator.abi3.so", Level.NOTHING),
        ("vllm/third_party/deep_gemm/_C.cpython-312-x86_64-linux-gnu.so", Level.NOTHING),
        ("vllm/vllm_flash_attn/_vllm_fa2_C*.so", Level.LACKS),
    ]
    assert [problem.where for problem in lacking(found, "sm_110")] == [
        "vllm/_C_stable_libtorch.abi3.so",
        "vllm/_moe_C.abi3.so",
        "vllm/vllm_flash_attn/_vllm_fa2_C*.so",
    ]
    assert (found.cuda, found.driver, found.ptx_driver) == ("13.0", ">=580.65.06", ">=580")


@pytest.mark.deep
@pytest.mark.parametrize("release", RELEASES)
def test_a_whole_real_release_serves_an_rtx_5090(release: str) -> None:
    found = real(release, {*RELEASES[release]["files"]})

    assert lacking(found, "sm_120") == ()
    said = {one.name: one.level for one in verdicts(found, "sm_120")}
    assert said["vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so"] is Level.JIT
    assert said["vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"] is Level.OTHERS
    assert [one for one in said.values() if one is Level.OK]
    assert len(lacking(found, "sm_110")) >= 2

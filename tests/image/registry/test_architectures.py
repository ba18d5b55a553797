"""`--require-arch`: with and without an engine, extensions are checked, and a base that lacks the GPU is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.image.registry.tar import LARGE

from tests.conftest import Program, Trees
from tests.image.cuda.making import extension
from tests.image.registry.conftest import Refused
from tests.image.registry.images import Base, parents, put_base
from tests.image.standin import ONE, SITE, archive

FLASH = "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so"


@pytest.fixture
def compiled(registry: str, layers: list[bytes], slim: Trees, tmp_path: Path) -> Callable[[str], Base]:
    """`compiled("sm_90 sm_120")`: a base whose kernels are built for these."""

    def make(carried: str) -> Base:
        tree = shutil.copytree(slim("0.20.2"), tmp_path / "tree")
        kernels = extension(carried) + bytes(LARGE)  # too large to be kept in memory
        files = {"vllm/_C.abi3.so": kernels, "vllm/_moe_C.abi3.so": kernels, FLASH: extension("compute_80 sm_80")}
        for path, content in files.items():
            (tree / path).parent.mkdir(exist_ok=True)
            (tree / path).write_bytes(content)
        vllm = archive(tmp_path / "vllm.tar", *parents(tmp_path), (tree, SITE)).read_bytes()
        return put_base(registry, [layers[0], vllm, layers[2]], "compiled/base:x")

    return make


@pytest.mark.deep
@pytest.mark.parametrize("way", [(), ("--registry", "--tag", "HOST/compiled/patched:x")], ids=["engine", "registry"])
@pytest.mark.usefixtures("engine")
def test_the_extensions_decide(
    vpatch: Program, refused: Program, registry: str, compiled: Callable[[str], Base], way: tuple[str, ...]
) -> None:
    base = compiled("sm_90 sm_120")
    more = [*ONE, "--no-test", "--json", *(word.replace("HOST", registry) for word in way)]
    served = vpatch("build", "--base", base.name, "--require-arch", "sm_120", *more)

    assert served.code == 0, served.err
    says = {one["name"]: one["says"] for one in served.json["cuda"]["required"]["sm_120"]}
    assert says == {"vllm/_C.abi3.so": "ok", "vllm/_moe_C.abi3.so": "ok", FLASH: "jit"}
    assert any(note.startswith(f"sm_120: {FLASH}: jit: ") for note in served.json["notes"])

    lacking = refused("build", "--base", base.name, "--require-arch", "sm_100", *more)
    assert lacking.json["image"] is None
    assert {problem["file"] for problem in lacking.json["problems"]} >= {"vllm/_C.abi3.so", "vllm/_moe_C.abi3.so"}


def test_a_base_without_extensions(refused_on: Refused, registry: str, layers: list[bytes]) -> None:
    base = put_base(registry, layers, "bare/base:x")
    ran = refused_on(base.name, "--require-arch", "12.0", "--json")

    assert "vllm/_C*.so" in {problem["file"] for problem in ran.json["problems"]}

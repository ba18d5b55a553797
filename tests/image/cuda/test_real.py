"""Real releases: vpatch reads in their extensions what NVIDIA's `cuobjdump` lists, and finds which GPUs they serve."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from contextlib import ExitStack

import pytest
from vpatch.gpu.fatbin import DeviceCode, Form, read
from vpatch.gpu.fitness import Served, fitness, lacking, survey

from tests.image.cuda.record import RECORDS, extensions

pytestmark = pytest.mark.deep

RELEASES = {path.stem: json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))}


def counted(images: list[DeviceCode], form: Form, without: str = " ") -> Counter[str]:
    return Counter(f"sm_{image.arch}".rstrip(without) for image in images if image.form is form)


@pytest.mark.parametrize("release", RELEASES)
def test_read_agrees_with_cuobjdump(release: str) -> None:
    for name, path in extensions(release, RELEASES[release]["files"]).items():
        said = RELEASES[release]["files"][name]
        with path.open("rb") as file:
            digest = base64.urlsafe_b64encode(hashlib.file_digest(file, "sha256").digest()).decode().rstrip("=")
            assert digest == said["sha256"], f"{name}: another file than was recorded"
            binaries, _ = read(name, file)
        images = [image for binary in binaries for image in binary]

        assert counted(images, Form.CUBIN) == said["elf"], name
        assert counted(images, Form.PTX) == said["ptx"] == said["list_ptx"], name
        # `--list-elf` makes a file name of each, in which it leaves out the letter of a family.
        assert counted(images, Form.CUBIN, without="f") == said["list_elf"], name


@pytest.mark.parametrize("release", RELEASES)
def test_an_rtx_5090_is_served(release: str) -> None:
    with ExitStack() as opened:
        paths = extensions(release, RELEASES[release]["files"])
        files = [(name, opened.enter_context(path.open("rb"))) for name, path in paths.items()]
        found = survey(files, None, {})

    assert lacking(found, "sm_120") == ()
    levels = {one.name: one.level for one in fitness(found, "sm_120")}
    assert levels["vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so"] is Served.JIT
    assert levels["vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"] is Served.OTHERS
    assert Served.OK in levels.values()
    assert len(lacking(found, "sm_110")) >= 2
    if release == "0.20.2":
        assert (found.cuda, found.driver, found.ptx_driver) == ("13.0", ">=580.65.06", ">=580")

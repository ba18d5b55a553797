"""Sizes of weights: from true and from false headers, from an index, and from a given number."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from vpatch.errors import Failure
from vpatch.plan import GIB, Weights
from vpatch.plan.checkpoint import read
from vpatch.plan.checkpoint_files import tensor_sizes

from tests.failures import problem_of, problems_of
from tests.plan.configs import file, header, named
from tests.plan.examples import weights_of

CONFIG = named("Qwen3_5ForConditionalGeneration", mtp_num_hidden_layers=1)
FIRST = {
    "model.language_model.embed_tokens.weight": ("BF16", [100, 8]),
    "model.language_model.layers.0.mlp.up_proj.weight": ("BF16", [8, 8]),
    "model.language_model.layers.0.mlp.up_proj.weight_scale": ("F32", [1]),
    "language_model.model.layers.1.mlp.up_proj.weight": ("BF16", [8, 4]),
    "model.layers.2.mlp.up_proj.bias": ("U8", [0]),
    "model.layers.3.mlp.up_proj.weight": ("U8", [5]),
    "model.visual.blocks.0.attn.qkv.weight": ("BF16", [30]),
}
SECOND = {
    "lm_head.weight": ("F8_E4M3", [100, 8]),
    "lm_head.weight_scale": ("F32", [1, 1]),
    "mtp.layers.0.mlp.up_proj.weight": ("BF16", [7]),
    "model.layers.4.eh_proj.weight": ("BF16", [3]),
    "model.language_model.norm.weight": ("BF16", [8]),
}
MEASURED = Weights((132, 64, 0, 5), 1600, 804, 16, 60, 14 + 6, "the headers of 2 safetensors files")


def checkpoint(folder: Path, config: dict[str, Any] = CONFIG, **files: bytes) -> Path:
    """Write a checkpoint; in names of files, `_` stands for `.`."""
    (folder / "config.json").write_text(json.dumps(config))
    for name, data in files.items():
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder


def index(total: Any = 10**9, **files: dict[str, Any]) -> bytes:
    names = {tensor: f"{name}.safetensors" for name, named in files.items() for tensor in named}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": names}).encode()


def test_headers_have_the_exact_size_of_every_part(tmp_path: Path) -> None:
    checkpoint(tmp_path, a_safetensors=file(header(FIRST)), b_safetensors=file(header(SECOND)))
    before = sorted(tmp_path.iterdir())

    weights = weights_of(read(tmp_path))

    assert weights == MEASURED
    assert weights.exact
    assert weights.loaded == sum((132, 64, 5, 1600, 804, 76))
    assert sorted(tmp_path.iterdir()) == before

    # Of more files, those that the index names.
    checkpoint(tmp_path, c_safetensors=b"not one", model_safetensors_index_json=index(a=FIRST, b=SECOND))
    assert read(tmp_path).weights == MEASURED


def test_a_tied_head_is_not_loaded(tmp_path: Path) -> None:
    tied = named("Qwen3_5ForConditionalGeneration", tie_word_embeddings=True)
    checkpoint(tmp_path, tied, a_safetensors=file(header(FIRST | SECOND)))

    weights = weights_of(read(tmp_path))
    assert (weights.head, weights.embedding) == (0, 1600)


def tensor(first: int, last: int, dtype: str = "U8", size: int = 4) -> dict[str, Any]:
    """Return what a header says of a tensor of one dimension."""
    return {"dtype": dtype, "shape": [size], "data_offsets": [first, last]}


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ((0, 1, 3), "no tensor of layer 2 in the headers of 1 safetensors file, and num_hidden_layers is 4"),
        ((0, 1, 2, 3, 4), "tensors of layer 4 in the headers of 1 safetensors file, and num_hidden_layers is 4"),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path: Path, layers: tuple[int, ...], says: str) -> None:
    made: dict[str, tuple[str, list[int]]] = {f"model.layers.{n}.mlp.up_proj.weight": ("BF16", [7]) for n in layers}
    checkpoint(tmp_path, named("Qwen3ForCausalLM"), a_safetensors=file(header(made)))

    assert problem_of(read, tmp_path).cause == says


HUGE = tensor(0, 4) | {"shape": [10**9] * 10_000}
NO_ORDER = "a does not have a dtype, a shape and two offsets in order"


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "the file is cut short: 0 bytes with a header of 0"),
        (b"\1\0\0", "the file is cut short: 3 bytes with a header of 1"),
        (file(header(FIRST))[:40], "the file is cut short: 40 bytes with a header of"),
        (file(header(FIRST))[:-1], "the file is cut short: 1,860 of 1,861 bytes"),
        (b"\xff" * 8 + b"{}", "the file is cut short: 10 bytes with a header of 18,446,744"),
        ((5).to_bytes(8, "little") + b"hello", "it is not JSON"),
        ((2).to_bytes(8, "little") + b"[]", "its JSON is a list, not an object"),
        (file({"a": tensor(0, 4), "b": tensor(2, 6)}), "b begins at 2, inside the end at 4"),
        (file({"a": tensor(0, 4), "b": tensor(6, 10)}), "b begins at 6, after the end at 4"),
        (file(header(FIRST), 2000), "139 bytes belong to no tensor"),
        (file({"a": tensor(0, 4, "BF16")}), "a takes 4 bytes, BF16 of its shape takes 8"),
        (file({"a": tensor(0, 8, "BF16", -4)}), "a has a shape that no tensor has"),
        (file({"a": tensor(4, 0)}, 4), NO_ORDER),
        (file({"a": None}, 0), NO_ORDER),
        (file({"a" * 999: None, "b": None}, 0), "a" * 97 + "... does not have"),
        (file({"a": HUGE}, 4), "a takes 4 bytes, U8 of its shape takes 1125899906842624"),
    ],
    ids=range(16),
)
def test_a_false_header_is_one_problem(data: bytes, cause: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, a_safetensors=data, b_safetensors=file(header(SECOND)))

    problem = problem_of(read, tmp_path)

    assert problem.where == str(tmp_path / "a.safetensors")
    assert cause in problem.cause


def test_every_wrong_file_is_reported_at_once(tmp_path: Path) -> None:
    checkpoint(tmp_path, a_safetensors=b"", b_safetensors=b"", c_safetensors=file(header(FIRST)))

    assert [Path(problem.where).name for problem in problems_of(read, tmp_path)] == ["a.safetensors", "b.safetensors"]


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(checkpoint(tmp_path) / "a.safetensors")
    (tmp_path / "b.safetensors").mkdir()

    causes = [problem.cause for problem in problems_of(read, tmp_path)]
    assert causes == ["not a regular file", "Is a directory"]


def test_a_header_that_is_too_long_is_not_read() -> None:
    def read(start: int, count: int) -> bytes:
        assert (start, count) == (0, 8)
        return (10**9).to_bytes(8, "little")

    line = str(problem_of(tensor_sizes, read, 1 << 40, "x"))
    assert line.startswith("wrong safetensors header: x: it is 1,000,000,000 bytes long")


def test_a_file_that_ends_while_it_is_read_is_a_problem() -> None:
    with pytest.raises(Failure, match="it ends after 0 of 5 bytes"):
        tensor_sizes(lambda start, count: (5).to_bytes(8, "little") if count == 8 else b"", 100, "x")


def test_an_unknown_dtype_is_measured_by_its_offsets(tmp_path: Path) -> None:
    data = file({"lm_head.weight": tensor(0, 9, "F2_NEW")})

    assert weights_of(read(checkpoint(tmp_path, a_safetensors=data))).head == 9


@pytest.mark.parametrize("total", [10**9, 1e9])
def test_an_index_alone_gives_the_total_split_by_shape(total: float, tmp_path: Path) -> None:
    estimate = weights_of(read(checkpoint(tmp_path)))
    weights = weights_of(read(checkpoint(tmp_path, model_safetensors_index_json=index(total, a=FIRST, b=SECOND))))

    assert weights.loaded + weights.draft == 10**9
    assert not weights.exact
    assert "split by the shapes in the config; 2 of 2 files are not there" in weights.source
    ratio = 10**9 / (estimate.loaded + estimate.draft)
    for part in ("embedding", "head", "draft"):
        assert getattr(weights, part) == pytest.approx(getattr(estimate, part) * ratio, rel=1e-6)


def test_an_index_without_draft_layers_or_without_a_total(tmp_path: Path) -> None:
    estimate = read(checkpoint(tmp_path)).weights
    weights = weights_of(read(checkpoint(tmp_path, model_safetensors_index_json=index(a=FIRST))))

    assert (weights.draft, weights.loaded) == (0, 10**9)
    assert read(checkpoint(tmp_path, model_safetensors_index_json=index(None, a=FIRST))).weights == estimate


NO_MAP = "weight_map does not give a safetensors file for each tensor"


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (index(-1, a=FIRST), "metadata.total_size is -1, not 1 to"),
        (index(10**20, a=FIRST), "metadata.total_size is 100000000000000000000, not 1 to"),
        (index(0.5, a=FIRST), "metadata.total_size is 0.5"),
        (b'{"metadata": {}}', NO_MAP),
        (b'{"weight_map": {"a": 1}}', NO_MAP),
        (b'{"weight_map": {"a": "../other/a.safetensors"}}', NO_MAP),
        (b"[]", "its JSON is a list, not an object"),
    ],
)
def test_a_wrong_index_is_refused(data: bytes, cause: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, model_safetensors_index_json=data)

    assert problem_of(read, tmp_path).cause.startswith(cause)


def test_a_given_size_overrides_the_files(tmp_path: Path) -> None:
    checkpoint(tmp_path, a_safetensors=file(header(FIRST)))
    weights = weights_of(read(tmp_path, weights_gib=21.88))

    assert weights.loaded == round(21.88 * GIB)
    assert weights.source == "21.88 GiB as given, split by the shapes in the config"
    assert min(weights.layers) > 0


@pytest.mark.parametrize("gib", [0, -1, math.nan, math.inf, 1e9])
def test_an_impossible_size_is_refused(gib: float, tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"wrong value: --weights-gib: .* is not above 0, and 1,048,576 at most"):
        read(checkpoint(tmp_path), weights_gib=gib)


def test_weights_of_an_unknown_architecture_are_in_its_layers(tmp_path: Path) -> None:
    config = {"architectures": ["New"], "num_hidden_layers": 3, "num_attention_heads": 2, "hidden_size": 64}

    assert read(checkpoint(tmp_path, config)).weights is None
    weights = weights_of(read(tmp_path, weights_gib=1))
    assert (weights.loaded, weights.layers) == (GIB, (GIB // 3,) * 3)

"""The recorded models, and how `--model` finds one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vpatch.plan import GIB, models
from vpatch.plan.checkpoint import model_of
from vpatch.plan.models import load

from tests.failures import problem_of
from tests.plan.configs import named
from tests.plan.examples import weights_of
from tests.validation.cpu.models import CONFIGS

NAMES = {
    "inferRouter/Qwen3.6-35B-A3B-NVFP4": ["main", "fp8-head"],
    "inferRouter/Qwen3.6-27B-NVFP4": ["main", "fp8-head"],
    "ig1/Qwen3.5-35B-A3B-NVFP4": ["main"],
    "Qwen/Qwen3.5-35B-A3B": ["main"],
    "Qwen/Qwen3.5-27B": ["main"],
    "Qwen/Qwen3.6-35B-A3B": ["main"],
    "Qwen/Qwen3.6-27B": ["main"],
    "rdtand/Qwen3.5-27B-NVFP4-DeltaNet-Included": ["main"],
}


@pytest.fixture(autouse=True)
def _no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def test_the_models_of_the_presets_are_recorded() -> None:
    found: dict[str, list[str]] = {}
    for one in models.recorded():
        found.setdefault(one.name, []).append(one.revision)

    assert found == NAMES


@pytest.mark.parametrize("one", models.recorded(), ids=lambda one: f"{one.name}@{one.revision}")
def test_a_recorded_model_is_whole(one: models.Recorded) -> None:
    model = load(one.name, one.revision)
    shape = model_of(CONFIGS["35B" if "35B" in one.name else "27B"], "tests", name="the same shape")

    assert (model.name, model.revision, model.unknown) == (one.name, one.revision, ())
    for part in ("layers", "attention", "state", "vocab_size", "max_position_embeddings", "draft_layers"):
        assert getattr(model, part) == getattr(shape, part), part
    assert (model.quantization is None) == ("NVFP4" not in one.name)
    assert model.head == ("fp8-block" if one.revision == "fp8-head" else None)
    assert not weights_of(model).exact
    assert one.source
    assert all(text.endswith(".") for text in one.source)


def test_estimates_are_close_to_what_the_model_card_gives() -> None:
    revisions = models.recorded_revisions("qwen3.6-35b-a3b-nvfp4")
    main, fp8 = (weights_of(model_of(one.config, "x", name="x")) for one in revisions)
    bf16 = weights_of(load("Qwen/Qwen3.6-35B-A3B"))

    # The card: 21.88 and 21.40 GiB loaded, 0.48 apart; about 67 GiB in bf16, and 1.6 GB of MTP beside.
    assert main.loaded / GIB == pytest.approx(21.88, rel=0.01)
    assert fp8.loaded / GIB == pytest.approx(21.40, rel=0.01)
    assert (main.loaded - fp8.loaded) / GIB == pytest.approx(0.48, abs=0.01)
    assert (bf16.loaded + bf16.draft) / GIB == pytest.approx(67, abs=0.1)
    assert main.draft / 1e9 == pytest.approx(1.65, abs=0.05)
    assert (main.layers, main.draft) == (fp8.layers, bf16.draft)


def test_what_the_model_card_gives_is_what_is_loaded() -> None:
    for revision, gib in (("main", 21.88), ("fp8-head", 21.40)):
        weights = weights_of(load("inferRouter/Qwen3.6-35B-A3B-NVFP4", revision))
        assert weights.loaded == round(gib * GIB)
        assert weights.source == f"{gib} GiB as recorded, split by the shapes in the config"

    assert weights_of(load("Qwen3.6-35B-A3B-NVFP4", weights_gib=30)).loaded == 30 * GIB


@pytest.mark.parametrize("name", ["qwen3.6-27b-nvfp4", "INFERROUTER/QWEN3.6-27B-NVFP4"])
def test_a_name_may_be_short_and_in_any_case(name: str) -> None:
    assert (load(name).name, load(name).revision) == ("inferRouter/Qwen3.6-27B-NVFP4", "main")


def test_an_ambiguous_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    one = models.recorded()[0]
    other = models.Recorded("else/" + one.name.partition("/")[2], "main", (), one.config)
    monkeypatch.setattr(models, "recorded", lambda: (one, other))

    assert models.recorded_revisions(one.name) == (one,)
    assert models.recorded_revisions(one.name.partition("/")[2]) == ()


@pytest.mark.parametrize("name", ["nobody/nothing", "nothing", "", "a/b/c", "../..", "x" * 5000, "a\0b"])
def test_an_unknown_model_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "../..":
        name = "no/../such"

    problem = problem_of(load, name)
    assert (problem.what, problem.where) == ("no such model", name[:200])
    assert problem.reason.startswith("neither a path, nor recorded, nor in the local cache; known: Qwen/")
    assert problem.reason.endswith("; --download reads it from the hub")
    assert all(one in problem.hint for one in NAMES)


def test_a_revision_that_is_not_recorded_is_refused() -> None:
    problem = problem_of(load, "Qwen3.6-35B-A3B-NVFP4", "fp8-head-embed")
    assert (problem.what, problem.where) == ("no such revision", "Qwen3.6-35B-A3B-NVFP4 (fp8-head-embed)")
    assert problem.reason == "recorded are main, fp8-head; --download reads it from the hub"


def test_a_path_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "Qwen" / "Qwen3.6-27B"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(named("LlamaForCausalLM")))

    assert load("Qwen/Qwen3.6-27B").architecture == "LlamaForCausalLM"
    assert load("Qwen3.6-27B").architecture == "Qwen3_5ForConditionalGeneration"


def test_a_parent_folder_has_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container mounts the folder under its last part: `/models/..` would be the root."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(named("LlamaForCausalLM")))
    monkeypatch.chdir(tmp_path / "inner")

    assert load("..").name == str(tmp_path.resolve())


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)

    assert models.cached_folder("a/b", None) is None

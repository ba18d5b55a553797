"""Models from the local cache, and, with `download`, from a hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vpatch.errors import Problem
from vpatch.installation import how_to_add
from vpatch.plan import GIB, Model, checkpoint_files, models
from vpatch.plan.models import load

from tests.failures import problem_of, problems_of
from tests.plan.configs import file, header, named
from tests.plan.examples import weights_of
from tests.plan.hub_server import COMMIT, NAME, Hub, hub
from tests.plan.test_weights import CONFIG, FIRST, MEASURED, SECOND, index
from tests.processes import printed

__all__ = ["hub"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an empty cache, and hide the caller's settings."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGINGFACE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


FOLDER = f"models--{NAME.replace('/', '--')}"


def stored(cache: Path, commit: str, reference: str = "", **files: bytes) -> Path:
    folder = cache / FOLDER
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name, data in {"config_json": json.dumps(CONFIG).encode(), **files}.items():
        (snapshot / name.replace("_", ".")).write_bytes(data)
    if reference:
        (folder / "refs" / reference).parent.mkdir(parents=True, exist_ok=True)
        (folder / "refs" / reference).write_text(f"{commit}\n")
    return snapshot


def test_a_snapshot_in_the_cache_is_found_by_branch_tag_and_commit(cache: Path) -> None:
    stored(cache, COMMIT, "main", a_safetensors=file(header(FIRST)), b_safetensors=file(header(SECOND)))
    stored(cache, "f" * 40, "refs/pr/1")

    assert load(NAME).weights == MEASURED
    assert (load(NAME).name, load(NAME).revision) == (NAME, None)
    assert load(NAME, COMMIT).weights == MEASURED
    assert load(NAME, "refs/pr/1").revision == "refs/pr/1"
    assert load(NAME, "f" * 40).weights != MEASURED


@pytest.mark.parametrize("revision", ["v2", "0" * 40, "../../main", "/etc", "a b", ""])
def test_a_revision_missing_from_the_cache_is_refused(revision: str, cache: Path) -> None:
    stored(cache, COMMIT, "v1")

    line = str(problem_of(load, NAME, revision))
    assert line.startswith("no such model: somebody/Some-Model: neither a path, nor recorded, nor in")


@pytest.mark.parametrize("reference", [b"\xff\xfe", b"../../../.."])
def test_an_unreadable_reference_is_ignored(cache: Path, reference: bytes) -> None:
    stored(cache, COMMIT, "main")
    (cache / FOLDER / "refs/main").write_bytes(reference)

    assert models.cached_folder(NAME, None) is None


@pytest.mark.parametrize(
    ("wanted", "variables"),
    [
        ("/a", {"HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}),
        ("/b", {"HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}),
        ("/c/hub", {"HF_HOME": "/c", "XDG_CACHE_HOME": "/d"}),
        ("/d/huggingface/hub", {"XDG_CACHE_HOME": "/d"}),
        ("/e/.cache/huggingface/hub", {"HOME": "/e"}),
        ("/e/x", {"HOME": "/e", "HF_HUB_CACHE": "$HOME/x"}),
    ],
)
def test_the_cache_is_where_huggingface_hub_looks(
    wanted: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)

    assert str(checkpoint_files.cache_home()) == wanted
    assert printed("from huggingface_hub import constants; print(constants.HF_HUB_CACHE)").strip() == wanted


def publish(hub: Hub, config: Any = CONFIG) -> None:
    """Put a checkpoint of two files on the hub."""
    hub.files = {
        "config.json": json.dumps(config).encode(),
        "model.safetensors.index.json": index(a=FIRST, b=SECOND),
        "a.safetensors": file(header(FIRST)),
        "b.safetensors": file(header(SECOND)),
    }


def download(name: str = NAME, revision: str | None = None, weights_gib: float | None = None) -> Model:
    return load(name, revision, weights_gib=weights_gib, download=True)


def refused(name: str = NAME, revision: str | None = None) -> tuple[Problem, ...]:
    return problems_of(download, name, revision)


def test_the_hub_is_asked_only_with_download(hub: Hub) -> None:
    publish(hub)

    assert "--download reads it from the hub" in str(problem_of(load, NAME))
    assert hub.asked == []


def test_only_headers_are_downloaded_and_nothing_is_stored(hub: Hub, cache: Path) -> None:
    publish(hub)
    model = download()
    weights = weights_of(model)

    assert (*weights.layers, weights.head) == (*MEASURED.layers, MEASURED.head)
    assert weights.exact
    assert (model.name, model.revision) == (NAME, None)
    assert [name for name, span in hub.asked if span] == ["a.safetensors", "b.safetensors"]
    assert not cache.exists()


def test_a_long_header_takes_a_second_request_and_no_tensor(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(hub)
    monkeypatch.setattr(models, "FIRST", 64)
    hub.redirects = True

    assert weights_of(download()).loaded == MEASURED.loaded
    spans = [span for name, span in hub.asked if name == "a.safetensors"]
    length = int.from_bytes(hub.files["a.safetensors"][:8], "little")
    assert set(spans) == {"bytes=0-63", f"bytes=8-{length + 7}"}


def test_all_files_are_of_one_commit_and_requests_carry_the_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    publish(hub)
    hub.revisions = {"branch", COMMIT}

    assert download(revision="branch").revision == "branch"
    assert hub.tokens == {"Bearer hf_secret"}
    assert hub.of == ["branch", *[COMMIT] * 4]


def test_a_checkpoint_of_one_file_and_one_of_none(hub: Hub) -> None:
    publish(hub)
    hub.files["model.safetensors"] = file(header(FIRST | SECOND))
    del hub.files["model.safetensors.index.json"]
    assert weights_of(download()).layers == MEASURED.layers

    hub.files = {"config.json": json.dumps(CONFIG).encode()}
    assert not weights_of(download()).exact


def test_with_a_given_size_only_the_config_is_downloaded(hub: Hub) -> None:
    publish(hub)

    assert weights_of(download(weights_gib=2)).loaded == 2 * GIB
    assert {name for name, _ in hub.asked} == {"config.json", "hf_quant_config.json"}


def test_the_quantization_may_be_beside_the_config(hub: Hub, cache: Path) -> None:
    beside = json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}).encode()
    hub.files = {"config.json": json.dumps(named("LlamaForCausalLM")).encode(), "hf_quant_config.json": beside}
    assert download().quantization == "modelopt_fp4"

    snapshot = stored(cache, COMMIT, "main")
    (snapshot / "hf_quant_config.json").write_bytes(beside)
    assert load(NAME).quantization == "modelopt_fp4"


GATED = "it is gated, private or not there; accept its terms there and set HF_TOKEN"
OTHER = "the hub sends another part of it than was asked for"
NO_TEMPLATE = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"


def without(hub: Hub, name: str) -> None:
    del hub.files[name]


def answering(status: int, code: str = "", file: str = "config.json") -> Callable[[Hub], object]:
    return lambda hub: hub.refusals.update({file: (status, code)})


def setting(name: str, value: str) -> Callable[[Hub], object]:
    return lambda hub: setattr(hub, name, value)


MAIN = "config.json of somebody/Some-Model (main): "
FAULTS: dict[str, tuple[Callable[[Hub], object], str]] = {
    "gated": (answering(401, "GatedRepo"), f"{MAIN}the hub answers 401: {GATED}"),
    "private": (answering(403), f"{MAIN}the hub answers 403: {GATED}"),
    "no model": (answering(404, "RepoNotFound"), f"{MAIN}there is no such model"),
    "down": (answering(503), f"{MAIN}the hub answers 503"),
    "no config": (lambda hub: without(hub, "config.json"), ": it has no config.json"),
    "no JSON": (lambda hub: hub.files.update({"config.json": b"<html>"}), ": it is not JSON"),
    "no file": (lambda hub: without(hub, "a.safetensors"), ": the index names it, and it is not there"),
    "no header": (answering(500, file="b.safetensors"), "b.safetensors of somebody/Some-Model ("),
    "another range": (setting("ranges", "another"), f"): {OTHER}"),
    "no length": (setting("ranges", "unsaid"), f"): {OTHER}"),
    "endless": (setting("ranges", "endless"), ": the hub does not say how long it is"),
    "cut config": (setting("cut", "config.json"), "cannot download: config.json of somebody/Some-Model ("),
    "cut index": (setting("cut", "model.safetensors.index.json"), "model.safetensors.index.json of somebody/Some"),
    "cut header": (setting("cut", "a.safetensors"), "cannot download: a.safetensors of somebody/Some-Model ("),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_hub_does_wrong_is_reported(fault: str, hub: Hub) -> None:
    harm, says = FAULTS[fault]
    publish(hub)
    harm(hub)

    line = str(refused()[0])
    assert says in line
    assert "\n" not in line


def test_names_that_the_hub_does_not_have(hub: Hub) -> None:
    publish(hub)

    assert refused("nobody/nothing")[0].reason == f"the hub answers 401: {GATED}"
    assert refused(revision="v9")[0].cause == "there is no revision v9"
    assert refused("no-slash")[0].cause == "the hub has names of the form ORGANISATION/NAME only"
    # Of a recorded model, the hub may have more revisions.
    assert refused("Qwen3.6-27B", "next")[0].where == "config.json of Qwen/Qwen3.6-27B (next)"


def test_a_hub_without_ranges_is_read_from_the_beginning_only(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(hub)
    hub.ranges = "ignored"
    assert download().weights

    monkeypatch.setattr(models, "FIRST", 64)
    assert {problem.cause for problem in refused()} == {OTHER}, "every wrong file"
    monkeypatch.setattr(models, "CONFIG_BYTES", 5)
    assert refused()[0].cause == "it is longer than 5 bytes"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", NO_TEMPLATE)
    assert "refused" in refused()[0].cause


def test_without_huggingface_hub_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    (problem,) = refused()
    assert str(problem) == f"cannot download: huggingface_hub: not installed: {how_to_add('plan')}"


@pytest.mark.deep
def test_the_endpoint_of_the_user_is_used(hub: Hub, tmp_path: Path) -> None:
    publish(hub)
    script = f"from vpatch.plan.models import load; print(load({NAME!r}, download=True).weights.exact)"
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)

    assert (ran.stdout, ran.returncode) == ("True\n", 0), ran.stderr

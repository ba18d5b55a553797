"""What people see of a build and a test with an engine: phases while they run, then what came of them."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import docker
import pytest
from vpatch.cli.wording import MODEL
from vpatch.plan.deployment import NEWEST

from tests.conftest import Program, Trees
from tests.hybrid import ARG_UTILS, COUNT, HYBRID
from tests.image.conftest import Left, Small
from tests.image.standin import BASE, NOT_RUN, ONE, SITE, archive, layered
from tests.terminals import on_terminal

pytestmark = pytest.mark.usefixtures("engine", "base")

TAG = "try:seen"
BUILD = ("build", *ONE, "--base", BASE)
MANY = ("--overlay", HYBRID, *ONE)


def command_in(text: str) -> list[str]:
    """Return the words of the last command that an output asks to copy, without the program's name."""
    *_, last = re.findall(r"`vpatch ([^`]*)`", text)
    return shlex.split(last)


@pytest.fixture
def drifted(engine: docker.DockerClient, slim: Trees, tmp_path: Path, base: str) -> str:
    """A base with code that the hybrid overlay does not know, and others do."""
    text = (slim("0.20.2") / ARG_UTILS).read_text()
    changed = tmp_path / "changed" / ARG_UTILS
    changed.parent.mkdir(parents=True)
    changed.write_text(text.replace("if model_config.is_hybrid:", "if not model_config.is_attention_free:"))
    layered(engine, archive(tmp_path / "changed.tar", (tmp_path / "changed", SITE)), base, "try:drifted")
    return "try:drifted"


@pytest.mark.deep
def test_phases_are_seen_on_a_terminal_and_leave_no_trace(vpatch: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same files at the same time are the same image."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    quiet = vpatch(*BUILD, "--no-test", "--quiet")
    assert (quiet.code, quiet.err) == (0, "")
    assert re.fullmatch(r"sha256:[0-9a-f]{64}\n", quiet.out)
    read, write = os.pipe()
    seen = on_terminal(*BUILD, "--tag", TAG, stdout=write)
    os.close(write)
    with open(read) as stdout:  # noqa: PTH123 - a pipe
        assert stdout.read() == quiet.out

    assert seen.code == 0
    phases = ("looking for", "reading", "applying overlays", "loading the layer", "testing: files")
    for phase in (*phases, "testing: import of 2 modules", "testing: probe turboquant_skip_list"):
        assert phase in seen.raw
    first, table, receipt, *outcome = seen.screen
    assert (first, table) == (f"vLLM 0.20.2 in {BASE}", "  turboquant-skip-list  applied")
    assert re.fullmatch("  receipt: [0-9a-f]{64}", receipt)
    assert re.sub(r"[\d,]+ KiB", "N KiB", " ".join(map(str.strip, outcome)).replace("\\ ", "")) == (
        f"Built {TAG} on {BASE}: 1 overlay applied, N KiB added; tests: {NOT_RUN}. Run it: "
        f"`docker run --rm --gpus all --ipc=host -p 127.0.0.1:8000:8000 {TAG} {MODEL}`."
    )


@pytest.mark.deep
def test_failed_tests_are_listed_in_full(vpatch: Program, small: Small, python: str, left: Left) -> None:
    small("try:other", ("0.20.2", "usr/lib/python3.12/site-packages"), below=python)  # which it does not import
    before = left()
    order = ("build", *ONE, "--base", "try:other", "--tag", "try:never")
    ran, as_json = vpatch(*order), vpatch(*order, "--json")

    failures = [line for line in ran.err.splitlines() if line.startswith("  FAILED  ")]
    assert [line.split(":")[0] for line in failures] == [
        "  FAILED  interpreter",
        "  FAILED  import vllm._vpatch.turboquant_skip_list",
        "  FAILED  import vllm.engine.arg_utils",
        "  FAILED  probe turboquant_skip_list",
    ]
    outcome = ran.err.splitlines()[-1]
    assert outcome.startswith("Not built: 4 of 8 tests failed. Nothing was tagged. To look into it: `vpatch build ")
    assert (ran.code, ran.out, as_json.json["image"], left()) == (1, "", None, before)
    assert "  FAILED  interpreter: vllm/" in as_json.err
    assert vpatch(*command_in(outcome)).code == 0, "it is built without its tests"


@pytest.mark.deep
def test_a_refusal_names_the_overlays_that_fit(vpatch: Program, drifted: str, left: Left) -> None:
    before = left()
    ran = vpatch("build", *MANY, "--base", drifted, "--tag", TAG, "--no-test")
    *_, problem, outcome = ran.err.splitlines()

    assert (ran.code, ran.out, left()) == (1, "", before)
    assert problem.startswith(f"drifted: {ARG_UTILS} (")
    assert ran.err.count("drifted: ") == 1
    assert outcome.startswith(f"Nothing was built: {HYBRID} does not fit vLLM 0.20.2. To build with the others: ")
    again = command_in(outcome)
    assert again == ["build", "--base", drifted, *ONE, "--tag", TAG, "--no-test"]
    assert vpatch(*again).code == 0


@pytest.mark.deep
def test_several_images(vpatch: Program, drifted: str, tmp_path: Path) -> None:
    for name, base in (("good", BASE), ("bad", f"library/{drifted}")):
        text = f'base = "docker.io/{base}"\ntags = ["a.io/b:{name}"]\noverlays = ["{HYBRID}", "{ONE[1]}"]\n'
        (tmp_path / f"{name}.toml").write_text(f'{text}tests = ["files"]\n')
    bad = tmp_path / "bad.toml"
    ran, alone = vpatch("build", tmp_path / "good.toml", bad), vpatch("build", bad)

    assert (ran.code, ran.out.count("\n"), alone.code) == (1, 1, 1)
    assert "Built a.io/b:good on docker.io/vllm/vllm-openai:v0.20.2: " in ran.err
    assert f"Nothing was built: {HYBRID} does not fit vLLM 0.20.2." in ran.err
    assert ran.err.count("drifted: ") == 1
    last = f"Built 1 of 2 images; bad failed. To try again: `vpatch build {bad}`."
    assert ran.err.splitlines()[-1] == last
    assert alone.err.endswith(f' To build with the others, write `overlays = ["{ONE[1]}"]` in {bad}.\n')


@pytest.mark.deep
def test_nothing_to_build(vpatch: Program, small: Small) -> None:
    small("try:merged", ("0.33.0", SITE))
    order = ("build", *ONE, "--base", "try:merged")
    untagged, tagged = vpatch(*order), vpatch(*order, "--tag", "try:never")

    assert untagged.code == 0
    assert "Nothing to build: 1 overlay is merged upstream. Use try:merged as it is: " in untagged.err
    assert (tagged.code, tagged.out) == (1, "")
    *_, problem, outcome = tagged.err.splitlines()
    assert problem.startswith("nothing to build: try:merged: try:never is not set: every overlay is ")
    name = "To give the base that name: `docker tag try:merged try:never`."
    assert outcome == f"Nothing was built: 1 overlay is merged upstream. {name}"


@pytest.mark.parametrize("command", ["build", pytest.param("test", marks=pytest.mark.deep)])
def test_gpus_without_the_nvidia_runtime(vpatch: Program, left: Left, command: str) -> None:
    """The engine of the tests has none."""
    if command == "test":
        assert vpatch(*BUILD, "--tag", TAG, "--no-test").code == 0
    before = left()
    ran = vpatch(*BUILD, "--gpus") if command == "build" else vpatch("test", TAG, "--gpus")
    again = f"build --base {BASE} {' '.join(ONE)}" if command == "build" else f"test {TAG}"

    assert (ran.code, ran.out) == (1, "")
    assert "no NVIDIA runtime: docker engine: could not select device driver" in ran.err
    assert "install the NVIDIA Container Toolkit" in ran.err
    assert ran.err.endswith(
        f"{'Nothing was built' if command == 'build' else 'Not tested'}. Without GPUs: `vpatch {again}`.\n"
    )
    assert left() == before


@pytest.mark.deep
def test_inspect_fits_a_terminal(vpatch: Program) -> None:
    assert vpatch("build", "--base", BASE, "--tag", TAG, "--no-test", "--quiet").code == 0
    screen = on_terminal("inspect", TAG).screen

    assert screen[0].startswith(f"vLLM 0.20.2 in {TAG}, patched by vpatch ")
    assert "  turboquant-auto-dtype  not_applicable  this vLLM passes the cache dtype" in screen
    assert "  turboquant-skip-list   applied         2 files" in screen
    assert f"base: docker.io/{BASE}" in screen
    assert any(line.startswith(f"{COUNT} overlays applied, ") for line in screen)

    everything = on_terminal("inspect", TAG, "-v").screen
    long = "vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py"
    assert long in everything, "no word is broken"
    assert "      cache_dtype_str=self.cache_config.cache_dtype)`" in everything
    assert f"base.name: docker.io/{BASE}" in everything
    assert f"added in /{SITE}:" in everything


def test_images_that_nobody_has(vpatch: Program, engine: docker.DockerClient, registry: str) -> None:
    """The nearest tags of this image, else a few of them; of a misspelt image, one that is spelled like it."""
    ran = vpatch("inspect", f"{registry}/no/such:x")
    problem, outcome = ran.err.splitlines()
    assert ran.code == 2
    assert problem == f"cannot read: {registry}/no/such:x: no such image; check its name and its tag"
    build = f"`vpatch build --base vllm/vllm-openai:v{NEWEST} --tag {registry}/no/such:x`"
    assert outcome == f"Nothing to show: the engine does not have it. Build it with {build}."

    mine = f"{registry}/me/vllm"
    cases = (
        ("inspect", f"{mine}:nope", f"{mine}:latest or {mine}:v0.20.2"),
        ("test", f"{mine}:v0.20.22", f"{mine}:v0.20.2"),
        ("inspect", f"{registry}/me/vlm:latest", f"{mine}:latest"),
    )
    for tag in ("v0.20.2", "latest"):
        engine.api.tag(BASE, mine, tag)
    try:
        for command, name, meant in cases:
            assert f"did you mean {meant}?" in vpatch(command, name).err
    finally:
        for tag in ("v0.20.2", "latest"):
            engine.api.remove_image(f"{mine}:{tag}")

"""What people see of a build and a test with an engine: phases while they run, then what came of them."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import docker
import pytest

from tests.conftest import Process, Program, Trees
from tests.hybrid import ARG_UTILS, COUNT, HYBRID
from tests.image.conftest import Left, Small
from tests.image.standin import BASE, ONE, SITE, archive, layered
from tests.terminals import on_terminal

pytestmark = pytest.mark.usefixtures("engine", "base")

TAG = "try:seen"
NOT_RUN = "5 passed, 3 of 8 not run (the image lacks torch)"
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


def test_phases_are_seen_on_a_terminal_and_leave_no_trace(engine: docker.DockerClient) -> None:
    read, write = os.pipe()
    seen = on_terminal("build", *ONE, "--base", BASE, "--tag", TAG, stdout=write)
    os.close(write)
    with open(read) as stdout:  # noqa: PTH123 - a pipe
        assert stdout.read() == f"{engine.api.inspect_image(TAG)['Id']}\n"

    assert seen.code == 0
    phases = ("looking for", "reading", "applying overlays", "loading the layer", "testing: files")
    for phase in (*phases, "testing: import of 2 modules", "testing: probe turboquant_skip_list"):
        assert phase in seen.raw
    first, table, *outcome = seen.screen
    assert (first, table) == (f"vLLM 0.20.2 in {BASE}", "  turboquant-skip-list  applied")
    assert re.sub(r"[\d,]+ KiB", "N KiB", " ".join(map(str.strip, outcome)).replace("\\ ", "")) == (
        f"Built {TAG} on {BASE}: 1 overlay applied, N KiB added; tests: {NOT_RUN}. Run it: "
        f"`docker run --rm --gpus all --ipc=host -p 127.0.0.1:8000:8000 {TAG} MODEL`."
    )


def test_a_pipe_gets_no_phase(process: Process, engine_address: str) -> None:
    ran = process("build", *ONE, "--base", BASE, env={"DOCKER_HOST": engine_address})
    first, table, outcome = ran.err.splitlines()

    assert (ran.code, first, table) == (0, f"vLLM 0.20.2 in {BASE}", "  turboquant-skip-list  applied")
    short = ran.out.strip().removeprefix("sha256:")[:12]
    assert outcome.startswith(f"Built {short} (without a name) on {BASE}: ")
    assert f"Name it: `docker tag {short} NAME`." in outcome


def test_quiet(vpatch: Program) -> None:
    ran = vpatch("build", *ONE, "--base", BASE, "--quiet")

    assert (ran.code, ran.err) == (0, "")
    assert re.fullmatch(r"sha256:[0-9a-f]{64}\n", ran.out)


def test_verbose_lists_parts_and_tests(vpatch: Program) -> None:
    err = vpatch("build", *ONE, "--base", BASE, "-v").err

    assert "    order               applied  every change is in place, with its mark\n" in err
    assert "  passed  record: RECORD is true of them\n" in err
    assert "  not run import vllm.engine.arg_utils: the image lacks torch\n" in err


def test_without_tests(vpatch: Program) -> None:
    ran = vpatch("build", *ONE, "--base", BASE, "--tag", TAG, "--no-test")

    assert ran.err.endswith(f"; not tested. Test it in containers: `vpatch test {TAG}`.\n")


def test_an_image_is_tested_again(vpatch: Program) -> None:
    assert vpatch("build", *ONE, "--base", BASE, "--tag", TAG, "--no-test").code == 0
    ran = vpatch("test", TAG)
    first, outcome = ran.err.splitlines()

    assert (ran.code, ran.out) == (0, "  passed  5 tests\n  not run 3 tests: the image lacks torch\n")
    assert first.startswith(f"vLLM 0.20.2 in {TAG}, patched by vpatch ")
    assert outcome.startswith(f"Tested {TAG}: {NOT_RUN}. Run it: `docker run ")
    assert "testing: probe" in on_terminal("test", TAG).raw
    assert "  passed  compile: 2 modules compile\n" in vpatch("test", TAG, "-v").out


def test_failed_tests_are_listed_in_full(vpatch: Program, small: Small, python: str, left: Left) -> None:
    small("try:other", ("0.20.2", "usr/lib/python3.12/site-packages"), below=python)  # which it does not import
    before = left()
    ran = vpatch("build", *ONE, "--base", "try:other", "--tag", "try:never")

    failures = [line for line in ran.err.splitlines() if line.startswith("  FAILED  ")]
    assert [line.split(":")[0] for line in failures] == [
        "  FAILED  interpreter",
        "  FAILED  import vllm._vpatch.turboquant_skip_list",
        "  FAILED  import vllm.engine.arg_utils",
        "  FAILED  probe turboquant_skip_list",
    ]
    outcome = ran.err.splitlines()[-1]
    assert outcome.startswith("Not built: 4 of 8 tests failed. Nothing was tagged. To look into it: `vpatch build ")
    assert (ran.code, ran.out, left()) == (1, "", before)
    assert vpatch(*command_in(outcome)).code == 0, "it is built without its tests"


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


def test_a_definition_that_is_refused_is_to_be_changed(vpatch: Program, drifted: str, tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text(f'base = "docker.io/library/{drifted}"\ntags = ["a.io/b:c"]\noverlays = ["{HYBRID}", "{ONE[1]}"]\n')
    ran = vpatch("build", file)

    assert ran.code == 1
    assert ran.err.endswith(f' To build with the others, write `overlays = ["{ONE[1]}"]` in {file}.\n')


def test_lacking_architectures_are_told_once(vpatch: Program) -> None:
    ran = vpatch("build", *ONE, "--base", BASE, "--require-arch", "sm_120", "-v")

    assert ran.code == 1
    assert ran.err.count("_moe_C*.so") == 1
    assert "  turboquant-skip-list  pending\n" in ran.err, "nothing was applied"
    outcome = f"Nothing was built: {BASE} does not serve sm_120. Choose another base, or leave out --require-arch."
    assert ran.err.splitlines()[-1] == outcome


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


def test_several_images(vpatch: Program, drifted: str, tmp_path: Path) -> None:
    for name, base in (("good", BASE), ("bad", f"library/{drifted}")):
        text = f'base = "docker.io/{base}"\ntags = ["a.io/b:{name}"]\noverlays = ["{HYBRID}"]\ntests = ["files"]\n'
        (tmp_path / f"{name}.toml").write_text(text)
    ran = vpatch("build", tmp_path / "good.toml", tmp_path / "bad.toml")

    assert (ran.code, ran.out.count("\n")) == (1, 1)
    assert "Built a.io/b:good on docker.io/vllm/vllm-openai:v0.20.2: " in ran.err
    assert f"Nothing was built: {HYBRID} does not fit vLLM 0.20.2.\n" in ran.err
    assert ran.err.count("drifted: ") == 1
    assert (
        ran.err.splitlines()[-1]
        == f"Built 1 of 2 images; bad failed. To try again: `vpatch build {tmp_path}/bad.toml`."
    )


GPUS = ["docker engine: could not select device driver", "install the NVIDIA Container Toolkit", "leave out --gpus"]


def test_gpus_without_the_nvidia_runtime(vpatch: Program, left: Left) -> None:
    """The engine of the tests has none."""
    assert vpatch("build", *ONE, "--base", BASE, "--tag", TAG, "--no-test").code == 0
    before = left()
    build, test = vpatch("build", *ONE, "--base", BASE, "--gpus"), vpatch("test", TAG, "--gpus")

    for ran in (build, test):
        assert (ran.code, ran.out) == (1, "")
        assert "no NVIDIA runtime: " in ran.err
        assert all(words in ran.err for words in GPUS)
    assert build.err.endswith(f"Nothing was built. Without GPUs: `vpatch build --base {BASE} {' '.join(ONE)}`.\n")
    assert test.err.endswith(f"Not tested. Without GPUs: `vpatch test {TAG}`.\n")
    assert left() == before


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


def test_inspect_of_what_nobody_has(vpatch: Program, registry: str) -> None:
    ran = vpatch("inspect", f"{registry}/no/such:x")
    problem, outcome = ran.err.splitlines()

    assert ran.code == 1
    assert problem == f"cannot read: {registry}/no/such:x: no such image: check its name and its tag"
    build = f"`vpatch build --base IMAGE --tag {registry}/no/such:x`"
    assert outcome == f"Nothing to show: the engine does not have it. Build it with {build}."


@pytest.mark.parametrize("command", ["inspect", "test"])
def test_a_tag_that_is_not_in_the_engine(
    vpatch: Program, engine: docker.DockerClient, registry: str, command: str
) -> None:
    """The nearest tags of this image, else a few of them; of a misspelt image, one that is spelled like it."""
    mine, answers = f"{registry}/me/vllm", {"nope": "latest or {}:v0.20.2", "v0.20.22": "v0.20.2"}
    for tag in ("v0.20.2", "latest"):
        engine.api.tag(BASE, mine, tag)
    try:
        found = {tag: vpatch(command, f"{mine}:{tag}").err for tag in answers}
        typo = vpatch(command, f"{registry}/me/vlm:latest").err
    finally:
        for tag in ("v0.20.2", "latest"):
            engine.api.remove_image(f"{mine}:{tag}")

    for tag, answer in answers.items():
        assert f"did you mean {mine}:{answer.format(mine)}?" in found[tag]
    assert f"did you mean {mine}:latest?" in typo

"""The last sentences of builds, and the commands in them, which must be ones that the program takes."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from vpatch.cli.image_outcome import again, of_build, of_failure, of_nowhere, of_test, short
from vpatch.errors import Problem
from vpatch.image.checks import Check
from vpatch.image.config import Base, NoEngineError, NotHereError
from vpatch.image.order import Built, Order
from vpatch.image.patch import Layer

DIGEST = f"sha256:{'0123456789abcdef' * 4}"
ORDER = Order("vllm/vllm-openai:v0.20.2", tags=("a.io/me/vllm:one", "a.io/me/vllm:two"))
LAYER = Layer(bytes(21 * 1024), DIGEST, DIGEST, ())
PASSED, TORCH, CUDA = (
    Check("files", ok=True, because=""),
    Check("import a", ok=None, because="the image lacks torch"),
    Check("import b", ok=None, because="the image lacks libcuda.so.1"),
)


def built(*tests: Check, image: str = DIGEST) -> Built:
    base = Base(ORDER.base, DIGEST, {})
    return Built(base, image, layer=LAYER, vllm="0.20.2", tests=tests, applied=("turboquant-tiles",))


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ((PASSED,), "; 1 test passed. "),
        ((PASSED, PASSED), "; all 2 tests passed. "),
        ((PASSED, TORCH, TORCH), "; tests: 1 passed, 2 of 3 not run (the image lacks torch). "),
        ((PASSED, TORCH, CUDA), "; tests: 1 passed, 2 of 3 not run. "),
        ((), "; not tested. Test it in containers: `vpatch test a.io/me/vllm:one`."),
    ],
)
def test_what_was_tested(tests: tuple[Check, ...], says: str) -> None:
    outcome = of_build(ORDER, built(*tests), registry=False)

    start = "Built a.io/me/vllm:one and a.io/me/vllm:two on vllm/vllm-openai:v0.20.2: 1 overlay applied, 21 KiB added"
    assert f"{outcome} ".startswith(start + says)


def test_a_failed_test_of_an_image() -> None:
    failed = Check("record", ok=False, because="vllm/a.py has no true row in RECORD")

    assert (
        of_test("a:b", (PASSED, failed)) == "a:b: 1 of 2 tests failed: record. What is in it: `vpatch inspect a:b -v`."
    )


def test_what_was_pushed_and_failed_its_tests() -> None:
    failed = replace(built(Check("files", ok=False, because="x"), image=""), pushed=f"a.io/me/vllm@{DIGEST}")
    outcome = of_build(ORDER, failed, registry=True)

    left = "Nothing was tagged; a.io/me/vllm@sha256:0123456789ab stays in its registry."
    assert outcome.startswith(f"Not built: 1 of 1 test failed: files. {left} To look into it: `vpatch build --base ")
    assert outcome.endswith(" --registry --no-test`.")


def test_tags_of_another_repository_are_not_to_be_set_with_the_first() -> None:
    order = replace(ORDER, tags=("a.io/one:x", "b.io/two:x", "a.io/one:y"), set_tags=False)
    outcome = of_build(order, built(PASSED, image=f"a.io/one@{DIGEST}"), registry=True)

    assert outcome.endswith(f"then tag it: `vpatch tag a.io/one@{DIGEST} a.io/one:x a.io/one:y`.")


@pytest.mark.parametrize(
    ("image", "cause", "pull", "says"),
    [
        ("a/b:c", "not here", True, "not here. Build it with `{}:c`, or pull it with `docker pull a/b:c`."),
        ("a/b:c", "did you mean a/b:d?", False, "did you mean a/b:d? Build it with `{}:c`."),
        (f"a/b@{DIGEST}", "not here", False, "not here. Build it with `{}`."),
    ],
)
def test_an_image_that_nobody_has(image: str, cause: str, *, pull: bool, says: str) -> None:
    outcome = of_nowhere(image, NotHereError(Problem("no such image", image, cause)), pull=pull)

    assert outcome == f"Nothing to show: {says.format('vpatch build --base IMAGE --tag a/b')}"


def test_without_an_engine() -> None:
    failure = NoEngineError(Problem("no engine", "docker engine", "x"))

    for order in (replace(ORDER, tests=ORDER.tests | {"gpus"}, push=True), replace(ORDER, path="a.toml", push=True)):
        _, _, command = of_failure(order, failure, registry=False).partition("Without an engine: ")
        assert command.endswith(" --registry`."), "which takes neither --push nor --gpus"
    assert of_failure(replace(ORDER, base=DIGEST), failure, registry=False) == "Nothing was built."


def test_a_command_has_all_that_was_asked_for() -> None:
    order = replace(
        ORDER,
        also=("turboquant-tiles",),
        platform="linux/amd64",
        python="/opt/my env/bin/python",
        architectures=("sm_120",),
        push=True,
        tests=frozenset(),
    )
    words = shlex.split(again(order, registry=False).strip("`"))

    assert words == [
        *("vpatch", "build", "--base", ORDER.base, "--with", "turboquant-tiles"),
        *("--tag", "a.io/me/vllm:one", "--tag", "a.io/me/vllm:two", "--require-arch", "sm_120"),
        *("--platform", "linux/amd64", "--python", "/opt/my env/bin/python", "--push", "--no-test"),
    ]


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("vllm/vllm-openai", "vllm/vllm-openai"),
        ("localhost:5000/a", "localhost:5000/a"),
        (f"localhost:5000/a@{DIGEST}", "localhost:5000/a@sha256:0123456789ab"),
        (f"a/b:c@{DIGEST}", "a/b:c"),
        (DIGEST, "0123456789ab"),
    ],
)
def test_short_names(image: str, name: str) -> None:
    assert short(image) == name

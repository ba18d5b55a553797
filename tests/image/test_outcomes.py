"""What scripts in an image answered, and the sentences and commands that a build, a test or their help end with."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any

import click
import pytest
from vpatch.cli.image_outcome import again, of_build, of_failure, of_inspect, of_nowhere, of_test, short
from vpatch.cli.main import program
from vpatch.errors import Problem
from vpatch.image.checks import Check, import_outcomes, outcome
from vpatch.image.config import Base, NoEngineError, NotHereError
from vpatch.image.order import Built, Order
from vpatch.image.patch import Label, Layer
from vpatch.image.standing import Standing
from vpatch.plan.deployment import NEWEST

FRAMES = 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n    main()\n'
PYDANTIC = "pydantic_core.ValidationError: 1 validation error for ModelConfig"
NOISE = "INFO 11-21 14:51:58 [parallel_state.py:1929] world_size=1\n"
NO_FILE = "cannot open shared object file: No such file or directory"
CHAIN = "\nDuring handling of the above exception, another exception occurred:\n\n"

# A probe's exit status and output, whether it passed, and why not.
PROBES: dict[str, tuple[int | None, str, bool | None, str]] = {
    "passes": (0, NOISE + FRAMES + "ValueError: told on the way\n", True, ""),
    "too long": (None, NOISE, False, "it did not end within 60 s"),
    "killed": (137, NOISE, False, "it was ended by SIGKILL"),
    "crashed": (-11, NOISE, False, "it was ended by SIGSEGV"),
    "crashed in a shell": (139, NOISE, False, "it was ended by SIGSEGV"),
    "exits": (3, "", False, "it ended with 3: "),
    "exits with a word": (3, f"{NOISE}no room\n", False, "it ended with 3: no room"),
    "an assertion": (1, f"{NOISE}{FRAMES}AssertionError: layers: [] expected\n", False, "layers: [] expected"),
    "another error": (1, f"{FRAMES}ValueError: nothing\n", False, "ValueError: nothing"),
    "an error without a message": (1, f"{FRAMES}KeyboardInterrupt\n", False, "KeyboardInterrupt"),
    "of one rank": (1, re.sub("(?m)^", "[rank0]: ", f"{FRAMES}AssertionError: wrong"), False, "wrong"),
    "the last of a chain": (1, f"{FRAMES}KeyError: 'a'\n{CHAIN}{FRAMES}AssertionError: wrong\n", False, "wrong"),
    "over several lines": (
        *(1, f"{FRAMES}{PYDANTIC}\n  Value error, no such\n    For further information\n{NOISE}", False),
        f"{PYDANTIC} Value error, no such For further information",
    ),
    "noise at the end": (
        *(1, f"{FRAMES}AssertionError: wrong\nException ignored in: <function close>\n{FRAMES}TypeError: 'x'\n", False),
        "wrong",
    ),
    **{
        name: (1, f"{FRAMES}{error}\n", False, error)
        for name, error in {
            "a module of vLLM": "ModuleNotFoundError: No module named 'vllm._vpatch.tiles'",
            "vLLM itself": "ModuleNotFoundError: No module named 'vllm'",
            "said, not raised": "RuntimeError: No module named 'torch'",
        }.items()
    },
    **{
        f"lacks {lacks}": (1, f"{FRAMES}{error}\n", None, f"the image lacks {lacks}")
        for lacks, error in {
            "torch": "ModuleNotFoundError: No module named 'torch'",
            "vllm._C": "ModuleNotFoundError: No module named 'vllm._C'",
            "libpthread.so.0": f"OSError: libpthread.so.0: {NO_FILE}",
            "libcuda.so.1": f"ImportError: libcuda.so.1: {NO_FILE}",
        }.items()
    },
}


@pytest.mark.parametrize("name", PROBES)
def test_a_probe(name: str) -> None:
    code, stderr, ok, because = PROBES[name]

    assert outcome("hybrid", code, stderr, limit_s=60) == Check("hybrid", ok, because)


SAID: dict[str, Any] = {
    "vllm.a": {"ok": True, "because": ""},
    "vllm.b": {"ok": None, "because": "the image lacks torch"},
}
ANSWERED = {name: Check(f"import {name}", **answer) for name, answer in SAID.items()}
NO_ANSWER = f"it did not answer: {NOISE.strip()}"


@pytest.mark.parametrize(
    ("code", "out", "err", "because"),
    [
        (0, f"vpatch: no\n{NOISE}\nvpatch: {json.dumps(SAID)}\n", NOISE, None),
        *(
            (0, f"vpatch: {answer}\n", NOISE, NO_ANSWER)
            for answer in ("{", "[" * 200_000, "[]", "{}", '{"vllm.a": 3}', '{"vllm.a": {"ok": true}}')
        ),
        (0, "", NOISE, NO_ANSWER),
        (139, "", "", "it was ended by SIGSEGV"),
        (None, "", "", "it did not end within 60 s"),
    ],
)
def test_imports(code: int | None, out: str, err: str, because: str | None) -> None:
    modules = ["vllm.b", "vllm.a"]
    expected = [Check(f"import {name}", ok=False, because=because) if because else ANSWERED[name] for name in modules]

    assert [*import_outcomes(modules, code, out, err, limit_s=60)] == expected


DIGEST = f"sha256:{'0123456789abcdef' * 4}"
ORDER = Order("vllm/vllm-openai:v0.20.2", tags=("a.io/me/vllm:one", "a.io/me/vllm:two"))
PASSED, TORCH, CUDA, FAILED = (
    Check("files", ok=True, because=""),
    Check("import a", ok=None, because="the image lacks torch"),
    Check("import b", ok=None, because="the image lacks libcuda.so.1"),
    Check("record", ok=False, because="vllm/a.py has no true row in RECORD"),
)


def built(*tests: Check, image: str = DIGEST) -> Built:
    layer = Layer(bytes(21 * 1024), DIGEST, DIGEST, ())
    base = Base(ORDER.base, DIGEST, {})
    return Built(base, image, layer=layer, vllm="0.20.2", tests=tests, applied=("turboquant-tiles",))


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
    start = "Built a.io/me/vllm:one and a.io/me/vllm:two on vllm/vllm-openai:v0.20.2: 1 overlay applied, 21 KiB added"

    assert f"{of_build(ORDER, built(*tests), registry=False)} ".startswith(start + says)


def test_what_failed_or_has_no_tag_yet() -> None:
    inspect = "a:b: 1 of 2 tests failed: record. What is in it: `vpatch inspect a:b -v`."
    assert of_test("a:b", (PASSED, FAILED)) == inspect

    failed = replace(built(FAILED, image=""), pushed=f"a.io/me/vllm@{DIGEST}")
    told = of_build(ORDER, failed, registry=True)
    left = "Nothing was tagged; a.io/me/vllm@sha256:0123456789ab stays in its registry."
    assert told.startswith(f"Not built: 1 of 1 test failed: record. {left} To look into it: `vpatch build --base ")
    assert told.endswith(" --registry --no-test`.")

    told = of_build(replace(ORDER, tags=()), built(PASSED), registry=False)
    assert told.startswith("Built 0123456789ab (without a name) on vllm/vllm-openai:v0.20.2: ")
    assert "Name it: `docker tag 0123456789ab localhost/vllm-openai:v0.20.2-vpatch`. Run it: `docker run " in told

    order = replace(ORDER, tags=("a.io/one:x", "b.io/two:x", "a.io/one:y"), set_tags=False)
    told = of_build(order, built(PASSED, image=f"a.io/one@{DIGEST}"), registry=True)
    assert told.endswith(f"then tag it: `vpatch tag a.io/one@{DIGEST} a.io/one:x a.io/one:y`.")


@pytest.mark.parametrize(
    ("image", "meant", "pull", "says"),
    [
        ("a/b:c", "", True, "not here. Build it with `{} --tag a/b:c`, or pull it with `docker pull a/b:c`."),
        ("a/b:c", "did you mean a/b:d?", False, "not here; did you mean a/b:d? Build it with `{} --tag a/b:c`."),
        (f"a/b@{DIGEST}", "", False, "not here. Build it with `{} --tag a/b`."),
    ],
)
def test_an_image_that_nobody_has(image: str, meant: str, *, pull: bool, says: str) -> None:
    failure = NotHereError(Problem("no such image", image, "not here", hint=meant))

    build = f"vpatch build --base vllm/vllm-openai:v{NEWEST}"
    assert of_nowhere(image, failure, pull=pull) == f"Nothing to show: {says.format(build)}"
    named = of_nowhere("me/vllm-openai:v0.20.2-mine", failure, pull=False)
    assert "`vpatch build --base vllm/vllm-openai:v0.20.2 --tag me/vllm-openai:v0.20.2-mine`" in named


def test_a_label_that_is_outdated() -> None:
    label = Label("{}", "/site", "vllm-0.20.2.dist-info", "python3", "0.20.2", "0.1", (), {})
    now = Standing(1, {"vllm/a.py": "is gone"}, whole=True)
    outdated = "The label is outdated: 1 file is gone or changed, of the 1 that it lists."

    assert of_inspect("a:b", label, now) == f"{outdated} Patch the image anew: `vpatch build --base a:b`."


def test_without_an_engine() -> None:
    failure = NoEngineError(Problem("no engine", "docker engine", "x"))

    for order in (replace(ORDER, tests=ORDER.tests | {"gpus"}, push=True), replace(ORDER, path="a.toml", push=True)):
        _, _, command = of_failure(order, failure, registry=False).partition("Without an engine: ")
        assert command.endswith(" --registry`."), "which takes neither --push nor --gpus"
    assert of_failure(replace(ORDER, base=DIGEST), failure, registry=False) == "Nothing was built."
    unnamed = of_failure(replace(ORDER, tags=()), failure, registry=False)
    assert (
        unnamed == "Nothing was built. Without an engine: add --registry, and as --tag a name in a registry of yours."
    )


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

    assert shlex.split(again(order, registry=False).strip("`")) == [
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


@pytest.mark.parametrize("name", ["build", "test", "inspect", "tag"])
def test_the_help_is_short_and_its_examples_parse(name: str) -> None:
    command = program.get_command(click.Context(program), name)
    assert command
    first = str(command.help).partition("\n\n")[0]
    assert (len(first) <= 60, command.get_short_help_str(60)) == (True, first)

    examples = re.findall(r"^  vpatch (.*)$", str(command.epilog), re.MULTILINE)
    assert examples
    for example in examples:
        called, *arguments = shlex.split(example.partition(" |")[0])
        assert called == name
        parent = click.Context(program, **program.context_settings)  # a command keeps its first one's `-h`
        with command.make_context(name, arguments, parent=parent) as context:
            assert not context.args

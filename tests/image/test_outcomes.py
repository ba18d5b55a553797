"""The outcomes of scripts that ran inside an image."""

from __future__ import annotations

import json

import pytest
from vpatch.image.checks import Check, import_outcomes, outcome

FRAMES = 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n    main()\n'
PYDANTIC = "pydantic_core.ValidationError: 1 validation error for ModelConfig"
NOISE = "INFO 11-21 14:51:58 [parallel_state.py:1929] world_size=1\n"


def told(one: Check) -> tuple[str, bool | None, str]:
    return one.name, one.ok, one.because


def test_a_probe_that_passes() -> None:
    assert told(outcome("hybrid", 0, NOISE + FRAMES + "ValueError: told on the way\n", limit_s=60)) == (
        "hybrid",
        True,
        "",
    )


def test_a_probe_that_takes_too_long() -> None:
    assert told(outcome("hybrid", None, NOISE, limit_s=60)) == ("hybrid", False, "it did not end within 60 s")


FAILED = {
    "an assertion": (
        f"{NOISE}{FRAMES}AssertionError: layers: [] expected, ['0'] found\n",
        "layers: [] expected, ['0'] found",
    ),
    "another error": (f"{FRAMES}ValueError: nothing\n", "ValueError: nothing"),
    "an error without a message": (f"{FRAMES}KeyboardInterrupt\n", "KeyboardInterrupt"),
    "of one rank": (
        "".join(f"[rank0]: {line}\n" for line in f"{FRAMES}AssertionError: wrong".splitlines()),
        "wrong",
    ),
    "the last of a chain": (
        f"{FRAMES}KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n"
        f"{FRAMES}AssertionError: wrong\n",
        "wrong",
    ),
    "over several lines": (
        f"{FRAMES}{PYDANTIC}\n  Value error, no such\n    For further information\n{NOISE}",
        f"{PYDANTIC} Value error, no such For further information",
    ),
    "noise at the end": (
        f"{FRAMES}AssertionError: wrong\nException ignored in: <function close>\n{FRAMES}TypeError: 'NoneType'\n",
        "wrong",
    ),
    "a module of vLLM": (
        f"{FRAMES}ModuleNotFoundError: No module named 'vllm._vpatch.tiles'\n",
        "ModuleNotFoundError: No module named 'vllm._vpatch.tiles'",
    ),
    "vLLM itself": (
        f"{FRAMES}ModuleNotFoundError: No module named 'vllm'\n",
        "ModuleNotFoundError: No module named 'vllm'",
    ),
    "said, not raised": (f"{FRAMES}RuntimeError: No module named 'torch'\n", "RuntimeError: No module named 'torch'"),
}


@pytest.mark.parametrize("name", FAILED)
def test_a_probe_that_fails(name: str) -> None:
    stderr, because = FAILED[name]

    assert told(outcome("hybrid", 1, stderr, limit_s=60)) == ("hybrid", False, because)


ENDED = {137: "it was ended by SIGKILL", -11: "it was ended by SIGSEGV", 139: "it was ended by SIGSEGV"}


@pytest.mark.parametrize("code", ENDED)
def test_a_probe_that_is_killed(code: int) -> None:
    assert told(outcome("hybrid", code, NOISE, limit_s=60)) == ("hybrid", False, ENDED[code])


@pytest.mark.parametrize(
    ("stderr", "because"), [("", "it ended with 3: "), (f"{NOISE}no room\n", "it ended with 3: no room")]
)
def test_a_probe_that_exits(stderr: str, because: str) -> None:
    assert told(outcome("hybrid", 3, stderr, limit_s=60)) == ("hybrid", False, because)


LACKING = {
    "torch": f"{FRAMES}ModuleNotFoundError: No module named 'torch'\n",
    "vllm._C": f"{FRAMES}ModuleNotFoundError: No module named 'vllm._C'\n",
    "libpthread.so.0": f"{FRAMES}OSError: libpthread.so.0: cannot open shared object file: No such file or directory\n",
    "libcuda.so.1": f"{FRAMES}ImportError: libcuda.so.1: cannot open shared object file: No such file or directory\n",
}


@pytest.mark.parametrize("lacks", LACKING)
def test_a_probe_that_lacks_something_was_not_run(lacks: str) -> None:
    assert told(outcome("hybrid", 1, LACKING[lacks], limit_s=60)) == ("hybrid", None, f"the image lacks {lacks}")


def test_imports() -> None:
    said = {"vllm.a": {"ok": True, "because": ""}, "vllm.b": {"ok": None, "because": "the image lacks torch"}}
    stdout = f"vpatch: no\n{NOISE}\nvpatch: {json.dumps(said)}\n"

    assert tuple(map(told, import_outcomes(["vllm.b", "vllm.a"], 0, stdout, NOISE, limit_s=60))) == (
        ("import vllm.b", None, "the image lacks torch"),
        ("import vllm.a", True, ""),
    )


NO_ANSWER: dict[str, tuple[int | None, str, str]] = {
    "killed": (139, "", "it was ended by SIGSEGV"),
    "too long": (None, "", "it did not end within 60 s"),
    "no answer": (0, NOISE, f"it did not answer: {NOISE.strip()}"),
}


@pytest.mark.parametrize("answer", ["{", "[" * 200_000, "[]", "{}", '{"vllm.a": 3}', '{"vllm.a": {"ok": true}}'])
def test_imports_with_an_answer_that_does_not_match(answer: str) -> None:
    ran = import_outcomes(["vllm.a"], 0, f"vpatch: {answer}\n", NOISE, limit_s=60)

    assert [*map(told, ran)] == [("import vllm.a", False, f"it did not answer: {NOISE.strip()}")]


@pytest.mark.parametrize("name", NO_ANSWER)
def test_imports_without_an_answer(name: str) -> None:
    code, stderr, because = NO_ANSWER[name]

    assert tuple(map(told, import_outcomes(["vllm.a", "vllm.b"], code, "", stderr, limit_s=60))) == (
        ("import vllm.a", False, because),
        ("import vllm.b", False, because),
    )

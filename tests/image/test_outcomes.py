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


FAILED = {
    "an assertion": (
        f"{NOISE}{FRAMES}AssertionError: layers: [] expected, ['0'] found\n",
        "layers: [] expected, ['0'] found",
    ),
    "another error": (f"{FRAMES}ValueError: nothing\n", "ValueError: nothing"),
    "an error without a message": (f"{FRAMES}KeyboardInterrupt\n", "KeyboardInterrupt"),
    "of one rank": ("".join(f"[rank0]: {line}\n" for line in f"{FRAMES}AssertionError: wrong".splitlines()), "wrong"),
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


LACKING = {
    "torch": f"{FRAMES}ModuleNotFoundError: No module named 'torch'\n",
    "vllm._C": f"{FRAMES}ModuleNotFoundError: No module named 'vllm._C'\n",
    "libpthread.so.0": f"{FRAMES}OSError: libpthread.so.0: cannot open shared object file: No such file or directory\n",
    "libcuda.so.1": f"{FRAMES}ImportError: libcuda.so.1: cannot open shared object file: No such file or directory\n",
}


PROBES: dict[str, tuple[int | None, str, bool | None, str]] = {
    "passes": (0, NOISE + FRAMES + "ValueError: told on the way\n", True, ""),
    "too long": (None, NOISE, False, "it did not end within 60 s"),
    "killed": (137, NOISE, False, "it was ended by SIGKILL"),
    "crashed": (-11, NOISE, False, "it was ended by SIGSEGV"),
    "crashed in a shell": (139, NOISE, False, "it was ended by SIGSEGV"),
    "exits": (3, "", False, "it ended with 3: "),
    "exits with a word": (3, f"{NOISE}no room\n", False, "it ended with 3: no room"),
    **{name: (1, stderr, False, because) for name, (stderr, because) in FAILED.items()},
    **{f"lacks {lacks}": (1, stderr, None, f"the image lacks {lacks}") for lacks, stderr in LACKING.items()},
}


@pytest.mark.parametrize("name", PROBES)
def test_a_probe(name: str) -> None:
    code, stderr, ok, because = PROBES[name]

    assert told(outcome("hybrid", code, stderr, limit_s=60)) == ("hybrid", ok, because)


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

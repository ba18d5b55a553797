"""The four verdicts of `vpatch plan`: what is printed with each, and the bar."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.terminals import on_terminal, written
from tests.validation.cpu.models import CONFIGS

if TYPE_CHECKING:
    from tests.conftest import Program

PRESET = "qwen3.6-35b-5090-32k"
NAME = "Qwen3.6-35B-A3B-NVFP4"
COLOR = re.compile(r"\x1b\[\d+m")


def test_little_is_printed_unless_asked_for(vpatch: Program) -> None:
    first, cache, number, advice, *rest = vpatch("plan", "--preset", PRESET).out.splitlines()

    assert first.startswith("fits: ")
    assert re.fullmatch(
        r"kv cache: 4\.\d\d GiB \(.* to .*\) of turboquant_4bit_nc: \d\d\.\d\d requests of 32,768 tokens \(.* to .*\);"
        r" vLLM prints [\d,]+ tokens",
        cache,
    )
    assert re.fullmatch(
        r"advice: \d overlays are needed, and `vpatch apply` alone applies \d\d: both are fine, since the other \d+"
        r" correct what other deployments run into",
        number,
    )
    assert advice.startswith("advice: `--with turboquant-decode` ")
    assert [line for line in rest if line.startswith("#")] == ["# apply", "# serve"]


def test_tight_is_a_verdict_of_its_own(vpatch: Program) -> None:
    """It fits at the estimate, not at the bound. `test_no_advice_without_the_weights` and others have the other two."""
    card = ("--gpu", "5090", "--vllm", "0.20.2", "--max-num-seqs", "16")
    fits = ("plan", "--model", NAME, *card, "--max-model-len", "32768", "--kv-cache-dtype", "fp8")
    ran = vpatch(*fits, "--gpu-memory-utilization", "0.82")

    assert vpatch(*fits, "--json").json["verdict"] == "fits"
    assert (ran.code, ran.out.partition(":")[0]) == (0, "tight")
    assert "caution: tight: " in ran.err


@pytest.mark.parametrize("method", ["fancy", "modelopt"])
def test_no_advice_without_the_weights(vpatch: Program, tmp_path: Path, method: str) -> None:
    """A quantization that plan does not know has weights of any size: it guesses neither them nor a GPU for them."""
    quantized = {"quantization_config": {"quant_method": method, "quant_algo": "NEW"}}
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["dense"] | quantized))
    ran = vpatch("plan", "--model", tmp_path, "--gpu", "5090", "--vllm", "0.26.0")

    assert ran.code == 1
    assert ran.out == f"cannot know: {tmp_path} on RTX 5090, vLLM 0.26.0\n"
    assert ran.err.startswith(
        f"unknown weights: {tmp_path}: plan does not know how large they are in {method}: give --w"
    )
    assert vpatch("plan", "--model", tmp_path, "--json").json["verdict"] == "cannot know"
    assert vpatch("plan", "--model", tmp_path, "--weights-gib", "1.5").code == 0


def test_no_command_of_what_does_not_fit(vpatch: Program) -> None:
    arguments = ("plan", "--model", "Qwen/Qwen3.6-35B-A3B", "--gpu", "4090")
    ran, forced = vpatch(*arguments), vpatch(*arguments, "--force")

    assert (ran.code, forced.code) == (1, 1)
    assert ran.out.startswith("does not fit: Qwen/Qwen3.6-35B-A3B")
    assert "vllm serve" not in ran.out
    assert "\n# serve (does not fit)\n" in forced.out
    assert vpatch(*arguments, "--json").json["commands"] == {}


def plainly(*arguments: str) -> list[str]:
    """Return the lines on a terminal, without their colors."""
    return COLOR.sub("", written(*arguments)).replace("\r", "").splitlines()


def test_the_bar_and_its_legend_have_the_same_colors() -> None:
    bar, *key = [line for line in written("plan", "--preset", PRESET).splitlines() if "\x1b[" in line][:3]
    painted = re.findall(r"(\x1b\[\d+m)([█▓▒▤▥▦▧▨▚▞░])", bar)

    assert len({color for color, _ in painted}) == len(painted) >= 4
    assert re.findall(r"(\x1b\[\d+m)([█▓▒▤▥▦▧▨▚▞░])", "".join(key)) == painted, "what is in the bar, and nothing else"


def test_a_bar_on_a_terminal() -> None:
    seen = plainly("plan", "--preset", PRESET, "-v")
    (bar,) = [line for line in seen if line.startswith("█") and " " not in line]
    key = "  ".join(seen[seen.index(bar) + 1 : seen.index("memory")])
    shares = {mark[2:]: bar.count(mark[0]) / len(bar) for mark in key.split("  ")}

    assert len(bar) == 100
    assert shares["weights"] == pytest.approx(21.88 / 31.36, abs=0.01)
    assert shares["KV cache"] == pytest.approx(5.06 / 31.36, abs=0.02)
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("columns", [60, 120])
def test_lines_fit_a_terminal(columns: int) -> None:
    """A reason goes on below itself, or below its row if there is little room beside it; no word is broken."""
    raw = on_terminal("plan", "--preset", PRESET, "--verbose", columns=columns).raw
    lines = COLOR.sub("", raw).replace("\r", "").splitlines()
    words = " ".join(lines).split()
    (first,) = (number for number, line in enumerate(lines) if line.startswith("  turboquant-workspace "))
    row = "needed a prompt of more than 4,096 tokens goes on from TurboQuant's KV cache; vLLM 0.20.2: each layer"

    assert max(map(len, lines[: lines.index("apply:")])) <= columns
    assert row in " ".join(words)
    assert len(lines[first + 1]) - len(lines[first + 1].lstrip()) == (
        6 if columns == 60 else lines[first].index("a prompt")
    )
    assert re.search(r"^.*[▓▒▤▥▦▧▨▚▞] KV cache", "\n".join(lines), re.MULTILINE), "a sign stays with its words"


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_a_page_without_colors(env: dict[str, str]) -> None:
    raw = on_terminal("plan", "--preset", PRESET, columns=100, env=env).raw

    assert "\x1b" not in raw
    assert "░ free" in raw


def test_the_reason_comes_first(vpatch: Program) -> None:
    """Right below the verdict; and the owner of a GPU reads what would do on it before other GPUs."""
    ran = vpatch("plan", NAME, "--gpu", "5090", "--vllm", "0.20.2")
    first, reason, *_ = ran.out.splitlines()
    here, _, elsewhere = ran.err.partition("; on more or larger GPUs: ")

    assert (first.partition(":")[0], reason.partition(" GiB")[0]) == ("does not fit", "reason: 0.79")
    assert "would fit: --language-model-only; " in here
    assert "--tensor-parallel-size" not in here
    assert elsewhere.startswith("--tensor-parallel-size 2; --gpu '")
    assert "both are fine" not in ran.out


@pytest.mark.parametrize("words", ["Qwen3.6-27B --gpu 5090 --vllm 0.24.0", "Qwen3.6-27B --gpu L40S --vllm 0.33.0"])
def test_what_would_fit_elsewhere_fits(vpatch: Program, words: str) -> None:
    """As it is printed: on a larger GPU, vLLM takes more requests by default."""
    elsewhere = vpatch("plan", *words.split()).err.partition("; on more or larger GPUs: ")[2].strip().split("; ")

    assert elsewhere
    for options in elsewhere:
        assert vpatch("plan", *words.split(), *shlex.split(options)).code == 0, options


@pytest.mark.parametrize(("overlay", "changes"), [("turboquant-tiles", True), ("turboquant-decode", False)])
def test_a_plan_with_an_opt_in_overlay(vpatch: Program, overlay: str, changes: bool) -> None:  # noqa: FBT001
    plain, added = (vpatch("plan", "--preset", PRESET, *more, "--json").json for more in ((), ("--with", overlay)))

    assert (added["kv_cache"] != plain["kv_cache"]) is changes
    assert f"--overlay {overlay}" in added["commands"]["apply"]
    assert f"--overlay {overlay}" in added["commands"]["build"]
    assert overlay not in plain["commands"]["apply"]
    assert f"`--with {overlay}` adds" not in vpatch("plan", "--preset", PRESET, "--with", overlay).out


def test_an_overlay_that_the_release_does_not_take_is_named(vpatch: Program) -> None:
    ran = vpatch(
        "plan", NAME, "--vllm", "0.19", "--max-num-seqs", "8", "--max-model-len", "8k", "--with", "turboquant-tiles"
    )

    assert "note: the commands are without turboquant-tiles: not_applicable in vLLM 0.19.0" in ran.err


def test_a_bar_of_what_does_not_fit() -> None:
    seen = plainly("plan", "--model", "Qwen/Qwen3.6-35B-A3B", "--gpu", "4090")

    (bar,) = [line for line in seen if line and set(line) <= set("█▓▒▤▥▦▧▨▚▞░")]
    assert bar == "█" * 100, "the weights alone are more than the card, which is the whole bar"
    assert re.search(r"█ weights .* [0-9]+\.\d\d GiB more than the card has", "  ".join(seen))
    assert any("does not fit: RTX 4090, 23.64 GiB: " in line for line in seen)


def test_an_unknown_architecture_gives_bounds(vpatch: Program, tmp_path: Path) -> None:
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
    sizes = {"num_hidden_layers": 32, "vocab_size": 32_000, "max_position_embeddings": 8192}
    config = {"architectures": ["FancyForCausalLM"], **heads, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = vpatch("plan", "--model", tmp_path, "--weights-gib", "13", "--json")

    assert ran.code == 1
    assert ran.json["model"]["unknown"]
    assert ran.err.startswith(f"cannot know: {tmp_path}: ")
    # The upper bound: every layer is full attention.
    assert ran.json["kv_cache"]["page_bytes"] == 16 * 2 * 8 * 128 * 2
    assert ran.json["kv_cache"]["tokens"] > 0

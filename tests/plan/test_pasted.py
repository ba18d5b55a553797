"""A pasted `vllm serve` command: what plan reads of it, and how it names the rest."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vpatch.errors import UnknownName
from vpatch.plan.deployment import table
from vpatch.plan.pasted import read

from tests.releases import FIRST, tree_of
from tests.validation.cpu.models import CONFIGS

if TYPE_CHECKING:
    from tests.conftest import Program

NAME = "Qwen3.6-35B-A3B-NVFP4"
MTP = """'{"method": "qwen3_next_mtp", "num_speculative_tokens": 2}'"""
PLAN = ("plan", "--gpu", "5090", "--vllm", "0.20.2")


@pytest.mark.parametrize(
    ("typed", "options"),
    [
        ("--max-model-len 64k", {"max-model-len": "64k"}),
        ("--max_model_len=64k", {"max-model-len": "64k"}),
        ("--max-model-len -1", {"max-model-len": "-1"}),
        ("-tp 2 -pp 3", {"tensor-parallel-size": "2", "pipeline-parallel-size": "3"}),
        ("--no-enable-prefix-caching --enforce-eager", {"enable-prefix-caching": False, "enforce-eager": True}),
        ("--revision main", {"revision": "main"}),
    ],
)
def test_options_that_are_read(typed: str, options: dict[str, str | bool]) -> None:
    found = read(["vllm", "serve", "a/b", *shlex.split(typed)])

    assert (found.model, found.options) == ("a/b", options)
    assert (found.extra, [*found.remarks()]) == ((), [])


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve a/b --port 1",
        "/opt/venv/bin/vllm serve --port 1 --model a/b",
        "python3 -m vllm.entrypoints.openai.api_server --port 1 --model=a/b",
        "vllm serve --port=1 --trust-remote-code a/b",
        "vllm serve --enforce-eager a/b",
        "vllm serve --max-num-seqs 8 a/b",
    ],
)
def test_the_model_wherever_it_stands(command: str) -> None:
    assert read(shlex.split(command)).model == "a/b"


@pytest.mark.parametrize(
    ("typed", "drafts", "unmodeled"),
    [
        (f"--speculative-config {MTP}", 2, ()),
        (f"-sc {MTP}", 2, ()),
        ("--speculative-config.method mtp --speculative-config.num_speculative_tokens 3", 3, ()),
        ("--spec-method mtp --spec-tokens 3", 3, ()),
        ('--speculative-config \'{"method": "ngram"}\'', None, ("--speculative-config with ngram",)),
        ('--speculative-config \'{"model": "a/c"}\'', None, ("--speculative-config with a draft model",)),
        ("", None, ()),
    ],
)
def test_speculative_decoding(typed: str, drafts: int | None, unmodeled: tuple[str, ...]) -> None:
    found = read(["vllm", "serve", "a/b", *shlex.split(typed)])

    assert (found.drafts, found.unmodeled) == (drafts, unmodeled)
    assert found.extra == (() if drafts or not typed else tuple(shlex.split(typed)))


def test_what_the_printed_command_lacks_is_named() -> None:
    config = '{"method": "mtp", "num_speculative_tokens": 2, "quantization": "fp8"}'
    found = read(["vllm", "serve", "a/b", "--speculative-config", config])

    assert found.drafts == 2
    assert [*found.remarks()] == ["the printed command lacks these fields of --speculative-config: quantization"]


@pytest.mark.parametrize(
    ("typed", "kind"),
    [
        ("--served-model-name x y", "ignored"),
        ("--no-async-scheduling", "ignored"),
        ("--dtype auto", "ignored"),
        ("--dtype float16", "unmodeled"),
        ("--data-parallel-size 1", "ignored"),
        ("-dp 2", "unmodeled"),
        ("--enable-lora", "unmodeled"),
        ("--compilation-config.level 3", "unmodeled"),
        ("-O3", "unmodeled"),
        ("--frobnicate 3", "unknown"),
    ],
)
def test_what_is_not_read_is_named_and_kept(typed: str, kind: str) -> None:
    found = read(["CUDA_VISIBLE_DEVICES=0", "vllm", "serve", "a/b", *shlex.split(typed)])
    kinds = {one: getattr(found, one) for one in ("ignored", "unmodeled", "unknown")}

    assert [one for one, names in kinds.items() if names] == [kind]
    assert found.extra == tuple(shlex.split(typed))
    assert found.environment == ("CUDA_VISIBLE_DEVICES=0",)


@pytest.mark.parametrize("command", ["vllm bench a/b", "serve a/b", "vllm", "vllm serve", "vllm serve --port 1"])
def test_what_is_no_command_to_serve_a_model(command: str) -> None:
    with pytest.raises(UnknownName, match=r"no vllm serve|no model"):
        read(shlex.split(command))


def test_a_pasted_command_is_planned_and_completed(vpatch: Program) -> None:
    options = "--served-model-name x --reasoning-parser qwen3 --max-num-seqs 8 --max-model-len 64k --frobnicate 3"
    options += " --gpu-memory-utilisation 1"
    ran = vpatch(*PLAN, "--", "A=b", "vllm", "serve", NAME, *options.split(), "--speculative-config", *shlex.split(MTP))
    serve = " ".join(ran.out.partition("# serve\n")[2].replace("\\\n", " ").split())

    assert ran.code == 0
    assert serve.startswith(
        "env A=b vllm serve inferRouter/Qwen3.6-35B-A3B-NVFP4 --revision main --max-model-len 64000 "
    )
    assert serve.endswith(" --served-model-name x --reasoning-parser qwen3 --frobnicate 3 --gpu-memory-utilisation 1")
    assert '{"method": "mtp", "num_speculative_tokens": 2}' in serve
    assert [line for line in ran.err.splitlines() if line.startswith("note: ")] == [
        "note: options not read, since memory does not depend on them: --served-model-name, --reasoning-parser",
        "note: options not known: the plan is as without them: --frobnicate",
    ]
    mistyped = "mistyped: --gpu-memory-utilisation is not known: did you mean --gpu-memory-utilization? The plan is "
    assert f"caution: {mistyped}as without it; a printed command keeps it" in ran.err.splitlines()


def test_options_before_the_command_win(vpatch: Program) -> None:
    command = ("vllm", "serve", NAME, "--max-num-seqs", "8", "--max-model-len", "8k")
    ran = vpatch(*PLAN, "--max-model-len", "16k", "--json", "--", *command)

    assert ran.json["kv_cache"]["max_model_len"] == 16_000
    assert "--max-num-seqs 8" in ran.json["commands"]["serve"]


def test_a_printed_command_is_read_back(vpatch: Program) -> None:
    first = vpatch(*PLAN, NAME, "--max-num-seqs", "8", "--max-model-len", "16k", "--speculative", "2", "--json")
    again = vpatch(*PLAN, "--json", "--", *shlex.split(first.json["commands"]["serve"]))

    assert again.json["commands"] == first.json["commands"]
    assert again.json["notes"] == []


SERVE = f"vllm serve {NAME} --max-num-seqs 8 --max-model-len 16k"
DOCKER = f"docker run vllm/vllm-openai:v0.20.2 {NAME} --max-num-seqs 8 --max-model-len 16k"


@pytest.mark.parametrize(
    ("quoted", "same"),
    [
        (SERVE, SERVE),
        (SERVE.replace(" --", " \\\n  --"), SERVE),
        (f"  {SERVE} --seed=7\r\n", f"{SERVE} --seed=7"),
        (f"HOME=/x {SERVE} --speculative-config {MTP}", f"HOME=/x {SERVE} --speculative-config {MTP}"),
        (
            f"{SERVE} --download-dir ~/a --served-model-name $KEY",
            f"{SERVE} --download-dir /home/me/a --served-model-name one",
        ),
        (DOCKER.replace("run", "run -e HF_TOKEN=$HF_TOKEN"), DOCKER.replace("run", "run -e HF_TOKEN")),
    ],
)
@pytest.mark.parametrize("dashes", [(), ("--",)])
def test_a_quoted_command(
    vpatch: Program, monkeypatch: pytest.MonkeyPatch, dashes: tuple[str, ...], quoted: str, same: str
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for name, value in {"HOME": "/home/me", "KEY": "one"}.items():
        monkeypatch.setenv(name, value)
    options = ("--gpu", "5090", "--vllm", "0.20.2")

    assert vpatch("plan", *options, *dashes, quoted) == vpatch("plan", *options, "--", *shlex.split(same))


@pytest.mark.parametrize(
    ("quoted", "says"),
    [
        (f"{SERVE} > log 2>&1", "> is for a shell: leave it out of the quoted command"),
        (f"{SERVE} && echo done", "&& is for a shell: leave it out of the quoted command"),
        (f"{SERVE} --seed $(date)", "is for a shell: leave it out"),
        (f"{SERVE} --api-key $NOWHERE", "$NOWHERE is for a shell: write its value, or paste the command behind --"),
        (f"{SERVE} --chat-template `pwd`/a", "`pwd`/a is for a shell: write its value"),
        (f"{SERVE} --chat-template 'a", "the quoted command is incomplete: no closing quotation"),
    ],
)
def test_a_quoted_command_that_only_a_shell_could_read(
    vpatch: Program, monkeypatch: pytest.MonkeyPatch, quoted: str, says: str
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    ran = vpatch("plan", quoted)

    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


def test_a_folder_may_have_a_name_like_a_command(vpatch: Program, tmp_path: Path) -> None:
    folder = tmp_path / "vllm serve x"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["dense"]))

    assert vpatch("plan", folder, "--gpu", "3090").code == 0


@pytest.mark.parametrize(
    "typed", [f"--gpu 5090 {SERVE} --port 1", f"--gpu 5090 {DOCKER.replace('run', 'run --ipc=host')}"]
)
def test_a_command_without_dashes(vpatch: Program, typed: str) -> None:
    ran = vpatch("plan", *typed.split())
    (right,) = re.findall("`vpatch (.*)`", ran.err)

    assert (ran.code, ran.out) == (2, "")
    assert right.split() == ["plan", "--gpu", "5090", "--", *typed.split()[2:]]
    assert vpatch(*right.split()).code == 0


def test_a_model_is_an_argument(vpatch: Program) -> None:
    options = ("--max-num-seqs", "8", "--max-model-len", "16k")

    assert vpatch(*PLAN, NAME, *options) == vpatch(*PLAN, "--model", NAME, *options)


def test_the_options_are_those_of_vllm() -> None:
    """Every option of the table is one of a release, and what it takes for a flag has no value there."""
    files = [tree_of(one) / "vllm/engine/arg_utils.py" for one in FIRST]
    files += [path for one in FIRST for path in tree_of(one).glob("vllm/entrypoints/**/cli_args.py")]
    texts = [path.read_text() for path in files]
    typed = {
        field.target.id.replace("_", "-"): ast.unparse(field.annotation)
        for text in texts
        for field in ast.walk(ast.parse(text))
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    names = typed.keys() | {name for text in texts for name in re.findall(r"\"--([a-z0-9-]+)\"", text)}
    found = table("options.toml")
    listed = {*found["read"], *found["switches"], *found["ignored"], *found["flags"], *found["unmodeled"]}

    assert listed - names == {"disable-frontend-multiprocessing", "disable-log-requests"}, "older names"
    assert [one for one in found["flags"] if "bool" not in typed.get(one, "bool")] == []
    assert [one for one in found["ignored"] if typed.get(one, "str").startswith("bool")] == []
    assert set(found["short"].values()) <= names

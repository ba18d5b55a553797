"""The command that computes what a model needs before anything is installed: plan."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from packaging.version import InvalidVersion, Version

from vpatch.cli.options import (
    PathType,
    check_outfile,
    examples,
    introduce_project,
    project,
    reported,
    with_option,
    with_project,
    write_outfile,
)
from vpatch.cli.output import Report, TextReport, tell
from vpatch.cli.plan_log import logged, read_start
from vpatch.cli.plan_report import PlanReport, PresetsReport
from vpatch.cli.plan_types import (
    Count,
    Number,
    complete_gpu,
    complete_kv_type,
    complete_preset,
    complete_release,
    release_named,
)
from vpatch.cli.plan_words import PlanCommand, named_model, options_of, pasted_in
from vpatch.core.catalogue import Selection, discover, select
from vpatch.errors import Failure, Problem, collecting
from vpatch.plan import GIB, Model
from vpatch.plan.cautions import Caution, cautions
from vpatch.plan.commands import commands, compose
from vpatch.plan.defaults import Preset, defaults, gpu, gpu_here, lengths, preset, presets
from vpatch.plan.deployment import DRAFTS, NEWEST, Deployment, Gpu, Release, release_of
from vpatch.plan.models import load
from vpatch.plan.pasted import Pasted
from vpatch.plan.refusals import check_type
from vpatch.plan.rendering import title
from vpatch.plan.verdict import FITTING, CannotKnow, Plan, PlanVerdict, plan
from vpatch.tree.environment import current


@click.command(
    "plan",
    cls=PlanCommand,
    epilog=examples(
        "plan Qwen3.6-35B-A3B-NVFP4 --gpu 5090 --kv-cache-dtype turboquant_4bit_nc --max-num-seqs 16",
        "plan --gpu 5090 -- vllm serve Qwen3.6-35B-A3B-NVFP4 --max-num-seqs 8 --max-model-len 64k --port 9000",
        "plan 'docker run --gpus all vllm/vllm-openai:v0.20.2 Qwen3.6-35B-A3B-NVFP4 --max-num-seqs 8 -tp 2'",
        "plan --list",
        "plan --preset qwen3.6-35b-5090-262k --compose compose.yaml",
    ),
)
@click.argument("words", metavar="[MODEL | -- COMMAND]", nargs=-1, type=click.UNPROCESSED)
@click.option("--model", metavar="MODEL", help="As MODEL: a folder or file with a config.json, or a recorded model.")
@click.option("--revision", metavar="R", help="A revision of the model.")
@click.option("--preset", "named", metavar="NAME", shell_complete=complete_preset, help="A deployment from --list.")
@click.option("--list", "listed", is_flag=True, help="List the presets.")
@click.option(
    "--vllm",
    metavar="V",
    callback=release_named,
    shell_complete=complete_release,
    help=f"Default: the vLLM that is installed, or {NEWEST}.",
)
@click.option(
    "--gpu",
    "card",
    metavar="NAME",
    shell_complete=complete_gpu,
    help="Default: the one that is here, or RTX 5090.",
)
@click.option("--gpu-memory-gib", type=Number(1, 4096), metavar="F", help="The memory that CUDA reports of a GPU.")
@click.option("--desktop/--headless", default=None, help="Whether a desktop runs on the GPU. Default: headless.")
@click.option("--slow-link", is_flag=True, help="GPUs are joined by PCIe x4 or the like.")
@click.option(
    "--kv-cache-dtype",
    metavar="D",
    shell_complete=complete_kv_type,
    help="As of `vllm serve`: auto, fp8, nvfp4, turboquant_4bit_nc ...",
)
@click.option("--mamba-ssm-cache-dtype", metavar="D", help="As of `vllm serve`: auto, float32, float16, bfloat16.")
@click.option("--max-model-len", type=Count(auto=True), metavar="N", help="As of `vllm serve`: tokens, or `auto`.")
@click.option("--max-num-seqs", type=Count(), metavar="N", help="As of `vllm serve`.")
@click.option("--max-num-batched-tokens", type=Count(), metavar="N", help="As of `vllm serve`.")
@click.option("--gpu-memory-utilization", type=Number(0, 1), metavar="F", help="As of `vllm serve`.")
@click.option("--kv-cache-memory-bytes", type=Count(), metavar="N", help="As of `vllm serve`.")
@click.option("--tensor-parallel-size", type=Count(), metavar="N", help="As of `vllm serve`.")
@click.option("--pipeline-parallel-size", type=Count(), metavar="N", help="As of `vllm serve`.")
@click.option(
    "--speculative",
    "speculative_tokens",
    type=Count(0, DRAFTS),
    metavar="K",
    help=f"Tokens of multi-token prediction, at most {DRAFTS}.",
)
@click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=None, help="As of `vllm serve`.")
@click.option("--enforce-eager", is_flag=True, default=None, help="As of `vllm serve`.")
@click.option("--language-model-only", is_flag=True, default=None, help="As of `vllm serve`: without the vision tower.")
@click.option("--requests", type=Count(), default=1, metavar="N", help="To be served at once, at full length.")
@click.option("--weights-gib", type=Number(0, 65536), metavar="F", help="Once loaded, without MTP.")
@with_option
@click.option("--download", is_flag=True, help="Read config.json and headers from the hub, where MODEL is not here.")
@click.option(
    "--log", type=PathType(), metavar="FILE", help="Compare vLLM's log of a start with the plan; - for stdin."
)
@click.option("--compose", "file", type=PathType(), metavar="FILE", help="Also write a compose file.")
@click.option("--force", is_flag=True, help="Replace FILE; print the command of what does not fit.")
@click.option("-v", "--verbose", is_flag=True, help="Every overlay, item of memory, advice and command.")
@reported
@with_project
def plan_command(
    words: tuple[str, ...],
    model: str | None,
    revision: str | None,
    named: str | None,
    card: str | None,
    gpu_memory_gib: float | None,
    weights_gib: float | None,
    log: Path | None,
    file: Path | None,
    requests: int,
    more: tuple[str, ...],
    *,
    listed: bool,
    verbose: bool,
    force: bool,
    slow_link: bool,
    download: bool,
    **options: Any,
) -> Report:
    """Show whether a model fits a GPU, and how to serve it.

    vpatch computes the overlays, the memory, the concurrency and the command from the model's config alone. It loads
    nothing, needs no GPU, and downloads nothing without --download. Estimates are shown with error bounds.

    COMMAND is a `vllm serve`, or a `docker run` or `podman run` of it, as you have it: behind --, or in quotes as one
    word. vpatch prints it completed.

    The first line is the verdict: fits, tight (not at the worst of the bounds), does not fit, or cannot know.

    Exit code 1: the model does not fit, or not all of it can be known.
    """
    introduce_project()
    if listed:
        return PresetsReport(presets=presets())
    pasted = pasted_in(words, alone=bool(log or named), compose=file is not None)
    model = named_model(words, model, pasted)
    if log:
        start = read_start(log, {**options, "preset": named, "compose": file}, model)
        known = load(model or start.model, revision, weights_gib=weights_gib, download=download)
        return logged(start, known, _gpu(card, gpu_memory_gib, None))
    if (model is None) == (named is None):
        raise click.UsageError("give MODEL or --preset; --list lists the presets")
    if file:
        check_outfile(file, force=force)
    given = {**options_of(pasted), **{name: value for name, value in options.items() if value is not None}}
    base = preset(named) if named else None
    revision = revision or given.pop("revision", None)
    if base:
        model, revision, more = base.model, revision or base.revision, (*more, *base.more)
    known = load(model or "", revision, weights_gib=weights_gib, download=download)
    asked = given.pop("vllm", None) or (base.vllm if base else None)
    here = None if asked else _installed()
    release = release_of(asked or here or NEWEST)
    deployment = _deployment(known, release, given, base, _gpu(card, gpu_memory_gib, base))
    check_type(deployment)
    installed = discover()
    select(installed, more)  # refuses a name that is not installed
    try:
        any_batch = "max_num_batched_tokens" not in {*given, *(base.options if base else ())}
        planned = plan(known, deployment, installed, requests=requests, more=more, any_batch=any_batch)
        own = project().selection
        usual = None if own == Selection() else {item.id for item in own.among(installed)}
        planned = replace(planned, usual=usual)
    except CannotKnow as failure:
        return _unknown(failure)
    unwritten: list[Problem] = []
    if file and not planned.problems:
        with collecting(unwritten):  # for want of an extra; the plan is known all the same
            text = compose(planned.model, planned.deployment, planned.overlays, ("vpatch", *sys.argv[1:]))
            write_outfile(file, text, force=force)
            tell(f"wrote {file}")
    doubts = [Caution("mistyped", one) for one in (pasted.mistyped() if pasted else ())]
    found = [*doubts, *cautions(planned.fit, planned.overlays, slow_link=slow_link)]
    notes = [*planned.without, *_larger_batch(planned, deployment)]
    if not asked and (why := _assumed(pasted, here)):
        made = "the plan, and the image that it builds, are" if pasted and pasted.container else "the plan is"
        notes = [f"{why}: {made} for {deployment.vllm}, unless you give --vllm", *notes]
    if pasted:
        notes = [*pasted.remarks(), *notes]
    report = _report(planned, found, notes, pasted, force=force, verbose=verbose)
    return replace(report, problems=(*report.problems, *unwritten))


def _deployment(model: Model, release: Release, given: dict[str, Any], base: Preset | None, card: Gpu) -> Deployment:
    """Return what was asked for: over a preset, or over what vLLM sets by itself."""
    if given.get("max_model_len") == "auto":
        given |= {"longest": True, "max_model_len": lengths(model, release)[1]}
    if base:
        return base.deployment(card, {**given, "release": release})
    return Deployment(release=release, gpu=card, **{**defaults(model, release, card), **given})


def _larger_batch(planned: Plan, asked: Deployment) -> Iterator[str]:
    """Yield why a plan has another batch than vLLM takes by default, if it has."""
    tokens, default = planned.deployment.max_num_batched_tokens, asked.max_num_batched_tokens
    if tokens != default:
        room = f"a block of {planned.fit.layout.block_size:,} tokens beside the decodes of a step"
        yield f"--max-num-batched-tokens is {tokens}, which has room for {room}; vLLM's default, {default}, has not"


def _unknown(failure: CannotKnow) -> Report:
    verdict = PlanVerdict.CANNOT_KNOW
    about = {"verdict": verdict.value, "vllm": str(failure.deployment.vllm), "gpu": failure.deployment.gpu.name}
    shown = title(verdict, failure.model, failure.deployment)
    return TextReport(object=about, lines=[shown], whole=True, problems=failure.problems)


def _report(
    planned: Plan, found: Sequence[Caution], notes: Sequence[str], pasted: Pasted | None, *, force: bool, verbose: bool
) -> Report:
    warnings = [f"{one.name}: {one.because}{f' ({one.source})' if one.source else ''}" for one in found]
    wanted = force or planned.verdict in FITTING
    run = pasted.container if pasted else None
    return PlanReport(
        plan=planned,
        advised=found,
        commands=commands(planned.model, planned.deployment, planned.overlays, run) if wanted else {},
        brief=("build", "docker") if run else ("apply", "serve"),
        verbose=verbose,
        problems=planned.problems,
        cautions=warnings,
        notes=notes,
    )


def _gpu(card: str | None, gpu_memory_gib: float | None, base: Preset | None) -> Gpu:
    memory = None if gpu_memory_gib is None else int(gpu_memory_gib * GIB)
    if card is None and memory is None and base is None and (here := gpu_here()):
        return here
    default = base.gpu if base else None if memory else "RTX 5090"
    return gpu(default if card is None else card, memory)


def _installed() -> Version | None:
    """Return the version of the installed vLLM; None if no vLLM is found, or its version is not known."""
    try:
        return Version(current().tree.version or "")
    except (Failure, InvalidVersion):
        return None


def _assumed(pasted: Pasted | None, here: Version | None) -> str:
    """Return why a plan is for a release that the user has not named; "" if it is that of the vLLM that is `here`."""
    if pasted and pasted.container:
        return f"{pasted.container.image} names no release of vLLM"
    return "" if here else "no vLLM of a known version is installed here"

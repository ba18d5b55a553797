"""The command that computes what a model needs before anything is installed: plan."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
from packaging.version import InvalidVersion, Version

from vpatch.cli.options import (
    PathType,
    check_outfile,
    examples,
    introduce_project,
    reported,
    with_project,
    write_outfile,
)
from vpatch.cli.output import Grid, Report, TextReport, on_terminal, tell
from vpatch.cli.wording import Line
from vpatch.core.catalogue import discover
from vpatch.errors import Failure
from vpatch.plan import GIB, Model
from vpatch.plan.cautions import Caution, cautions
from vpatch.plan.commands import commands, compose
from vpatch.plan.defaults import Preset, defaults, gpu, gpu_here, lengths, preset, presets
from vpatch.plan.deployment import DRAFTS, MOST, NEWEST, Deployment, Gpu, release_of
from vpatch.plan.log_comparison import Compared, Comparison, compare
from vpatch.plan.models import load
from vpatch.plan.rendering import as_object, lines, page, title
from vpatch.plan.startup_log import LOG_BYTES, Start, read, start_of
from vpatch.plan.verdict import FITTING, CannotKnow, Plan, PlanVerdict, plan
from vpatch.tree.environment import current

COUNT = click.IntRange(1, MOST)


def _version(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Version | None:
    try:
        version = Version(value) if value else None
    except InvalidVersion as error:
        raise click.BadParameter(f"{value!r} is not a version of vLLM") from error
    # Releases, and their images, are named by three numbers.
    return Version(f"{version}.0") if version and re.fullmatch(r"\d+\.\d+", str(version)) else version


class _Number(click.FloatRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if math.isnan(found):  # it is neither below nor above a bound
            self.fail(f"{value!r} is not a number", param, ctx)
        return found


class _Count(click.IntRange):
    """A number as vLLM takes it: 25600, 25.6k (thousands) or 25K (of 1,024), and so for M, G and T."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and (parts := re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)([kKmMgGtT])", value)):
            power = "kmgt".index(parts[2].lower()) + 1
            size = Decimal(parts[1]) * (1000 if parts[2].islower() else 1024) ** power
            if size % 1:
                self.fail(f"{value!r} is not a whole number", param, ctx)
            value = int(size)
        return super().convert(value, param, ctx)


class _Length(_Count):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "auto" else super().convert(value, param, ctx)


def _presets(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    return [one.name for one in presets() if one.name.startswith(typed)]


@click.command(
    "plan",
    epilog=examples(
        "plan --model Qwen3.6-35B-A3B-NVFP4 --gpu 5090 --kv-cache-dtype turboquant_4bit_nc --max-num-seqs 16",
        "plan --list",
        "plan --preset qwen3.6-35b-5090-262k --compose compose.yaml",
    ),
)
@click.option("--model", metavar="MODEL", help="A folder or file with a config.json, or a model that is recorded.")
@click.option("--revision", metavar="R", help="A revision of the model.")
@click.option("--preset", "named", metavar="NAME", shell_complete=_presets, help="A deployment from --list.")
@click.option("--list", "listed", is_flag=True, help="List the presets.")
@click.option("--vllm", metavar="V", callback=_version, help=f"Default: the vLLM that is installed, or {NEWEST}.")
@click.option("--gpu", "card", metavar="NAME", help="Default: the one that is here, or RTX 5090.")
@click.option("--gpu-memory-gib", type=_Number(1, 4096), metavar="F", help="The memory that CUDA reports of a GPU.")
@click.option("--desktop/--headless", default=None, help="Whether a desktop runs on the GPU. Default: headless.")
@click.option("--slow-link", is_flag=True, help="GPUs are joined by PCIe x4 or the like.")
@click.option("--kv-cache-dtype", metavar="D", help="As of `vllm serve`: auto, fp8, nvfp4, turboquant_4bit_nc ...")
@click.option("--mamba-ssm-cache-dtype", metavar="D", help="As of `vllm serve`: auto, float32, float16, bfloat16.")
@click.option("--max-model-len", type=_Length(1, MOST), metavar="N", help="As of `vllm serve`: tokens, or `auto`.")
@click.option("--max-num-seqs", type=COUNT, metavar="N", help="As of `vllm serve`.")
@click.option("--max-num-batched-tokens", type=_Count(1, MOST), metavar="N", help="As of `vllm serve`.")
@click.option("--gpu-memory-utilization", type=_Number(0, 1, min_open=True), metavar="F", help="As of `vllm serve`.")
@click.option("--kv-cache-memory-bytes", type=_Count(1, MOST), metavar="N", help="As of `vllm serve`.")
@click.option("--tensor-parallel-size", type=COUNT, metavar="N", help="As of `vllm serve`.")
@click.option("--pipeline-parallel-size", type=COUNT, metavar="N", help="As of `vllm serve`.")
@click.option(
    "--speculative",
    "speculative_tokens",
    type=click.IntRange(0, DRAFTS),
    metavar="K",
    help="Tokens of multi-token prediction.",
)
@click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=None, help="As of `vllm serve`.")
@click.option("--enforce-eager", is_flag=True, default=None, help="As of `vllm serve`.")
@click.option("--language-model-only", is_flag=True, default=None, help="As of `vllm serve`: without the vision tower.")
@click.option("--requests", type=COUNT, default=1, metavar="N", help="To be served at once, at full length.")
@click.option("--weights-gib", type=_Number(0, 65536, min_open=True), metavar="F", help="Once loaded, without MTP.")
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
    model: str | None,
    revision: str | None,
    named: str | None,
    card: str | None,
    gpu_memory_gib: float | None,
    weights_gib: float | None,
    log: Path | None,
    file: Path | None,
    requests: int,
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

    The first line is the verdict: fits, tight (not at the worst of the bounds), does not fit, or cannot know.

    Exit code 1: the model does not fit, or not all of it can be known.
    """
    introduce_project()
    if listed:
        return PresetsReport(presets=presets())
    if log:
        start = _read_start(log, {**options, "preset": named, "compose": file}, model)
        known = load(model or start.model, revision, weights_gib=weights_gib, download=download)
        return _logged(start, known, _gpu(card, gpu_memory_gib, None))
    if (model is None) == (named is None):
        raise click.UsageError("give --model or --preset; --list lists the presets")
    if file:
        check_outfile(file, force=force)
    base = preset(named) if named else None
    if base:
        model, revision = base.model, revision or base.revision
    known = load(model or "", revision, weights_gib=weights_gib, download=download)
    given = {name: value for name, value in options.items() if value is not None}
    release = release_of(given.pop("vllm", None) or (base.vllm if base else _installed()))
    if given.get("max_model_len") == "auto":
        given |= {"longest": True, "max_model_len": lengths(known, release)[1]}
    chosen = _gpu(card, gpu_memory_gib, base)
    if base:
        deployment = base.deployment(chosen, {**given, "release": release})
    else:  # with what vLLM sets by itself
        deployment = Deployment(release=release, gpu=chosen, **{**defaults(known, release, chosen), **given})
    try:
        planned = plan(known, deployment, discover(), requests=requests)
    except CannotKnow as failure:
        return _unknown(failure)
    if file and not planned.problems:
        text = compose(planned.model, planned.deployment, planned.overlays)
        write_outfile(file, text, force=force)
        tell(f"wrote {file}")
    return _report(planned, cautions(planned.fit, slow_link=slow_link), force=force, verbose=verbose)


def _read_start(log: Path, options: Mapping[str, Any], model: str | None) -> Start:
    """Read a log, of standard input if it is `-`.

    Raises:
        UsageError: options are the log's to say, or it lacks the model.
        Failure: it cannot be read, or is no log of one start.
    """
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None and name != "vllm"]
    if given:
        raise click.UsageError(f"--log compares what the log says: leave out {', '.join(given)}")
    vllm = str(options["vllm"] or "")
    if log == _STDIN:
        text = sys.stdin.buffer.read(LOG_BYTES) if sys.stdin else b""
        start = start_of(text.decode("utf-8", "replace").splitlines(), "standard input", vllm)
    else:
        start = read(log, vllm)
    if not (model or start.model):
        raise click.UsageError("the log does not have the model: give --model")
    return start


def _unknown(failure: CannotKnow) -> Report:
    verdict = PlanVerdict.CANNOT_KNOW
    about = {"verdict": verdict.value, "vllm": str(failure.deployment.vllm), "gpu": failure.deployment.gpu.name}
    shown = title(verdict, failure.model, failure.deployment)
    return TextReport(object=about, lines=[shown], whole=True, problems=failure.problems)


def _report(planned: Plan, found: Sequence[Caution], *, force: bool, verbose: bool) -> Report:
    warnings = [f"{one.name}: {one.because}{f' ({one.source})' if one.source else ''}" for one in found]
    wanted = force or planned.verdict in FITTING
    written = commands(planned.model, planned.deployment, planned.overlays) if wanted else {}
    if on_terminal(sys.stdout):
        shown = page(planned, written, shutil.get_terminal_size().columns, verbose=verbose)
    else:
        shown = lines(planned, written, verbose=verbose)
    fields = as_object(planned, found, written)
    return TextReport(object=fields, lines=[*shown], whole=True, problems=planned.problems, cautions=warnings)


def _gpu(card: str | None, gpu_memory_gib: float | None, base: Preset | None) -> Gpu:
    memory = None if gpu_memory_gib is None else int(gpu_memory_gib * GIB)
    if card is None and memory is None and base is None and (here := gpu_here()):
        return here
    default = base.gpu if base else None if memory else "RTX 5090"
    return gpu(default if card is None else card, memory)


def _installed() -> Version:
    """Return the version of the installed vLLM, or the newest release if no vLLM is found."""
    try:
        return Version(current().tree.version or str(NEWEST))
    except (Failure, InvalidVersion):
        return NEWEST


@dataclass(frozen=True, kw_only=True)
class PresetsReport(Report):
    """The report of `plan --list`."""

    presets: Sequence[Preset]

    def fields(self) -> Mapping[str, Any]:
        """Return the presets."""
        names = ("name", "summary", "source", "model", "vllm")
        return {"presets": [{name: str(getattr(one, name)) for name in names} for one in self.presets]}

    def shown(self, width: int | None) -> Iterable[Line] | Grid:
        """Return a table for a terminal, else a line for each."""
        if width is None:
            return [Line(f"{one.name}: {one.summary}") for one in self.presets]
        return Grid([("preset", "what"), *((one.name, one.summary) for one in self.presets)])


_STDIN = Path("-")
_OPTIONS = {field.name for field in fields(Deployment)} | {"model", "revision", "quantization", "speculative_config"}


def _logged(start: Start, model: Model, gpu: Gpu) -> TextReport:
    """Return the comparison of a log with the plan; raise `Failure` if there is no such plan."""
    found = compare(model, start, gpu)
    record = {  # to send in: what was started, on what, and what vLLM printed of it
        "vllm": str(start.vllm),
        "model": start.model or model.name,
        "architecture": model.architecture,
        "gpu": found.fit.deployment.gpu.name,
        "arguments": {name: value for name, value in start.arguments.items() if name in _OPTIONS},
        "printed": dict(start.printed),
        "refused": start.refused,
    }
    numbers = [{**asdict(one), "error": round(one.error, 4), "within": one.within} for one in found.numbers]
    about = {"numbers": numbers, "record": record, "verdict": "refused" if start.refused else "started"}
    return TextReport(object=about, lines=[*_lines(found, model), json.dumps(record)], whole=True)


def _lines(found: Comparison, model: Model) -> Iterator[str]:
    deployment, did = found.fit.deployment, "refused" if found.start.refused else "started"
    yield f"{did}: {model.name} on {deployment.gpus} x {deployment.gpu.name}, vLLM {deployment.vllm}"
    yield from map(_line, found.numbers)
    if worst := found.worst:
        yield f"most off: {worst.name}, by {worst.planned - worst.printed:+.2f} GiB"
    holds, length = found.measured.likely, deployment.max_model_len
    if found.start.kv_cache_gib > 0:
        longest = f"the longest that fits has {found.measured.longest:,}"
        yield f"measured: {holds.concurrency:.2f} requests of {length:,} tokens; {longest}"


def _line(one: Compared) -> str:
    in_gib = one.name not in ("block size", "tokens", "concurrency")
    unit, digits = (" GiB", 2) if in_gib else ("", 2 if one.name == "concurrency" else 0)
    bounds = f" ({one.least:,.{digits}f} to {one.most:,.{digits}f})" if one.least != one.most else ""
    outside = "" if one.within else ", outside of the bounds"
    planned = f"plan {one.planned:,.{digits}f}{bounds}"
    return f"{one.name.lower()}: {one.printed:,.{digits}f}{unit}, {planned}: {one.error:+.1%}{outside}"

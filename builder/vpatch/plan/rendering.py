"""A plan as commands and a compose file to deploy it, as lines for a pipe, as a page for a terminal, and as JSON."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import PurePosixPath
from typing import Any

from vpatch.errors import Failure, Problem
from vpatch.installation import how_to_add
from vpatch.plan import GIB, Model
from vpatch.plan.deployment import Deployment, arithmetic_of, image
from vpatch.plan.memory import Estimate
from vpatch.plan.planner import Needed, Plan
from vpatch.wrapping import wrapped

PORT = "127.0.0.1:8000:8000"
# Volumes, and where vLLM's images expect them: downloaded files, and compiled ones.
HUB = ("huggingface", "/root/.cache/huggingface")
CACHE = ("vllm-cache", "/root/.cache")
# Every image of vLLM has Python; `http.client` ignores the proxies that the container may be told to use.
HEALTH_CHECK = (
    "import http.client; server = http.client.HTTPConnection('127.0.0.1', 8000, timeout=5); "
    "server.request('GET', '/health'); raise SystemExit(server.getresponse().status != 200)"
)

FILLS, FREE = "█▓▒▤▥▦▧▨▚▞", "░"
_NARROW = 24  # columns that a reason needs beside its row
_BELOW = " " * 6  # before a reason below its row
_TOGETHER = "\N{NO-BREAK SPACE}"
_NEEDED = {True: "needed", False: "not needed", None: "unknown"}

Lines = tuple[tuple[str, ...], ...]  # a command: the arguments on each line that is shown
Rows = Sequence[tuple[str, ...]]


def shell(command: Lines) -> str:
    """Return the text of a command to paste into a shell."""
    return " \\\n  ".join(map(shlex.join, command))


def commands(model: Model, deployment: Deployment, overlays: Collection[str]) -> dict[str, str]:
    """Return the commands to paste into a shell, by name, in the order in which to run them."""
    written = {"apply": apply(overlays), "serve": serve(model, deployment), "build": build(deployment, overlays)}
    written["docker"] = docker(model, deployment, overlays)
    return {name: shell(command) for name, command in written.items() if command}


def apply(overlays: Collection[str]) -> Lines:
    """Return `vpatch apply` of these overlays to the installed vLLM; empty without any."""
    return (("vpatch", "apply"), *_named(overlays)) if overlays else ()


def serve(model: Model, deployment: Deployment) -> Lines:
    """Return `vllm serve`."""
    variables = ("env", *deployment.environment) if deployment.environment else ()
    first, *rest = _options(model.name, model, deployment)
    return ((*variables, "vllm", "serve", *first), *rest)


def build(deployment: Deployment, overlays: Collection[str]) -> Lines:
    """Return `vpatch build` of the image that `docker` and `compose` run; empty if it exists already."""
    wanted = image(deployment, overlays)
    lines = (("vpatch", "build"), ("--base", wanted.base), *_named(wanted.overlays), ("--tag", wanted.name))
    return lines if wanted.built else ()


def docker(model: Model, deployment: Deployment, overlays: Collection[str]) -> Lines:
    """Return `docker run` of the image with these overlays, published on the loopback address."""
    name, mounted = _in_container(model)
    bind = io.StringIO()  # docker reads fields as CSV: quoted if there is a comma in them
    csv.writer(bind, lineterminator="").writerow(("type=bind", f"source={model.name}", f"target={name}", "readonly"))
    return (
        *(("docker", "run", "--rm"), ("--gpus", str(deployment.gpus)), ("--ipc=host",)),
        *(("-e", variable) for variable in ("HF_TOKEN", *deployment.environment)),
        *(("-v", ":".join(volume)) for volume in (CACHE, HUB)),
        *((("--mount", bind.getvalue()),) if mounted else ()),
        ("-p", PORT),
        (image(deployment, overlays).name,),
        *_options(name, model, deployment),
    )


def compose(model: Model, deployment: Deployment, overlays: Collection[str]) -> str:
    """Return the text of a compose file for the image with these overlays; raise `Failure` without the YAML library."""
    try:
        from ruamel.yaml import YAML
    except ImportError as error:
        cause = f"{error}; install it with {how_to_add('plan')}"
        raise Failure(Problem("cannot write a compose file", "ruamel.yaml", cause)) from error
    yaml = YAML()
    yaml.width = 1 << 30  # else long strings are folded
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    yaml.dump(_quoted(_services(model, deployment, overlays)), text)
    first = build(deployment, overlays)
    notes = ["HF_TOKEN is passed on where it is set; only private models need it."]
    notes += ["The image is made by:", *(f"  {line}" for line in shell(first).splitlines())] if first else []
    return "".join(f"# {note}\n" for note in notes) + text.getvalue()


def _services(model: Model, deployment: Deployment, overlays: Collection[str]) -> dict[str, Any]:
    wanted = image(deployment, overlays)
    inside, mounted = _in_container(model)
    bind = {"type": "bind", "source": model.name, "target": inside, "read_only": True}
    volumes = [{"type": "volume", "source": name, "target": target} for name, target in (CACHE, HUB)]
    test = ["CMD", "python3", "-c", HEALTH_CHECK]
    # The first start downloads the weights; each one loads them, compiles and captures graphs.
    health = {"test": test, "interval": "30s", "timeout": "10s", "retries": 3, "start_period": "1h"}
    device = {"driver": "nvidia", "count": deployment.gpus, "capabilities": ["gpu"]}
    service = {
        "image": wanted.name,
        **({"pull_policy": "never"} if wanted.built else {}),
        "command": list(chain(*_options(inside, model, deployment))),
        "environment": ["HF_TOKEN", *deployment.environment],
        "ports": [PORT],
        "volumes": [*volumes, *([bind] if mounted else [])],
        "ipc": "host",
        "deploy": {"resources": {"reservations": {"devices": [device]}}},
        "healthcheck": health,
        "restart": "unless-stopped",
    }
    # Under their own names, so that `docker run` and every project share the downloads.
    return {"services": {"vllm": service}, "volumes": {name: {"name": name} for name, _ in (CACHE, HUB)}}


def _quoted(value: Any) -> Any:
    """Make YAML and compose read back each string unchanged: in quotes, and without variables."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, dict):
        return {key: _quoted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_quoted(item) for item in value]
    return DoubleQuotedScalarString(value.replace("$", "$$")) if isinstance(value, str) else value


def _named(overlays: Collection[str]) -> Lines:
    return tuple(("--overlay", one) for one in sorted(overlays))


def _in_container(model: Model) -> tuple[str, bool]:
    """Return a model's name inside a container, and whether it is a folder to mount there."""
    mounted = model.name.startswith("/")
    return (f"/models/{PurePosixPath(model.name).name}" if mounted else model.name), mounted


def _options(name: str, model: Model, deployment: Deployment) -> Lines:
    ranks, stages = deployment.tensor_parallel_size, deployment.pipeline_parallel_size
    draft = {"method": "mtp", "num_speculative_tokens": deployment.speculative_tokens}
    values = {
        "--revision": model.revision or None,
        "--tensor-parallel-size": ranks if ranks > 1 else None,
        "--pipeline-parallel-size": stages if stages > 1 else None,
        "--kv-cache-dtype": None if deployment.kv_cache_dtype == "auto" else deployment.kv_cache_dtype,
        "--max-model-len": "auto" if deployment.longest else deployment.max_model_len,
        "--max-num-seqs": deployment.max_num_seqs,
        "--max-num-batched-tokens": deployment.max_num_batched_tokens,
        "--gpu-memory-utilization": deployment.gpu_memory_utilization,
        "--kv-cache-memory-bytes": deployment.kv_cache_memory_bytes,
        "--enable-prefix-caching" if deployment.enable_prefix_caching else "--no-enable-prefix-caching": True,
        "--speculative-config": json.dumps(draft) if deployment.speculative_tokens else None,
        "--enforce-eager": deployment.enforce_eager or None,
        "--language-model-only": deployment.language_model_only or None,
    }
    options: list[tuple[str, ...]] = [(name,)]
    for option, value in values.items():
        if value is not None:
            options.append((option,) if value is True else (option, str(value)))
    for argument in deployment.extra:
        if argument.startswith("--"):
            options.append(())
        options[-1] = (*options[-1], argument)
    return tuple(options)


def lines(plan: Plan, commands: Mapping[str, str]) -> Iterator[str]:
    """Yield one fact per line, as `what: name: ...`, and the commands."""
    yield f"plan: {_title(plan)}"
    for what, rows in _facts(plan).items():
        for row in rows:
            yield ": ".join(({"overlays": "overlay"}.get(what, what.lower()), *row))
    for name, command in commands.items():
        yield from (f"# {name}", *command.split("\n"))


def page(plan: Plan, commands: Mapping[str, str], width: int) -> Iterator[str]:
    """Yield the lines for a terminal of so many columns."""
    yield from wrapped(_title(plan), width, hanging="  ")
    for heading, rows in _facts(plan).items():
        yield ""
        if heading == "memory":
            yield from _bar(plan, width)
        yield heading
        # Not by rich, whose tables fold and pad the last column.
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
        for *cells, last in rows:
            start = "  ".join(["", *(cell.ljust(size) for cell, size in zip(cells, widths, strict=True)), ""])
            if len(start) + min(len(last), _NARROW) <= width:
                yield from wrapped(last, width, start, " " * len(start))
            else:
                yield start.rstrip()
                yield from wrapped(last, width, _BELOW, _BELOW)
    for name, command in commands.items():
        yield from ("", f"{name}:", *command.split("\n"))


def _title(plan: Plan) -> str:
    model, deployment = plan.model, plan.deployment
    revision = f" ({model.revision})" if model.revision else ""
    cards = f"{deployment.gpus} x {deployment.gpu.name}" if deployment.gpus > 1 else deployment.gpu.name
    return f"{model.name}{revision} on {cards}, vLLM {deployment.vllm}, KV cache {deployment.kv_cache_dtype}"


def _facts(plan: Plan) -> dict[str, Rows]:
    return {
        "overlays": [(need.id, _word(need), need.because) for need in plan.needs],
        "memory": list(_sizes(plan)),
        "KV cache": list(_cache(plan)),
        "advice": [(advice,) for advice in _advice(plan)],
    }


def _word(need: Needed) -> str:
    return "recommended" if need.recommended else _NEEDED[need.needed]


def _bar(plan: Plan, width: int) -> Iterator[str]:
    memory = plan.fit.memory  # drawn as one line, with the key below
    columns = max(20, min(width, 100))
    sizes = [(item.name, item.size.likely) for item in memory.items if item.counted]
    sizes.append(("KV cache", max(0, memory.kv_cache.likely)))
    sizes += [(item.name, item.size.likely) for item in memory.items if not item.counted]
    drawn, key, end = "", [], 0
    scale = max(memory.total, sum(size for _, size in sizes))
    for fill, (name, size) in zip(FILLS, sizes, strict=False):
        end += size
        drawn += fill * (round(end / scale * columns) - len(drawn))
        key.append(f"{fill} {name}")
    yield drawn + FREE * (columns - len(drawn))
    whole = "  ".join(entry.replace(" ", _TOGETHER) for entry in (*key, f"{FREE} free"))
    yield from (line.replace(_TOGETHER, " ") for line in wrapped(whole, width))


def _sizes(plan: Plan) -> Iterator[tuple[str, str, str]]:
    memory = plan.fit.memory
    for item in memory.items:
        yield item.name, _sized(item.size), item.because + ("" if item.counted else " (on top of vLLM's share)")
    share = f"what is left of vLLM's share, {memory.requested / GIB:.2f} GiB"
    yield "KV cache", _sized(memory.kv_cache), "as asked for" if memory.kv_cache.exact else share
    yield "free", _sized(memory.left), f"of {memory.total / GIB:.2f} GiB, with everything in use"


def _sized(size: Estimate) -> str:
    likely = f"{size.likely / GIB:.2f} GiB"
    return likely if size.exact else f"{likely} ({size.least / GIB:.2f} to {size.most / GIB:.2f})"


def _cache(plan: Plan) -> Iterator[tuple[str, str]]:
    fit, length = plan.fit, plan.deployment.max_model_len
    holds, count = fit.likely, len(fit.layout.groups)
    groups = f"{count} groups of layers" if count > 1 else "one group of layers"
    yield "blocks", f"{holds.blocks:,} of {fit.layout.block_size:,} tokens, shared by {groups}"
    yield "a request", f"of {length:,} tokens takes {holds.blocks_per_request:,} blocks"
    bounds = f" ({fit.least.concurrency:.2f} to {fit.most.concurrency:.2f})" if fit.least != fit.most else ""
    yield "concurrency", f"{holds.concurrency:.2f} requests of that length{bounds}"
    prints_slots = arithmetic_of(plan.deployment.vllm).prints_slots
    printed = "; this vLLM prints it"
    yield "slots", f"{holds.slots:,} (blocks // groups * block size){printed if prints_slots else ''}"
    yield "tokens", f"{holds.tokens:,} (concurrency x length){'' if prints_slots else printed}"


def _advice(plan: Plan) -> Iterator[str]:
    advice = plan.advice
    if advice.max_model_len:
        yield f"--max-model-len {advice.max_model_len} is the longest that fits"
    if advice.max_num_seqs:
        yield f"--max-num-seqs {advice.max_num_seqs} is the most that leaves room for a request of full length"
    if share := advice.gpu_memory_utilization:
        served = f"{advice.requests} requests" if advice.requests > 1 else "a request"
        yield f"--gpu-memory-utilization {share} is the least that serves {served} of full length"
    for need in plan.needs:
        if need.recommended:
            yield f"`vpatch apply --with {need.id}` adds an opt-in overlay that is recommended for this deployment"


def as_object(plan: Plan, commands: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the JSON object that only this command has; sizes are GiB, rounded to a thousandth."""
    fit, deployment = plan.fit, plan.deployment
    memory, layout = fit.memory, fit.layout
    return {
        "vllm": str(deployment.vllm),
        "model": _only(plan.model, "name", "revision", "architecture", "hybrid", "unknown"),
        "gpu": {"name": deployment.gpu.name, "gib": _gib(deployment.gpu.memory)},
        "fits": fit.fits,
        "overlays": [_only(need, "id", "needed", "recommended", "because", "state", "opt_in") for need in plan.needs],
        "kv_cache": {
            "dtype": deployment.kv_cache_dtype,
            **_bounded(memory.kv_cache),
            **_only(layout, "block_size", "page_bytes", "state_bytes"),
            "groups": len(layout.groups),
            **_only(fit.likely, "blocks", "blocks_per_request", "slots", "tokens"),
            "prints": "slots" if arithmetic_of(deployment.vllm).prints_slots else "tokens",
            "concurrency": round(fit.likely.concurrency, 4),
            "least_concurrency": round(fit.least.concurrency, 4),
            "max_model_len": deployment.max_model_len,
        },
        "memory": {
            "total_gib": _gib(memory.total),
            "requested_gib": _gib(memory.requested),
            "needed_gib": _gib(fit.needed),
            "items": [
                {"name": item.name, **_bounded(item.size), "counted": item.counted, "because": item.because}
                for item in memory.items
            ],
            "left": _bounded(memory.left),
        },
        "advice": asdict(plan.advice),
        "warnings": [asdict(caution) for caution in plan.cautions],
        "commands": dict(commands),
    }


def _only(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _gib(size: int) -> float:
    return round(size / GIB, 3)


def _bounded(size: Estimate) -> dict[str, float]:
    bounds = {} if size.exact else {"least_gib": _gib(size.least), "most_gib": _gib(size.most)}
    return {"gib": _gib(size.likely), **bounds}

"""The commands and the compose file that deploy a plan: overlays applied, an image built, vLLM served."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import PurePosixPath
from typing import Any

from vpatch.errors import Failure, Problem
from vpatch.plan import table
from vpatch.plan.architectures import Model
from vpatch.plan.deployment import Deployment

STOCK = "vllm/vllm-openai"
PORT = "127.0.0.1:8000:8000"
# Volumes, and where vLLM's images expect them: downloaded files, and compiled ones.
HUB = ("huggingface", "/root/.cache/huggingface")
CACHE = ("vllm-cache", "/root/.cache")
# Every image of vLLM has Python; `http.client` ignores the proxies that the container may be told to use.
HEALTH_CHECK = (
    "import http.client; server = http.client.HTTPConnection('127.0.0.1', 8000, timeout=5); "
    "server.request('GET', '/health'); raise SystemExit(server.getresponse().status != 200)"
)

Lines = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Image:
    """An image with `overlays`, and its base without any; `built` if you must build it first."""

    base: str
    name: str
    overlays: tuple[str, ...] = ()
    built: bool = False


@cache
def defined() -> tuple[Image, ...]:
    """Return the patched images that are published, or are to be."""
    return tuple(Image(one["base"], one["name"], tuple(one["overlays"])) for one in table("images.toml")["image"])


def published() -> tuple[Image, ...]:
    """Return the patched images that a registry has."""
    return defined() if table("images.toml")["published"] else ()


def image(deployment: Deployment, overlays: Collection[str], there: Sequence[Image] | None = None) -> Image:
    """Return the image to run, with at least these overlays: vLLM's, one that is `there` or published, or a new one."""
    tag = f"v{deployment.vllm.public}{deployment.cuda and '-'}{deployment.cuda}"
    base = f"{STOCK}:{tag}"
    if not overlays:
        return Image(base, base)
    for one in published() if there is None else there:
        if one.base == base and set(overlays) <= set(one.overlays):
            return one
    # In no registry: an image that is not built yet must not be pulled from a stranger who took the name.
    return Image(base, f"localhost/vllm-openai:{tag}-vpatch", tuple(sorted(overlays)), built=True)


@dataclass(frozen=True)
class Command:
    """A command; each of its `lines` has the arguments that stand on one line when it is shown."""

    lines: Lines

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments to execute."""
        return tuple(chain(*self.lines))

    def __str__(self) -> str:
        return " \\\n  ".join(map(shlex.join, self.lines))


def commands(model: Model, deployment: Deployment, overlays: Collection[str]) -> dict[str, str]:
    """Return the commands to paste into a shell, by name, in the order in which to run them."""
    written = {
        "apply": apply(overlays),
        "serve": serve(model, deployment),
        "build": build(deployment, overlays),
        "docker": docker(model, deployment, overlays),
    }
    return {name: str(command) for name, command in written.items() if command}


def apply(overlays: Collection[str]) -> Command | None:
    """Return `vpatch apply` of these overlays to the installed vLLM; None without any."""
    return Command((("vpatch", "apply"), *_named(overlays))) if overlays else None


def serve(model: Model, deployment: Deployment) -> Command:
    """Return `vllm serve`."""
    variables = deployment.environment
    first, *rest = _options(model.name, model, deployment)
    return Command(((*(("env", *variables) if variables else ()), "vllm", "serve", *first), *rest))


def build(deployment: Deployment, overlays: Collection[str]) -> Command | None:
    """Return `vpatch build` of the image that `docker` and `compose` run; None if it exists already."""
    wanted = image(deployment, overlays)
    if not wanted.built:
        return None
    return Command((("vpatch", "build"), ("--base", wanted.base), *_named(wanted.overlays), ("--tag", wanted.name)))


def docker(model: Model, deployment: Deployment, overlays: Collection[str]) -> Command:
    """Return `docker run` of the image with these overlays, published on the loopback address."""
    name, mounted = _in_container(model)
    bind = io.StringIO()  # docker reads fields as CSV: quoted if there is a comma in them
    csv.writer(bind, lineterminator="").writerow(("type=bind", f"source={model.name}", f"target={name}", "readonly"))
    lines = (
        ("docker", "run", "--rm"),
        ("--gpus", str(deployment.gpus)),
        ("--ipc=host",),
        *(("-e", variable) for variable in ("HF_TOKEN", *deployment.environment)),
        *(("-v", ":".join(volume)) for volume in (CACHE, HUB)),
        *((("--mount", bind.getvalue()),) if mounted else ()),
        ("-p", PORT),
        (image(deployment, overlays).name,),
        *_options(name, model, deployment),
    )
    return Command(lines)


def compose(model: Model, deployment: Deployment, overlays: Collection[str]) -> str:
    """Return the text of a compose file for the image with these overlays; raise `Failure` without the YAML library."""
    try:
        from ruamel.yaml import YAML
    except ImportError as error:
        cause = f"{error}; install it with: pip install 'vpatch[plan]'"
        raise Failure(Problem("cannot write a compose file", "ruamel.yaml", cause)) from error
    yaml = YAML()
    yaml.width = 1 << 30  # else long strings are folded
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    yaml.dump(_quoted(_services(model, deployment, overlays)), text)
    first = build(deployment, overlays)
    notes = ["HF_TOKEN is passed on where it is set; only private models need it."]
    notes += ["The image is made by:", *(f"  {line}" for line in str(first).splitlines())] if first else []
    return "".join(f"# {note}\n" for note in notes) + text.getvalue()


def _services(model: Model, deployment: Deployment, overlays: Collection[str]) -> dict[str, Any]:
    wanted = image(deployment, overlays)
    inside, mounted = _in_container(model)
    bind = {"type": "bind", "source": model.name, "target": inside, "read_only": True}
    volumes = [{"type": "volume", "source": name, "target": target} for name, target in (CACHE, HUB)]
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
        "healthcheck": {
            "test": ["CMD", "python3", "-c", HEALTH_CHECK],
            "interval": "30s",
            "timeout": "10s",
            "retries": 3,
            # The first start downloads the weights, and each one loads them, compiles and captures graphs. A server
            # that answers earlier is healthy then.
            "start_period": "1h",
        },
        "restart": "unless-stopped",
    }
    # Under their own names, so that `docker run` and every project share the downloads.
    return {"services": {"vllm": service}, "volumes": {name: {"name": name} for name, _ in (CACHE, HUB)}}


def _quoted(value: Any) -> Any:
    """Make YAML and compose read back each string unchanged: in quotes, and without variables."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    match value:
        case dict():
            return {key: _quoted(item) for key, item in value.items()}
        case list():
            return [_quoted(item) for item in value]
        case str():
            return DoubleQuotedScalarString(value.replace("$", "$$"))
    return value


def _named(overlays: Collection[str]) -> Lines:
    return tuple(("--overlay", one) for one in sorted(overlays))


def _in_container(model: Model) -> tuple[str, bool]:
    """Return a model's name inside a container, and whether it is a folder to mount there."""
    mounted = model.name.startswith("/")
    return (f"/models/{PurePosixPath(model.name).name}" if mounted else model.name), mounted


def _options(name: str, model: Model, deployment: Deployment) -> Lines:
    """Return the arguments of `vllm serve`: the name, and each option that is not the default everywhere."""
    ranks, stages = deployment.tensor_parallel_size, deployment.pipeline_parallel_size
    draft = {"method": "mtp", "num_speculative_tokens": deployment.speculative_tokens}
    prefixes = deployment.enable_prefix_caching
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
        "--enable-prefix-caching" if prefixes else "--no-enable-prefix-caching": True,
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
            options.append((argument,))
        else:
            options[-1] = (*options[-1], argument)
    return tuple(options)

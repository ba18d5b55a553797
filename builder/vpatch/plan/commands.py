"""The commands and the compose file that deploy a plan."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from vpatch.installation import needing
from vpatch.plan import Model
from vpatch.plan.checkpoint_files import cache_home
from vpatch.plan.container import Container, divided, masked, release
from vpatch.plan.deployment import Deployment, table
from vpatch.wrapping import printable

STOCK = "vllm/vllm-openai"
_BUILT, _PATCHED = "localhost/vllm-openai:", "-vpatch"  # what the names of images that `vpatch build` makes have
PORT = "127.0.0.1:8000:8000"
# A volume for compiled files, and where vLLM's images have these and downloaded models.
CACHE = ("vllm-cache", "/root/.cache")
HUB = "/root/.cache/huggingface/hub"
# Every image of vLLM has Python; `http.client` ignores the proxies that the container may be told to use.
HEALTH_CHECK = (
    "import http.client; server = http.client.HTTPConnection('127.0.0.1', 8000, timeout=5); "
    "server.request('GET', '/health'); raise SystemExit(server.getresponse().status != 200)"
)


@dataclass(frozen=True)
class Image:
    """An image with `overlays`, and its base without any; `built` if you must build it first."""

    base: str
    name: str
    overlays: tuple[str, ...] = ()
    built: bool = False


_IMAGES = table("images.toml")
IMAGES = tuple(Image(one["base"], one["name"], tuple(one["overlays"])) for one in _IMAGES["image"])
PUBLISHED: bool = _IMAGES["published"]  # whether a registry has them

Lines = tuple[tuple[str, ...], ...]  # a command: the arguments on each line that is shown


def shell(command: Lines) -> str:
    """Return the text of a command to paste into a shell."""
    return " \\\n  ".join(map(shlex.join, command))


def commands(
    model: Model, deployment: Deployment, overlays: Collection[str], pasted: Container | None = None
) -> dict[str, str]:
    """Return the commands to paste into a shell, by name, in the order in which to run them.

    Args:
        model: the model that they serve.
        deployment: how they serve it.
        overlays: the overlays that vLLM has at least.
        pasted: the container that was pasted, which `docker` completes.
    """
    wanted = image(deployment, overlays, pasted.image if pasted else "")
    run = completed(model, deployment, pasted, wanted) if pasted else docker(model, deployment, overlays)
    written = {"apply": apply(overlays), "serve": serve(model, deployment), "build": _build(wanted), "docker": run}
    return {name: shell(command) for name, command in written.items() if command}


def apply(overlays: Collection[str]) -> Lines:
    """Return `vpatch apply` of these overlays to the installed vLLM; empty without any."""
    return (("vpatch", "apply"), *_named(overlays)) if overlays else ()


def serve(model: Model, deployment: Deployment) -> Lines:
    """Return `vllm serve`."""
    set_here = [variable for variable in deployment.environment if "=" in variable]
    variables = ("env", *set_here) if set_here else ()
    first, *rest = _options(model.name, model, deployment)
    return ((*variables, "vllm", "serve", *first), *rest)


def build(deployment: Deployment, overlays: Collection[str]) -> Lines:
    """Return `vpatch build` of the image that `docker` and `compose` run; empty if it exists already."""
    return _build(image(deployment, overlays))


def _build(wanted: Image) -> Lines:
    lines = (("vpatch", "build"), ("--base", wanted.base), *_named(wanted.overlays), ("--tag", wanted.name))
    return lines if wanted.built else ()


def docker(model: Model, deployment: Deployment, overlays: Collection[str]) -> Lines:
    """Return `docker run` of the image with these overlays, published on the loopback address."""
    name, mounted = _in_container(model)
    bind = io.StringIO()  # docker reads fields as CSV: quoted if there is a comma in them
    csv.writer(bind, lineterminator="").writerow(("type=bind", f"source={model.name}", f"target={name}", "readonly"))
    return (
        *(("docker", "run", "--rm"), ("--gpus", str(deployment.gpus)), ("--ipc=host",)),
        *(("-e", variable) for variable in dict.fromkeys(("HF_TOKEN", *deployment.environment))),
        *(("-v", ":".join(volume)) for volume in (CACHE, (str(cache_home()), HUB))),
        *((("--mount", bind.getvalue()),) if mounted else ()),
        ("-p", PORT),
        (image(deployment, overlays).name,),
        *_options(name, model, deployment),
    )


def completed(model: Model, deployment: Deployment, pasted: Container, wanted: Image) -> Lines:
    """Return a pasted `docker run` with all of its own options, of the wanted image, with the options of a plan."""
    *inside, name = pasted.inside
    if not (name.startswith("/") or model.name.startswith("/")):  # else one of them is only there, or only here
        name = model.name
    (first, *rest) = _options(name, model, deployment)
    options = [one.shown for one in pasted.options if not (wanted.built and one.names == ("pull",))]
    return (pasted.program, *options, (wanted.name,), (*inside, *first), *rest)


def compose(model: Model, deployment: Deployment, overlays: Collection[str], made_by: Sequence[str] = ()) -> str:
    """Return the text of a compose file for the image with these overlays, for any user: no path has a home folder.

    Args:
        model: the model that it serves.
        deployment: how it serves it.
        overlays: the overlays that the image has at least.
        made_by: the words of the command that makes it, for the comment at its top.

    Raises:
        Failure: the YAML library is not installed.
    """
    with needing("plan", "cannot write a compose file"):
        from ruamel.yaml import YAML
    yaml = YAML()
    yaml.width = 1 << 30  # else long strings are folded
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    yaml.dump(_quoted(_services(model, deployment, overlays)), text)
    first = build(deployment, overlays)
    notes = [f"Made by: {printable(' '.join(map(_typed, masked(made_by))))}"] if made_by else []
    notes += ["HF_TOKEN is passed on where it is set; only private models need it."]
    notes += ["The image is made by:", *(f"  {line}" for line in shell(first).splitlines())] if first else []
    return "".join(f"# {note}\n" for note in notes) + text.getvalue()


def _services(model: Model, deployment: Deployment, overlays: Collection[str]) -> dict[str, Any]:
    wanted = image(deployment, overlays)
    inside, mounted = _in_container(model)
    bind = {"type": "bind", "source": _source(model.name), "target": inside, "read_only": True}
    cache, compiled = CACHE
    # The user's own cache of models, so that nothing is downloaded twice.
    hub = {"type": "bind", "source": _source(str(cache_home())), "target": HUB, "bind": {"create_host_path": True}}
    volumes = [{"type": "volume", "source": cache, "target": compiled}, hub]
    test = ["CMD", "python3", "-c", HEALTH_CHECK]
    # The first start downloads the weights; each one loads them, compiles and captures graphs.
    health = {"test": test, "interval": "30s", "timeout": "10s", "retries": 3, "start_period": "1h"}
    device = {"driver": "nvidia", "count": deployment.gpus, "capabilities": ["gpu"]}
    service = {
        "image": wanted.name,
        **({"pull_policy": "never"} if wanted.built else {}),
        "command": list(chain(*_options(inside, model, deployment))),
        "environment": [*dict.fromkeys(("HF_TOKEN", *deployment.environment))],
        "ports": [PORT],
        "volumes": [*volumes, *([bind] if mounted else [])],
        "ipc": "host",
        "deploy": {"resources": {"reservations": {"devices": [device]}}},
        "healthcheck": health,
        "restart": "unless-stopped",
    }
    # Under its own name, so that `docker run` and every project share it.
    return {"services": {"vllm": service}, "volumes": {cache: {"name": cache}}}


class _Source(str):
    """A path that begins with a variable, which compose replaces; the rest of it is escaped."""


def _source(path: str) -> str:
    """Return a path as every user has it: below their own home folder, if it is below this user's."""
    home = _home()
    return _Source("${HOME}/" + path.removeprefix(home).replace("$", "$$")) if path.startswith(home) else path


def _typed(word: str) -> str:
    """Return a word as one types it into a shell, with `$HOME` in place of the user's home folder."""
    parts = word.split(_home())
    if len(parts) == 1:
        return shlex.quote(word)
    return '"' + "$HOME/".join(re.sub(r'([\\"`$])', r"\\\1", part) for part in parts) + '"'


def _home() -> str:
    """Return the user's home folder, with a slash at its end."""
    return f"{Path('~').expanduser()}/"


def _quoted(value: Any) -> Any:
    """Make YAML and compose read back each string unchanged: in quotes, and without variables."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, dict):
        return {key: _quoted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_quoted(item) for item in value]
    if isinstance(value, _Source):
        return DoubleQuotedScalarString(value)
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
        "--mamba-ssm-cache-dtype": None
        if deployment.mamba_ssm_cache_dtype == "auto"
        else deployment.mamba_ssm_cache_dtype,
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


def image(deployment: Deployment, overlays: Collection[str], pasted: str = "") -> Image:
    """Return the image to run, with at least these overlays: vLLM's, a published one, or one to build.

    `pasted` is the name of one that was meant; of vLLM's own, only the release and the suffix matter.
    """
    base = _base(deployment, pasted)
    if not overlays:
        return Image(base, base)
    for one in IMAGES if PUBLISHED else ():
        if one.base == base and set(overlays) <= set(one.overlays):
            return one
    # In no registry: an image that is not built yet must not be pulled from a stranger who took the name.
    return Image(base, patched(base), tuple(sorted(overlays)), built=True)


def patched(base: str) -> str:
    """Return a name for the image that `vpatch build` makes of a base."""
    repository, tag = divided(base)
    return f"localhost/{PurePosixPath(repository).name}:{tag or 'pinned'}{_PATCHED}"


def _base(deployment: Deployment, pasted: str) -> str:
    """Return the image to build on: the pasted one, or that of vLLM for the release if it is for another or any."""
    tag = f"v{deployment.vllm.public}{deployment.cuda and '-'}{deployment.cuda}"
    pasted = {one.name: one.base for one in IMAGES}.get(pasted, pasted) or f"{STOCK}:{tag}"
    if pasted.startswith(_BUILT) and pasted.endswith(_PATCHED):  # by a command of an earlier plan
        pasted = f"{STOCK}:{pasted[len(_BUILT) : -len(_PATCHED)]}"
    repository, named = divided(pasted)
    other = named == "latest" or release(pasted)[0] not in ("", str(deployment.vllm.public))
    return f"{repository}:{tag}" if other and repository.removeprefix("docker.io/") == STOCK else pasted

"""A compose file that serves a deployment."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from io import StringIO
from typing import Any

from vpatch.errors import Failure, Problem
from vpatch.plan.commands import CACHE, HUB, build, folder, gpus, options
from vpatch.plan.images import image
from vpatch.plan.model import Deployment, Model

# Python is what an image of vLLM is sure to have; `http.client` asks no proxy that the container is told to use.
ASK = (
    "import http.client; server = http.client.HTTPConnection('127.0.0.1', 8000, timeout=5); "
    "server.request('GET', '/health'); raise SystemExit(server.getresponse().status != 200)"
)


def compose(
    model: Model, deployment: Deployment, overlays: Collection[str], *, host: str = "127.0.0.1", port: int = 8000
) -> str:
    """Give the text of a compose file, for the image that has these overlays.

    Raises:
        Failure: the YAML library is missing.
    """
    try:
        from ruamel.yaml import YAML
    except ImportError as error:
        cause = f"{error}; install it with: pip install 'vpatch[plan]'"
        raise Failure(Problem("cannot write a compose file", "ruamel.yaml", cause)) from error
    yaml = YAML()
    yaml.width = 1 << 30  # else long strings are folded
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = StringIO()
    yaml.dump(_plain(_file(model, deployment, overlays, f"{host}:{port}:8000")), text)
    first = build(deployment, overlays)
    notes = ["HF_TOKEN is passed on where it is set; only private models need it."]
    notes += ["The image is made by:", *(f"  {line}" for line in str(first).splitlines())] if first else []
    return "".join(f"# {note}\n" for note in notes) + text.getvalue()


def _file(model: Model, deployment: Deployment, overlays: Collection[str], port: str) -> dict[str, Any]:
    wanted = image(deployment, overlays)
    inside, mounted = folder(model)
    bind = {"type": "bind", "source": model.name, "target": inside, "read_only": True}
    volumes = [{"type": "volume", "source": name, "target": target} for name, target in (CACHE, HUB)]
    device = {"driver": "nvidia", "count": gpus(deployment), "capabilities": ["gpu"]}
    service = {
        "image": wanted.name,
        **({"pull_policy": "never"} if wanted.built else {}),
        "command": _flat(options(inside, model, deployment)),
        "environment": ["HF_TOKEN", *deployment.environment],
        "ports": [port],
        "volumes": [*volumes, *([bind] if mounted else [])],
        "ipc": "host",
        "deploy": {"resources": {"reservations": {"devices": [device]}}},
        "healthcheck": {
            "test": ["CMD", "python3", "-c", ASK],
            "interval": "30s",
            "timeout": "10s",
            "retries": 3,
            # The first start downloads the weights, and each one loads them, compiles and captures graphs. A server
            # that answers earlier is healthy then.
            "start_period": "1h",
        },
        "restart": "unless-stopped",
    }
    # Under their own names, so that `docker run` and every project share what was downloaded.
    return {"services": {"vllm": service}, "volumes": {name: {"name": name} for name, _ in (CACHE, HUB)}}


def _flat(lines: Iterable[tuple[str, ...]]) -> list[str]:
    return [argument for line in lines for argument in line]


def _plain(value: Any) -> Any:
    """Give it so that it is read as it is: strings in quotes, whatever they look like, and no variables in them."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case str():
            return DoubleQuotedScalarString(value.replace("$", "$$"))
    return value

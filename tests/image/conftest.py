"""Real registries on loopback, each in a folder of its own and stopped at the end."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

PATIENCE = 20.0  # seconds until a registry must be there


@contextmanager
def serving(folder: Path, more: str) -> Iterator[str]:
    """Run a registry in `folder`, on a port that it finds itself; `more` is appended to its configuration."""
    folder.mkdir(exist_ok=True)
    config, log = folder / "config.yml", folder / "log"
    config.write_text(
        "version: 0.1\n"
        "log: {level: info, accesslog: {disabled: true}}\n"
        f'storage: {{filesystem: {{rootdirectory: "{folder}/data"}}, delete: {{enabled: true}}}}\n'
        'http: {addr: "127.0.0.1:0", secret: loopback}\n' + more
    )
    with log.open("wb") as out:
        process = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=out, stderr=out)
    try:
        end = time.monotonic() + PATIENCE
        while not (found := re.search(r"listening on (127\.0\.0\.1:\d+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield found[1]
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="session")
def start_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """`start_registry("auth: ...")`: one more registry, with more configuration; gives `host:port`."""
    with ExitStack() as running:
        yield lambda more: running.enter_context(serving(tmp_path_factory.mktemp("registry"), more))


@pytest.fixture(scope="session")
def registry(start_registry: Callable[[str], str]) -> str:
    """A registry that lets everybody do everything, as `host:port`; use a repository of your own."""
    return start_registry("")

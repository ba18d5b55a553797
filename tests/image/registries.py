"""Real registries on loopback, each with its own folder, stopped at the end."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 20.0  # seconds until a registry must be there


@contextmanager
def serving(folder: Path, more: str) -> Iterator[str]:
    """Run a registry in `folder`, on a free port; `more` is appended to its configuration."""
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

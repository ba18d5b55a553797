"""A vLLM of a release's own files that import no torch, and a farm for it, which real processes run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vpatch.run.content import Content
from vpatch.run.store import farm_of
from vpatch.tree.backup import sha256

from tests.paths import link
from tests.processes import UNWATCHED
from tests.releases import tree_of

CHANGED, ADDED, APPLIED = "vllm/engine/core.py", "vllm/_vpatch/own.py", "vllm/applied.py"
OWN = ("vllm/plugins/__init__.py", "vllm/envs.py", "vllm/logger.py")  # import no torch; and logging_utils

LOAD = "from vllm.plugins import load_general_plugins as load\nload()\n"
WAITS = "import sys\nprint('ready', flush=True)\nsys.stdin.read()\n"
MAPS = f"import mmap\nfile = open({{file!r}}, 'rb')\nmapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n{WAITS}"
# linux/capability.h: SYS_PTRACE, SYS_ADMIN and PERFMON, by which root sees what other users' processes have mapped
WATCHING = 1 << 19 | 1 << 21 | 1 << 38


@dataclass(frozen=True)
class Farm:
    """A farm of a vLLM that has what loads plugins and logs, and nothing that needs torch."""

    root: Path
    content: Content
    path: Path

    def run(
        self, code: str, *options: str, wrapper: Sequence[str] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run code as a process that was started with the farm, by a wrapper."""
        command, environment = [*wrapper, sys.executable, *options, "-c", code], self.environment(**variables)
        return subprocess.run(
            command, env=environment, cwd=self.root.parent, capture_output=True, text=True, check=False
        )

    def environment(self, **variables: str) -> dict[str, str]:
        told = {"PYTHONPATH": f"{self.path}:{self.root}", "VPATCH_RUN": self.content.digest}
        return {**os.environ, **UNWATCHED, **told, **variables}

    @contextmanager
    def serving(self, before: str = "", **variables: str) -> Iterator[int]:
        """Run a process that holds a receipt until the block ends; yield its id."""
        command = (sys.executable, "-c", f"{before}{LOAD}{WAITS}")
        with started(*command, env=self.environment(**variables)) as number:
            yield number

    @property
    def metric(self) -> str:
        return f'vpatch_info{{digest="{self.content.digest}",overlays="one,two"}} 1.0\n'

    @property
    def line(self) -> str:
        return f"runs one, two (digest {self.content.digest[:12]})"


@contextmanager
def started(
    *command: str | Path,
    env: dict[str, str] | None = None,
    executable: str | None = None,
    user: int | None = None,
    opened: Sequence[int] = (),
) -> Iterator[int]:
    """Run a process that prints `ready` and ends with its input, and inherits descriptors; yield its id."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        executable=executable,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
        user=user,
        env=env,
        pass_fds=opened,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.stdin.close()


def standing_in(root: Path, release: str) -> Path:
    """Make a vLLM of a release's own files that import no torch, and of three that overlays change."""
    add_own(root, release)
    for file, code in {CHANGED: "old = 1\n", APPLIED: "applied = 1\n"}.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(code)
    return root


def add_own(root: Path, release: str) -> None:
    """Add what loads plugins and logs to a tree, with a package `vllm` that imports nothing."""
    logging = (f"vllm/logging_utils/{path.name}" for path in (tree_of(release) / "vllm/logging_utils").iterdir())
    for file in (*OWN, *(name for name in logging if name.endswith(".py"))):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).unlink(missing_ok=True)
        link(str(tree_of(release) / file), str(root / file))
    (root / "vllm/__init__.py").unlink(missing_ok=True)  # it may be a link to the release's
    (root / "vllm/__init__.py").touch()


def farm_for(root: Path, cache: Path, added: bytes = b"") -> Farm:
    files = {CHANGED: b"new = 1\n", ADDED: added, "vllm/engine/__init__.py": b""}
    applied = {APPLIED: (root / APPLIED).read_bytes()}
    hashes = {file: sha256(data) for file, data in applied.items()}
    replaced = {file: sha256((root / file).read_bytes()) for file in files if (root / file).is_file()}
    content = Content(root, ("one", "two"), files, hashes, replaced)
    return Farm(root, content, farm_of(content, cache, Path(sys.executable)))

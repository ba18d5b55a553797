"""A vLLM of a release's own files that import no torch, and a farm for it, which real processes run."""

from __future__ import annotations

import importlib
import logging
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from vpatch.manifest import sha256
from vpatch.run.content import Content
from vpatch.run.store import fill

from tests.forks import _redirect, ended
from tests.paths import link
from tests.processes import UNWATCHED
from tests.releases import tree_of

CHANGED, ADDED, APPLIED = "vllm/engine/core.py", "vllm/_vpatch/own.py", "vllm/applied.py"
OWN = ("vllm/plugins/__init__.py", "vllm/envs.py", "vllm/logger.py")  # import no torch; and logging_utils

_OURS = re.compile(r"(vllm|vpatch_\w+|prometheus_client)(\.|$)")  # modules that the tests' process may have imported

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

    def run(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run code as if by a process that was started with the farm: in a fork, which takes a tenth of the time."""
        return in_fork(code, self.root.parent, self.environment(**variables))

    def start(self, code: str, *, wrapper: Sequence[str] = (), **variables: str) -> subprocess.CompletedProcess[str]:
        """Run code as a process that is started with the farm, by a wrapper."""
        command, environment = [*wrapper, sys.executable, "-c", code], self.environment(**variables)
        return subprocess.run(
            command, env=environment, cwd=self.root.parent, capture_output=True, text=True, check=False
        )

    def placed(self, text: str) -> str:
        places = {"CACHE": self.path, "NAME": self.path.name, "SITE": self.root}
        return re.sub("|".join(places), lambda found: str(places[found[0]]), text)

    def environment(self, **variables: str) -> dict[str, str]:
        own = {"PYTHONPATH": f"{self.path}:{self.root}", "VPATCH_RUN": self.content.digest}
        return {**os.environ, **UNWATCHED, **own, **variables}

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


def in_fork(code: str, folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run code in a fork, as a new interpreter would in a folder and an environment; PYTHONPATH comes first."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
        child = os.fork()
        if child == 0:
            _redirect((nothing.fileno(), out.fileno(), err.fileno()))
            _interpret(code, folder, environment)
        status = ended(child)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
        return subprocess.CompletedProcess([code], status, *texts)


def _interpret(code: str, folder: Path, environment: Mapping[str, str]) -> NoReturn:
    status = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        logging.root.handlers.clear()  # those of pytest
        for name in [name for name in sys.modules if _OURS.match(name)]:
            del sys.modules[name]
        sys.path[:0] = [str(Path(place).absolute()) for place in environment["PYTHONPATH"].split(":")]
        importlib.invalidate_caches()
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(status)


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
    return placed(content, cache)


def placed(content: Content, cache: Path) -> Farm:
    farm = Farm(content.root, content, cache / content.key)
    farm.path.mkdir(mode=0o700, parents=True)
    fill(content, farm.path)
    return farm

"""Confined containers, which live no longer than this run, even if it is killed.

Scripts run in them, and files are read from some that are never started: each question costs the engine a mount of the
image (3 ms), and an archive also a process (50 ms).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePosixPath
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import requests
from docker import DockerClient, from_env
from docker.errors import DockerException, NotFound
from docker.types import LogConfig
from docker.utils import decode_json_header

from vpatch.errors import Failure, Problem, naming
from vpatch.image.engine import discard, engine_errors, message_of
from vpatch.image.filesystem import BlockReader, Entry, Files, Kind, Limits, entry_of
from vpatch.image.script import preamble
from vpatch.net.session import size

NAME = "vpatch-"
"""Prefix of our containers' names; the name of their run follows. A label would stay in a committed image."""

PROCESSES = 4096  # threads included: torch starts one for each core, and a server has several processes
MEMORY = 16 << 30  # bytes, files in memory included: all that vLLM imports
LOG = 16 << 20  # bytes of its output that are kept
SCRATCH = 8 << 30  # bytes that a script may write below /tmp, which count as memory
SERVER_MEMORY = 64 << 30  # bytes for a server of a small model on GPUs
ALL_GPUS: dict[str, Any] = {"device_requests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]}

_CHUNK = 1 << 16
_READERS = 3  # containers that answer one question at a time; more cost more than they gain
# A file's type in its mode as Go writes it: package io/fs, FileMode.
_GO_TYPES, _GO_KINDS = 0x8F280000, {0: Kind.FILE, 1 << 31: Kind.FOLDER, 1 << 27: Kind.LINK}

# It imports vpatch only after this process has died: until then this one needs the CPU.
REAPER = """\
import sys
images = sys.stdin.read().splitlines()
if "done" not in images:
    from vpatch.image.engine.containers import reap
    reap(sys.argv[1], images)
"""
# A container that was being created when the process died may appear a little later.
_ATTEMPTS, _PAUSE = 4, 0.5


class LeftError(Failure):
    """A container could not be removed; the reaper is to try again."""


@dataclass(frozen=True)
class Run:
    """A run of this program."""

    name: str  # in the names of its containers
    reaper: IO[bytes]  # pipe to the second process

    def register(self, image: str) -> None:
        """Have the reaper remove an image too, unless it has a tag by then. Call this before the image exists."""
        with suppress(BrokenPipeError):
            self.reaper.write(f"{image}\n".encode())
            self.reaper.flush()


@contextmanager
def start_run() -> Iterator[Run]:
    """Start a run. A second process, the reaper, removes what this one leaves when it dies."""
    owner = uuid.uuid4().hex
    command = [sys.executable, "-P", "-c", REAPER, owner]
    reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    # The reaper acts if the pipe ends without "done": this process died, or an unknown container may exist.
    last = b""
    try:
        assert reaper.stdin  # noqa: S101 - for mypy
        yield Run(owner, reaper.stdin)
        last = b"done\n"
    except Exception as error:
        last = b"" if isinstance(error, LeftError) else b"done\n"
        raise
    finally:
        with suppress(BrokenPipeError):
            reaper.communicate(last)


def reap(owner: str, images: Iterable[str]) -> None:
    """Remove the containers of the run `owner`, and those of `images` that have no tag."""
    for _ in range(_ATTEMPTS):
        with suppress(DockerException, requests.RequestException):
            client = from_env()
            for left in client.api.containers(all=True, filters={"name": f"{NAME}{owner}"}):
                client.api.remove_container(left["Id"], force=True, v=True)
            for image in images:
                with suppress(Failure):
                    discard(client, image)
        time.sleep(_PAUSE)


@contextmanager
def container(
    client: DockerClient, image: str, owner: str, entrypoint: Sequence[str], command: Sequence[str] = (), **options: Any
) -> Iterator[str]:
    """Create a container and yield its ID; remove it at the end, running or not."""
    # It runs untrusted code: no network, no capabilities beyond those in `options`, and no way to gain any.
    user, memory = options.pop("user", None), options.pop("memory", MEMORY)
    confined: dict[str, Any] = {"network_mode": "none", "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}
    confined |= {"pids_limit": PROCESSES, "mem_limit": memory, "memswap_limit": memory}
    # Its output is read from its log, whatever log driver the engine is set to.
    log = LogConfig(type="json-file", config={"max-size": str(LOG), "max-file": "1"})
    limits = client.api.create_host_config(**confined, log_config=log, **options)
    name = f"{NAME}{owner}-{uuid.uuid4().hex[:8]}"
    with engine_errors("cannot create a container", image):
        made = client.api.create_container(
            image, list(command), entrypoint=list(entrypoint), user=user, host_config=limits, name=name
        )["Id"]
    try:
        yield str(made)
    finally:
        try:
            client.api.remove_container(made, force=True, v=True)
        except NotFound:
            pass
        except (DockerException, requests.RequestException) as error:
            raise LeftError(Problem("cannot remove a container", str(made)[:12], message_of(error))) from error


class ScriptResult(NamedTuple):
    """How a script ended: its exit code, None if it took too long, and its output."""

    code: int | None
    out: str
    err: str


@dataclass(frozen=True)
class ScriptRunner:
    """Runs scripts with an image's own interpreter."""

    client: DockerClient
    image: str
    python: str
    owner: str

    def run(self, script: str, arguments: Sequence[str] = (), *, seconds: int, gpus: bool = False) -> ScriptResult:
        """Run a script as `python -c`, with all of the machine's GPUs or none. It can write only below /tmp."""
        # Compiled kernels are loaded from /tmp, hence `exec`. The root is read-only, so the home moves there.
        settings: dict[str, Any] = {"read_only": True, "tmpfs": {"/tmp": f"exec,mode=1777,size={SCRATCH}"}}  # noqa: S108
        if gpus:
            settings |= {**ALL_GPUS, "memory": SERVER_MEMORY}
        command = ["-c", preamble("/tmp"), script, *arguments]  # noqa: S108
        with (
            self._volumes() as volumes,
            container(self.client, self.image, self.owner, [self.python], command, **settings, **volumes) as made,
            engine_errors("cannot run", self.image),
        ):
            self.client.api.start(made)
            try:
                code = self.client.api.wait(made, timeout=seconds)["StatusCode"]
            except (requests.ConnectionError, requests.ReadTimeout):  # either, depending on the kind of socket
                code = None
            logs = [self.client.api.logs(made, stdout=one, stderr=not one) for one in (True, False)]
            return ScriptResult(code, *(log.decode("utf-8", "replace") for log in logs))

    @contextmanager
    def _volumes(self) -> Iterator[dict[str, Any]]:
        # The volumes that the image declares are to be read-only, with the image's content. An engine mounts a new,
        # writable one for each; only those of another container can be mounted read-only.
        with engine_errors("cannot read", self.image):
            declared = (self.client.api.inspect_image(self.image)["Config"] or {}).get("Volumes")
        if not declared:
            yield {}
            return
        with container(self.client, self.image, self.owner, ["true"]) as made:
            yield {"volumes_from": [f"{made}:ro"]}


@contextmanager
def open_files(client: DockerClient, image: str, owner: str) -> Iterator[ContainerFiles]:
    """Yield the files of an image; `owner` is the run that its containers belong to."""
    with ExitStack() as stack:
        made = [stack.enter_context(container(client, image, owner, ["true"])) for _ in range(_READERS)]
        pool = ThreadPoolExecutor(_READERS)
        stack.callback(pool.shutdown, cancel_futures=True)
        yield ContainerFiles(client, made, pool)


class ContainerFiles(Files):
    """The files of an image; answers are cached."""

    def __init__(self, client: DockerClient, containers: Sequence[str], pool: ThreadPoolExecutor) -> None:
        self._client, self._pool = client, pool
        self._idle: SimpleQueue[str] = SimpleQueue()
        for name in containers:
            self._idle.put(name)
        self._entries: dict[str, Entry | None] = {}
        self._kinds: dict[str, Kind | None] = {}
        self._contents: dict[str, bytes | None] = {}
        self._coming: dict[str, Future[Any]] = {}

    def prefetch(self, files: Iterable[str]) -> None:
        """Start to read files and the entries of the folders above them; whoever asks for one waits for it."""
        files = dict.fromkeys(files)
        folders = dict.fromkeys(str(above) for file in files for above in [*PurePosixPath(file).parents][:-1])
        self._coming |= {path: self._pool.submit(self._read, path) for path in files}
        self._coming |= {path: self._pool.submit(self._entry, path) for path in folders}

    def entry(self, path: str) -> Entry | None:
        """Return the entry at `path`, from the first header of its archive: the engine's `HEAD` has no owner."""
        self._wait(path)
        return self._entry(path)

    def kind(self, path: str) -> Kind | None:
        """Return the type of the entry at `path`, from the engine's `HEAD`."""
        if path in self._entries:
            return here.kind if (here := self._entries[path]) else None
        if path not in self._kinds:
            self._kinds[path] = None if self._is_known_missing(path) else self._ask_kind(path)
        return self._kinds[path]

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes."""
        self._wait(path)
        return self._read(path)

    def open(self, path: str) -> IO[bytes] | None:
        """Open a copy of a file in a temporary file."""
        with self._archive(path) as archive:
            if archive is None:
                return None
            source = self._file(path, archive, Limits.FILE)
            copy = TemporaryFile()  # noqa: SIM115 - the caller closes it
            with naming("cannot write", "temporary file"):
                shutil.copyfileobj(source, copy, _CHUNK)
            copy.seek(0)
            return copy

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names in a folder; the engine sends everything below it."""
        at = PurePosixPath(folder).name
        with self._archive(folder) as archive:
            members = (PurePosixPath(member.name) for member in archive or ())
            return tuple(sorted(m.name for m in members if len(m.parts) == 2 and m.parts[0] == at))

    def _ask_kind(self, path: str) -> Kind | None:
        api = self._client.api
        with self._container(path) as container_id:
            url = f"{api.base_url}/v{api.api_version}/containers/{container_id}/archive"
            answer = api.head(url, params={"path": f"/{path}"}, timeout=api.timeout)
            if answer.status_code == requests.codes.not_found:
                api.inspect_container(container_id)  # raises if the container itself is gone
                return None
            answer.raise_for_status()
            mode = decode_json_header(answer.headers["X-Docker-Container-Path-Stat"])["mode"]
            return _GO_KINDS.get(mode & _GO_TYPES, Kind.OTHER)

    @contextmanager
    def _archive(self, path: str) -> Iterator[tarfile.TarFile | None]:
        """Yield the archive of the entry at `path`, to be read forward; None without an entry."""
        if self._is_known_missing(path):
            yield None
            return
        with self._container(path) as container_id:
            try:
                blocks, _ = self._client.api.get_archive(container_id, f"/{path}", chunk_size=_CHUNK)
            except NotFound:
                self._client.api.inspect_container(container_id)
                yield None
                return
            try:
                with tarfile.open(fileobj=BlockReader(blocks), mode="r|") as archive:
                    yield archive
            except tarfile.TarError as error:
                raise Failure(Problem("cannot read", f"/{path}", f"the engine sent no archive: {error}")) from error
            finally:
                blocks.close()

    @contextmanager
    def _container(self, path: str) -> Iterator[str]:
        container_id = self._idle.get()
        try:
            with engine_errors("cannot read", f"/{path}"):
                yield container_id
        finally:
            self._idle.put(container_id)

    def _wait(self, path: str) -> None:
        if path in self._coming:
            self._coming.pop(path).result()

    def _entry(self, path: str) -> Entry | None:
        if path not in self._entries:
            with self._archive(path) as archive:
                first = archive.next() if archive else None
            self._entries[path] = entry_of(path, first) if first else None
        return self._entries[path]

    def _read(self, path: str) -> bytes | None:
        if path not in self._contents:
            with self._archive(path) as archive:
                content = self._file(path, archive, Limits.SOURCE).read() if archive else None
            if content is None:
                self._entries[path] = None
            self._contents[path] = content
        return self._contents[path]

    def _is_known_missing(self, path: str) -> bool:
        above = [str(folder) for folder in PurePosixPath(path).parents]
        return any(known.get(folder, self) is None for known in (self._entries, self._kinds) for folder in above)

    def _file(self, path: str, archive: tarfile.TarFile, limit: int) -> IO[bytes]:
        member = archive.next()
        if member is None or member.name != PurePosixPath(path).name or not member.isreg():
            kind = "nothing" if member is None else f"{member.name!r}, {entry_of(path, member).kind.value}"
            raise Failure(Problem("not a plain file", f"/{path}", f"the image has {kind} there"))
        if member.size > limit:
            raise Failure(Problem("too large", f"/{path}", f"it has {member.size:,} bytes, and may have {size(limit)}"))
        self._entries[path] = entry_of(path, member)
        return archive.extractfile(member) or BytesIO()

"""A stand-in for vllm/vllm-openai: this machine's own Python, and real vLLM sources where that image has them."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import docker
from vpatch.image.engine.containers import ScriptResult, ScriptRunner

BASE = "vllm/vllm-openai:v0.20.2"
ONE = ("--overlay", "turboquant-skip-list")
"""The overlay of the fewest files, where any would do."""
NOT_RUN = "5 passed, 3 of 8 not run (the image lacks torch)"
"""The tests of an image with `ONE`, in the stand-in."""
SITE = "usr/local/lib/python3.12/dist-packages"
ENTRYPOINT = ["python3", "-m", "vllm.entrypoints.openai.api_server"]
CONFIG: Mapping[str, Any] = {
    "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "CUDA_VERSION=13.0.2"],
    "Entrypoint": ENTRYPOINT,
    "WorkingDir": "/vllm-workspace",
    "Labels": {"maintainer": "nobody"},
}
_ASK = """
import json, site, sys, sysconfig
print(json.dumps([sys.executable, sys.prefix, sysconfig.get_path("stdlib"), site.getsitepackages()[0]]))
"""
_LEFT_OUT = (
    *("test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3"),
    *("site-packages", "dist-packages", "config-*"),
)
# Half of the rest, which nothing runs that is not installed in the image: an engine reads an image several times.
_UNUSED = (
    *("turtledemo", "pydoc_data", "distutils", "xmlrpc", "*.opt-?.pyc"),
    *("_tkinter.*", "_test*", "_curses*", "_sqlite3*", "readline.*"),
)


def python_root(root: Path, *more: str | Path) -> str:
    """Lay out the interpreter below `root` as below `/`, with the libraries that it needs.

    `more` are libraries by name, and extensions whose libraries are needed too, for packages that the image will have.

    Returns:
        The folder below `root` from which this interpreter imports packages.
    """
    left_out = _LEFT_OUT if more else (*_LEFT_OUT, *_UNUSED)
    asked = subprocess.run([sys._base_executable, "-c", _ASK], check=True, capture_output=True, text=True)  # type: ignore[attr-defined]
    executable, prefix, stdlib, packages = json.loads(asked.stdout)
    home = "/usr" if prefix == "/usr" else "/usr/local"

    def moved(path: str) -> Path:
        return root / re.sub(rf"^{re.escape(prefix)}(?=/)", home, path).lstrip("/")

    for name in ("tmp", "proc", "sys", "dev", "etc", "root", "run", "bin", "vllm-workspace"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    shutil.copytree(stdlib, moved(stdlib), ignore=shutil.ignore_patterns(*left_out))
    binary = root / home.strip("/") / "bin" / Path(executable).resolve().name
    binary.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(Path(executable).resolve(), binary)
    binary.with_name("python3").symlink_to(binary.name)
    shutil.copy2(Path("/bin/sh").resolve(), root / "bin/sh")
    known = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    names = [name for name in more if isinstance(name, str)]
    wanted = [found[1] for name in names if (found := re.search(rf"{re.escape(name)} .*x86-64.* => (\S+)", known))]
    extensions = (*moved(stdlib).glob("lib-dynload/*.so"), *(path for path in more if isinstance(path, Path)))
    places: set[str] = set()
    for library in {*libraries(binary, root / "bin/sh", *extensions, *wanted), *wanted}:
        target = moved(library)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(Path(library).resolve(), target)
        places.add(str(Path("/", target.parent.relative_to(root))))
    # The tree lies where Ubuntu's Python 3.12 looks; this one is told of it.
    moved(packages).mkdir(parents=True, exist_ok=True)
    (moved(packages) / "zz-vllm.pth").write_text(f"/{SITE}\n")
    (root / "etc/ld.so.conf").write_text("".join(f"{place}\n" for place in sorted(places)))
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True)
    return str(moved(packages).relative_to(root))


def libraries(*programs: str | Path) -> Iterator[str]:
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    yield from re.findall(r"(/\S+) \(0x", told)


def archive(path: Path, *parts: tuple[Path, str], edit: Callable[[tarfile.TarInfo], None] | None = None) -> Path:
    """Write a tar of folders, each at a place in the image; `edit` may change a member on the way."""

    def seen(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        if edit:
            edit(member)
        return member

    there: set[str] = set()
    with tarfile.open(path, "w") as tar:
        for folder, at in parts:
            for file in (folder, *sorted(folder.rglob("*"))):
                name = str(PurePosixPath(at, file.relative_to(folder).as_posix()))
                if name not in there:  # engines refuse a path that comes twice
                    tar.add(file, name, recursive=False, filter=seen)
                there.add(name)
    return path


def imported(client: docker.DockerClient, tar: Path, name: str) -> str:
    """Make an image of one layer from a tar, with `CONFIG`; return its ID."""
    changes = [f"ENV {pair}" for pair in CONFIG["Env"]]
    changes += [f"ENTRYPOINT {json.dumps(CONFIG['Entrypoint'])}", f"WORKDIR {CONFIG['WorkingDir']}"]
    changes += [f"LABEL {key}={value}" for key, value in CONFIG["Labels"].items()]
    repository, tag = name.rsplit(":", 1)
    answer = client.api.import_image_from_file(str(tar), repository, tag, changes=changes)
    return str(json.loads(answer.splitlines()[-1])["status"])


def layered(client: docker.DockerClient, tar: Path, below: str, name: str) -> str:
    """Make an image with a tar's files as one more layer; return its ID. The layers below are not copied."""
    container = client.api.create_container(below)["Id"]
    try:
        with tar.open("rb") as files:
            assert client.api.put_archive(container, "/", files)
        repository, tag = name.split(":")
        return str(client.api.commit(container, repository, tag)["Id"])
    finally:
        client.api.remove_container(container)


def last_layer(client: docker.DockerClient, image: str) -> Mapping[str, bytes | None]:
    """Return the bytes of each file in an image's last layer, as the engine saves it, and None for each folder."""
    with tarfile.open(fileobj=io.BytesIO(b"".join(client.api.get_image(image)))) as whole:
        (manifest,) = json.load(whole.extractfile("manifest.json"))  # type: ignore[arg-type]
        with tarfile.open(fileobj=whole.extractfile(manifest["Layers"][-1])) as tar:
            return {one.name: file.read() if (file := tar.extractfile(one)) else None for one in tar}


def run_in(client: docker.DockerClient, image: str, code: str, *arguments: str) -> ScriptResult:
    """Run a script in a container of an image, as the tests of an image run."""
    return ScriptRunner(client, image, "python3", "the-tests").run(code, arguments, seconds=60)

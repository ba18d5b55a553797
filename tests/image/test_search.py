"""The vLLM that is found in an image is the one that its interpreter imports, or the image is refused: drawn layouts.

The real interpreter runs in each layout, by `chroot`, as the user, in the folder and with the environment of the image.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from vpatch.errors import Failure
from vpatch.image.config import Base
from vpatch.image.registry.image import Descriptor, Manifest, RemoteImage, Repository
from vpatch.image.registry.layers import LayeredFiles, is_wanted, open_vllm
from vpatch.image.registry.reference import parse
from vpatch.image.registry.tar import LayerView, Usage, read_layer

from tests.image.registry.images import tar
from tests.image.standin import archive
from tests.needs import root_only
from tests.tiers import deep

Layer = dict[str, Any]  # as `tar` takes it: a path with bytes is a file, with text a link

_ASK = """
import importlib.util, json, os, sys
def origin():
    spec = importlib.util.find_spec("vllm")
    return spec and spec.origin and os.path.realpath(spec.origin)
module = origin()
sys.path[:] = [path for path in sys.path if path]
print(json.dumps([module, origin()]))
"""
SYSTEM = "/usr/local/bin:/usr/bin:/bin"
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nbad\nme:x:1000:1000::/home/me:/bin/sh\n"
USERS = {"": 0, "root": 0, "0": 0, "me": 1000, "1000": 1000, "me:me": 1000, "1000:0": 1000, "77": 77}
HOMES = {0: "/root", 1000: "/home/me", 77: "/"}


@dataclass
class Drawn:
    """An image: its layers above the interpreter, the lowest first, and its configuration."""

    env: dict[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    python: str | None = None
    lower: Layer = field(default_factory=dict)
    upper: Layer = field(default_factory=dict)

    @property
    def config(self) -> Mapping[str, Any]:
        pairs = [f"{name}={value}" for name, value in self.env.items()]
        about = {"Env": pairs, "User": self.user, "WorkingDir": self.workdir, "Entrypoint": [*self.entrypoint]}
        return {"config": about}


def vllm(at: str, version: str) -> Layer:
    return {
        f"{at}/vllm/__init__.py": b"",
        f"{at}/vllm/_version.py": f"__version__ = version = '{version}'\n".encode(),
        f"{at}/vllm-{version}.dist-info/RECORD": b"",
    }


def drawn(seed: int, library: str) -> Drawn:
    """Draw an image; `library` is `lib/python3.N/site-packages`."""
    pick = random.Random(seed)  # noqa: S311
    path = {
        "absolute": ("opt/src", "/opt/src"),
        "relative": ("app/src", "src"),
        "above": ("srv/src", "../srv/src"),
        "link": ("srv/linked", "link"),
        "link above": ("srv/deep/src", "/opt/deep/src"),
        "here": ("app", "/nowhere:"),
    }
    sites = {
        "site": f"usr/local/{library}",
        "root": f"root/.local/{library}",
        "me": f"home/me/.local/{library}",
        "nobody": f".local/{library}",
        "base": f"srv/base/{library}",
        "base here": f"app/base/{library}",
        "venv": f"opt/venv/{library}",
        "pth": "opt/named",
        "pth of user": "opt/of-user",
    }
    named = pick.choice([None, None, *path])
    made = Drawn(workdir=pick.choice(["", "/app", "/app"]), user=pick.choice([*USERS]))
    made.env["PATH"] = pick.choice([SYSTEM, f"/opt/venv/bin:{SYSTEM}"])
    made.entrypoint = pick.choice([(), ("python3", "-m", "vllm.x"), ("vllm", "serve"), ("/opt/venv/bin/python3", "-c")])
    made.python = pick.choice([None, None, "/usr/local/bin/python3", "/opt/venv/bin/python3", "/usr/bin/of-venv"])
    more = {
        "PYTHONPATH": path[named][1] if named else None,
        "HOME": pick.choice([None, None, "/root", "/home/me", "/"]),
        "PYTHONNOUSERSITE": pick.choice([None, None, None, "1"]),
        "PYTHONUSERBASE": pick.choice([None, None, None, "/srv/base", "base"]),
    }
    made.env |= {name: value for name, value in more.items() if value}
    settings = f"home = /usr/local/bin\ninclude-system-site-packages = {pick.choice(['true', 'false'])}\n"
    made.lower = {
        "etc/passwd": PASSWD,
        "app/link": "/srv/linked",
        "opt/deep": "../srv/deep",
        "opt/venv/bin/python3": "/usr/local/bin/python3",
        "usr/bin/of-venv": "/opt/venv/bin/python3",
        f"usr/local/{library}/named.pth": b"# /opt/no\nimport os\n/opt/named\n",
        f"root/.local/{library}/named.pth": b"\n/opt/of-user \n",
    }
    if pick.random() < 0.8:
        made.lower["opt/venv/pyvenv.cfg"] = settings.encode()
    for number, place in enumerate(
        pick.sample([*sites, *([named] * 4 if named else [])], pick.choice([1, 1, 2, 2, 3]))
    ):
        at = path[place][0] if place in path else sites[place]
        layer = made.lower if place in path and pick.random() < 0.5 else made.upper
        layer |= vllm(at, f"0.{number}") if pick.random() < 0.9 else {f"{at}/vllm.py": b""}
    return made


@dataclass(frozen=True)
class Bed:
    """An interpreter, as a folder and as a layer, and its `lib/python3.N/site-packages`."""

    root: Path
    view: LayerView
    library: str

    def found(self, image: Drawn) -> str:
        """Return where the vLLM is that vpatch finds."""
        views = [self.view, *(view_of(tar(*layer.items())) for layer in (image.lower, image.upper))]
        layers = tuple(Descriptor("", str(number), 1 << 30) for number in range(3))
        ref = parse("registry.example/a/b:c")
        manifest = Manifest("", "", b"", {"config": {"digest": ""}})
        whole = RemoteImage(ref, Repository(ref), manifest, image.config, layers, tuple(one.digest for one in layers))
        files = LayeredFiles(
            whole, is_wanted, known={one.digest: view for one, view in zip(layers, views, strict=True)}
        )
        return f"/{open_vllm(files, Base('it', '', image.config), image.python).root}/vllm/__init__.py"

    def imported(self, image: Drawn, top: Path) -> list[str | None]:
        """Return what the interpreter imports in that image: if started with `-m`, and as a script."""
        shutil.copytree(self.root, top, copy_function=os.link, symlinks=True)
        for path, content in (image.lower | image.upper).items():
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                (top / path).symlink_to(content)
            else:
                (top / path).write_bytes(content)
        (top / "app").mkdir(exist_ok=True)
        (top / "root").chmod(0o755)
        user = USERS[image.user]
        environment = {"HOME": HOMES[user], **image.env}
        folders = [folder for folder in image.env["PATH"].split(":") if (top / folder[1:] / "python3").is_symlink()]
        program = image.python or f"{folders[0]}/python3"

        def enter() -> None:
            os.chroot(top)
            os.chdir(image.workdir or "/")
            os.setgid(user)
            os.setuid(user)

        ran = subprocess.run(
            [program, "-c", _ASK], preexec_fn=enter, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        found: list[str | None] = json.loads(ran.stdout)
        return found


def view_of(layer: bytes) -> LayerView:
    return read_layer(iter([layer]), is_wanted, Usage())[0]


@pytest.fixture(scope="module")
def bed(interpreter: Path, tmp_path_factory: pytest.TempPathFactory) -> Bed:
    folder = tmp_path_factory.mktemp("bed")
    root = shutil.copytree(interpreter, folder / "root", copy_function=os.link, symlinks=True)
    (named,) = (root / "usr/local/lib").glob("python3.*/site-packages/*.pth")
    named.unlink()
    layer = archive(folder / "0.tar", (root, "")).read_bytes()
    return Bed(root, view_of(layer), str(named.parent.relative_to(root / "usr/local")))


def outcome(bed: Bed, seed: int, top: Path) -> str:
    """Draw an image; return "refused" or "found", after a look at what it really imports."""
    image = drawn(seed, bed.library)
    try:
        found = bed.found(image)
    except Failure:
        return "refused"
    real = dict(zip(("module", "script"), bed.imported(image, top), strict=True))
    shutil.rmtree(top)
    told = f"seed {seed}: {image}: found {found}, imported {real}"
    if image.python:
        assert found == real["module" if image.entrypoint[:2] == ("python3", "-m") else "script"], told
    else:
        assert set(real.values()) - {None} <= {found}, told
    return "found"


@root_only
@pytest.mark.parametrize("seeds", [range(30), *(deep(range(first, first + 100)) for first in range(30, 1030, 100))])
def test_what_is_found_is_what_is_imported(bed: Bed, tmp_path: Path, seeds: range) -> None:
    counts = Counter(outcome(bed, seed, tmp_path / "top") for seed in seeds)

    assert counts["found"] > len(seeds) / 4
    assert counts["refused"] > len(seeds) / 10

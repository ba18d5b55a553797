"""The vLLM that is found in an image, by its files alone, is the one that its interpreter imports, or it is refused.

Named layouts have the answer beside them; in drawn ones, the real interpreter runs by `chroot`, as the user, in the
folder and with the environment of the image.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from vpatch.errors import Failure
from vpatch.image.config import Base
from vpatch.image.filesystem import Place
from vpatch.image.registry.image import Manifest, RemoteImage
from vpatch.image.registry.layers import LayeredFiles, is_wanted, open_vllm
from vpatch.image.registry.reference import parse
from vpatch.image.registry.repository import Descriptor, Repository
from vpatch.image.registry.tar import LayerView, Spent, read_layer
from vpatch.image.search import find_vllm

from tests.image.registry.images import tar
from tests.needs import root_only
from tests.tiers import deep, sampled

Layer = dict[str, Any]  # as `tar` takes it: a path with bytes is a file, with text a link

SYSTEM = "/usr/local/bin:/usr/bin:/bin"


def vllm(at: str, version: str = "0.20.2", info: str = "") -> Layer:
    info = info or f"vllm-{version}.dist-info"
    return {
        f"{at}/vllm/__init__.py": b"",
        f"{at}/vllm/_version.py": f"__version__ = version = '{version}'\n".encode(),
        f"{at}/{info}/METADATA": b"",
        f"{at}/{info}/RECORD": b"",
    }


def config_of(env: Mapping[str, str], workdir: str = "", **more: Any) -> Mapping[str, Any]:
    pairs = [f"{name}={value}" for name, value in env.items()]
    return {"config": {"Env": pairs, "WorkingDir": workdir, **more}}


def view_of(layer: bytes) -> LayerView:
    return read_layer(iter([layer]), is_wanted, Spent())[0]


def files_of(views: Sequence[LayerView], config: Mapping[str, Any]) -> LayeredFiles:
    """Return the files of an image of these layers, the lowest first."""
    layers = tuple(Descriptor("", str(number), 1 << 30) for number in range(len(views)))
    ref, manifest = parse("registry.example/a/b:c"), Manifest("", "", b"", {"config": {"digest": ""}})
    image = RemoteImage(ref, Repository(ref), manifest, config, layers, tuple(one.digest for one in layers))
    return LayeredFiles(image, is_wanted, known={one.digest: view for one, view in zip(layers, views, strict=True)})


def found(layer: Layer, python: str | None = None, env: Mapping[str, str] | None = None, *, pth: bool = False) -> Place:
    """Return the vLLM that is found in an image of one layer."""
    config = config_of({"PATH": SYSTEM, **(env or {})})
    files = files_of([view_of(tar(*layer.items()))], config)
    while files.descend():
        continue
    return find_vllm(files, Base("the-image", "sha256:0", config), python, files.names if pth else lambda _: ())


DEBIAN, USR = "usr/local/lib/python3.12/dist-packages", "usr/lib/python3.12/site-packages"
ENV, USER = "srv/env/lib/python3.13/site-packages", "root/.local/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("site", "how"),
    [
        (DEBIAN, {}),
        ("usr/local/lib/python3.12/site-packages", {}),
        ("usr/lib/python3/dist-packages", {}),
        ("opt/venv/lib/python3.12/site-packages", {}),
        ("opt/conda/lib/python3.11/site-packages", {}),
        (ENV, {"VIRTUAL_ENV": "/srv/env"}),
        ("workspace/vllm-source", {"PYTHONPATH": "/workspace/vllm-source"}),
        ("usr/local/lib64/python3.12/site-packages", {}),
        (DEBIAN, {"PATH": ""}),
    ],
)
def test_layouts(site: str, how: dict[str, str]) -> None:
    """Of distributions, which those that are drawn have not."""
    bins = {"srv/env/bin/python3": b"", "usr/bin/python3": b""}
    assert found({**vllm(site), **bins}, env=how) == Place(site, "vllm-0.20.2.dist-info")


VENV = "opt/venv/lib/python3.12/site-packages"
TWO = {
    **vllm(DEBIAN, "0.20.2"),
    **vllm(VENV, "0.21.0"),
    "usr/bin/python3.12": b"",
    "usr/bin/python3": "python3.12",
    "opt/venv/bin/python3": "/usr/bin/python3.12",
    "opt/venv/pyvenv.cfg": b"",
}
WITH_USER = {**vllm(USER), **vllm(DEBIAN), "usr/bin/python3": b""}
LINKS = {**vllm("srv/env/lib/python3.12/site-packages"), "opt/venv": "/srv/env", "srv/env/lib64": "lib"}
CONDA = {
    **vllm("opt/conda/lib/python3.11/site-packages"),
    "opt/conda/bin/python3.11": b"",
    "usr/bin/python3": "../../opt/conda/bin/python3.11",
}


@pytest.mark.parametrize(
    ("layer", "python", "env", "root"),
    [
        (TWO, "/opt/venv/bin/python3", {}, VENV),
        (TWO, "/usr/bin/python3", {}, DEBIAN),
        (WITH_USER, "/usr/bin/python3", {}, USER),
        (WITH_USER, None, {"PYTHONNOUSERSITE": "1"}, DEBIAN),
        (LINKS, None, {"VIRTUAL_ENV": "/srv/env"}, "srv/env/lib/python3.12/site-packages"),
        (CONDA, "/usr/bin/python3", {}, "opt/conda/lib/python3.11/site-packages"),
    ],
)
def test_which_of_several(layer: Layer, python: str | None, env: dict[str, str], root: str) -> None:
    assert found(layer, python, env).root == root


def test_a_dist_info_with_another_name() -> None:
    """setup.py adds the CUDA version to the name of some wheels; what vpatch left of an earlier vLLM is none."""
    layer = vllm(USR, info="vllm-0.20.2+cu129.dist-info") | {f"{USR}/vllm-0.20.1.dist-info/vpatch/x.py": b""}

    assert found(layer).dist_info == "vllm-0.20.2+cu129.dist-info"


def bare(*infos: str) -> Layer:
    return {f"{USR}/vllm/__init__.py": b"", **{f"{USR}/vllm-{info}.dist-info/METADATA": b"" for info in infos}}


CODE = rf"not known: the-image: /{DEBIAN}/a\.pth runs code .* with an engine"


@pytest.mark.parametrize(
    ("layer", "python", "why"),
    [
        (TWO, None, f"more than one vllm: the-image: /{DEBIAN}/vllm and /{VENV}/vllm: .*--python"),
        (WITH_USER, None, r"/root/\.local/.* and /usr/local/"),
        *(
            ({**vllm(DEBIAN), f"{DEBIAN}/a.pth": f"import os  # of others\n{line}\n".encode()}, None, CODE)
            for line in ("import _vllm_editable; _vllm_editable.install()", "import\tVLLM")
        ),
        ({"usr/bin/python3": "python", "usr/bin/python": "python3"}, "/usr/bin/python3", "no vllm"),
        (bare(), None, "no dist-info"),
        (bare("1", "2"), None, "vllm-1.dist-info and vllm-2"),
        ({"usr/lib/python3.12/x.py": b""}, None, rf"no vllm: the-image: looked in /{USR}"),
        ({"a.py": b""}, None, "no site-packages at all"),
    ],
)
def test_what_is_refused(layer: Layer, python: str | None, why: str) -> None:
    with pytest.raises(Failure, match=why):
        found(layer, python, pth=True)


_ASK = """
import importlib.util, json, os, sys
def origin():
    spec = importlib.util.find_spec("vllm")
    return spec and spec.origin and os.path.realpath(spec.origin)
module = origin()
sys.path[:] = [path for path in sys.path if path]
print(json.dumps([module, origin()]))
"""
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
        return config_of(self.env, self.workdir, User=self.user, Entrypoint=[*self.entrypoint])


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
    places = [*sites, *([named] * 4 if named else [])]
    for number, place in enumerate(pick.sample(places, pick.choice([1, 1, 2, 2, 3]))):
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
        layers = (view_of(tar(*layer.items())) for layer in (image.lower, image.upper))
        files = files_of([self.view, *layers], image.config)
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
        shutil.rmtree(top)
        found: list[str | None] = json.loads(ran.stdout)
        return found


@pytest.fixture(scope="module")
def bed(interpreter: Path, tmp_path_factory: pytest.TempPathFactory) -> Bed:
    folder = tmp_path_factory.mktemp("bed")
    root = shutil.copytree(interpreter, folder / "root", copy_function=os.link, symlinks=True)
    (named,) = (root / "usr/local/lib").glob("python3.*/site-packages/*.pth")
    named.unlink()
    layer = tar(*((str(path.relative_to(root)), member(path)) for path in sorted(root.rglob("*"))))
    return Bed(root, view_of(layer), str(named.parent.relative_to(root / "usr/local")))


def member(path: Path) -> str | bytes | None:
    return str(path.readlink()) if path.is_symlink() else None if path.is_dir() else b""  # the bytes decide nothing


def outcome(bed: Bed, seed: int, top: Path) -> str:
    """Draw an image; return "refused" or "found", after a look at what it really imports."""
    image = drawn(seed, bed.library)
    try:
        found = bed.found(image)
    except Failure:
        return "refused"
    real = dict(zip(("module", "script"), bed.imported(image, top), strict=True))
    told = f"seed {seed}: {image}: found {found}, imported {real}"
    if image.python:
        assert found == real["module" if image.entrypoint[:2] == ("python3", "-m") else "script"], told
    else:
        assert set(real.values()) - {None} <= {found}, told
    return "found"


MORE = sampled([range(first, first + 100) for first in range(8, 1008, 100)], 5)


@root_only
@pytest.mark.parametrize("seeds", [range(8), *map(deep, MORE)])
def test_what_is_found_is_what_is_imported(bed: Bed, tmp_path: Path, seeds: range) -> None:
    counts = Counter(outcome(bed, seed, tmp_path / "top") for seed in seeds)

    assert counts["found"] > len(seeds) / 4
    assert counts["refused"] > len(seeds) / 10

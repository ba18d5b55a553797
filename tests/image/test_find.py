"""Which vLLM an image's interpreter would import, found from files alone."""

from __future__ import annotations

from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISLNK, S_ISREG
from typing import IO

import pytest
from vpatch.errors import Failure
from vpatch.image.config import Base
from vpatch.image.filesystem import Entry, Kind, Vllm
from vpatch.image.search import find_vllm


class FolderFiles:
    """A folder of this machine as an image's file system."""

    def __init__(self, top: Path) -> None:
        self._top = top

    def entry(self, path: str) -> Entry | None:
        at = self._top / path
        try:
            of = at.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        kinds = ((S_ISREG, Kind.FILE), (S_ISDIR, Kind.FOLDER), (S_ISLNK, Kind.LINK))
        kind = next((kind for is_kind, kind in kinds if is_kind(of.st_mode)), Kind.OTHER)
        target = str(at.readlink()) if kind is Kind.LINK else ""
        return Entry(path, kind, S_IMODE(of.st_mode), of.st_uid, of.st_gid, int(of.st_mtime), of.st_size, target)

    def kind(self, path: str) -> Kind | None:
        here = self.entry(path)
        return here.kind if here else None

    def read(self, path: str) -> bytes | None:
        at = self._top / path
        return at.read_bytes() if at.is_file() and not at.is_symlink() else None

    def open(self, path: str) -> IO[bytes] | None:
        at = self._top / path
        return at.open("rb") if at.is_file() else None

    def names(self, folder: str) -> tuple[str, ...]:
        at = self._top / folder
        return tuple(sorted(path.name for path in at.iterdir())) if at.is_dir() else ()


PATH = "/usr/local/bin:/usr/bin:/bin"


def install(top: Path, site: str, version: str = "0.20.2", info: str = "") -> None:
    (top / site / "vllm").mkdir(parents=True)
    (top / site / "vllm/__init__.py").touch()
    (top / site / "vllm/_version.py").write_text(f"__version__ = version = '{version}'\n")
    (top / site / (info or f"vllm-{version}.dist-info")).mkdir()
    for name in ("RECORD", "METADATA"):
        (top / site / (info or f"vllm-{version}.dist-info") / name).touch()


def interpreter(top: Path, path: str, to: str = "") -> None:
    (top / path).parent.mkdir(parents=True, exist_ok=True)
    if to:
        (top / path).symlink_to(to)
    else:
        (top / path).touch()


def found(top: Path, python: str | None = None, workdir: str = "", **env: str) -> Vllm:
    return find_vllm(FolderFiles(top), image({"PATH": PATH, **env}, workdir), python)


def image(env: dict[str, str], workdir: str = "") -> Base:
    pairs = [f"{name}={value}" for name, value in env.items()]
    return Base("the-image", "sha256:0", {"config": {"Env": pairs, "WorkingDir": workdir}})


@pytest.mark.parametrize(
    ("site", "python", "how"),
    [
        ("usr/local/lib/python3.12/dist-packages", "usr/bin/python3", {}),
        ("usr/local/lib/python3.12/site-packages", "usr/local/bin/python3", {}),
        ("usr/lib/python3/dist-packages", "usr/bin/python3", {}),
        ("opt/venv/lib/python3.12/site-packages", "opt/venv/bin/python3", {}),
        ("opt/conda/lib/python3.11/site-packages", "opt/conda/bin/python", {}),
        ("srv/env/lib/python3.13/site-packages", "srv/env/bin/python3", {"PATH": f"/srv/env/bin:{PATH}"}),
        ("srv/env/lib/python3.13/site-packages", "usr/bin/python3", {"VIRTUAL_ENV": "/srv/env"}),
        ("workspace/vllm-source", "usr/bin/python3", {"PYTHONPATH": "/workspace/vllm-source"}),
        ("workspace", "usr/bin/python3", {"workdir": "/workspace"}),
        ("app/src", "usr/bin/python3", {"PYTHONPATH": "src", "workdir": "/app"}),
        ("srv/src", "usr/bin/python3", {"PYTHONPATH": "../srv/src", "workdir": "/app"}),
        ("root/.local/lib/python3.12/site-packages", "usr/bin/python3", {}),
        ("home/me/.local/lib/python3.12/site-packages", "usr/bin/python3", {"HOME": "/home/me"}),
        ("srv/base/lib/python3.12/site-packages", "usr/bin/python3", {"PYTHONUSERBASE": "/srv/base"}),
        ("usr/local/lib64/python3.12/site-packages", "usr/bin/python3", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_layouts(tmp_path: Path, site: str, python: str, how: dict[str, str]) -> None:
    install(tmp_path, site)
    interpreter(tmp_path, python)

    assert found(tmp_path, **how) == Vllm(site, "vllm-0.20.2.dist-info")


def test_an_image_without_a_path_has_the_default_one(tmp_path: Path) -> None:
    install(tmp_path, "usr/local/lib/python3.12/dist-packages")

    assert find_vllm(FolderFiles(tmp_path), image({})).version == "0.20.2"


def test_two_vllms_are_an_error(tmp_path: Path) -> None:
    install(tmp_path, "usr/local/lib/python3.12/dist-packages", "0.20.2")
    install(tmp_path, "opt/venv/lib/python3.12/site-packages", "0.21.0")
    interpreter(tmp_path, "usr/bin/python3", "python3.12")
    interpreter(tmp_path, "opt/venv/bin/python3", "/usr/bin/python3.12")
    (tmp_path / "opt/venv/pyvenv.cfg").touch()

    with pytest.raises(Failure, match="more than one vllm: the-image") as caught:
        found(tmp_path)
    assert "/opt/venv/lib/python3.12/site-packages/vllm" in str(caught.value)
    assert "/usr/local/lib/python3.12/dist-packages/vllm" in str(caught.value)
    assert "--python" in str(caught.value)
    assert found(tmp_path, python="/opt/venv/bin/python3").version == "0.21.0"
    assert found(tmp_path, python="/usr/bin/python3").version == "0.20.2"


def test_one_vllm_by_two_names(tmp_path: Path) -> None:
    install(tmp_path, "srv/env/lib/python3.12/site-packages")
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/venv").symlink_to("/srv/env")
    (tmp_path / "srv/env/lib64").symlink_to("lib")

    assert found(tmp_path, VIRTUAL_ENV="/srv/env").root == "srv/env/lib/python3.12/site-packages"


def test_of_two_vllms_the_users_comes_first(tmp_path: Path) -> None:
    user = install_both(tmp_path)

    with pytest.raises(Failure, match=r"/root/\.local/.* and /usr/local/"):
        found(tmp_path)
    assert found(tmp_path, python="/usr/bin/python3").root == user
    assert found(tmp_path, PYTHONNOUSERSITE="1").root != user


def install_both(top: Path) -> str:
    install(top, user := "root/.local/lib/python3.12/site-packages")
    install(top, "usr/local/lib/python3.12/dist-packages")
    interpreter(top, "usr/bin/python3")
    return user


@pytest.mark.parametrize("line", ["import _vllm_editable; _vllm_editable.install()", "import\tVLLM"])
def test_code_that_may_lead_to_another_vllm(tmp_path: Path, line: str) -> None:
    install(tmp_path, site := "usr/local/lib/python3.12/dist-packages")
    (tmp_path / site / "a.pth").write_text(f"import os  # of others\n{line}\n")
    files = FolderFiles(tmp_path)

    with pytest.raises(Failure, match=rf"not known: the-image: /{site}/a\.pth runs code .* with an engine"):
        find_vllm(files, image({}), names=files.names)


def test_an_interpreter_that_is_a_link(tmp_path: Path) -> None:
    install(tmp_path, "opt/conda/lib/python3.11/site-packages")
    interpreter(tmp_path, "opt/conda/bin/python3.11")
    interpreter(tmp_path, "usr/bin/python3", "../../opt/conda/bin/python3.11")

    assert found(tmp_path, python="/usr/bin/python3").root == "opt/conda/lib/python3.11/site-packages"


def test_circular_links(tmp_path: Path) -> None:
    interpreter(tmp_path, "usr/bin/python3", "python")
    interpreter(tmp_path, "usr/bin/python", "python3")

    with pytest.raises(Failure, match="no vllm"):
        found(tmp_path, python="/usr/bin/python3")


def test_a_dist_info_with_another_name(tmp_path: Path) -> None:
    # setup.py adds the CUDA version to the name of some wheels, but not to _version.py.
    install(tmp_path, "usr/lib/python3.12/site-packages", info="vllm-0.20.2+cu129.dist-info")
    interpreter(tmp_path, "usr/bin/python3")

    left = tmp_path / "usr/lib/python3.12/site-packages/vllm-0.20.1.dist-info/vpatch"
    left.mkdir(parents=True)  # of an earlier vLLM: no installation

    assert found(tmp_path).dist_info == "vllm-0.20.2+cu129.dist-info"


@pytest.mark.parametrize(("infos", "error"), [((), "no dist-info"), (("1", "2"), "vllm-1.dist-info and vllm-2")])
def test_none_or_two_dist_infos(tmp_path: Path, infos: tuple[str, ...], error: str) -> None:
    site = tmp_path / "usr/lib/python3.12/site-packages"
    (site / "vllm").mkdir(parents=True)
    (site / "vllm/__init__.py").touch()
    for info in infos:
        (site / f"vllm-{info}.dist-info").mkdir()
        (site / f"vllm-{info}.dist-info/METADATA").touch()
    interpreter(tmp_path, "usr/bin/python3")

    with pytest.raises(Failure, match=error):
        found(tmp_path)


def test_no_vllm(tmp_path: Path) -> None:
    (tmp_path / "usr/lib/python3.12").mkdir(parents=True)

    with pytest.raises(Failure, match=r"no vllm: the-image: looked in /usr/lib/python3\.12/site-packages"):
        found(tmp_path)


def test_no_python(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no site-packages at all"):
        found(tmp_path)

"""Wheels made of what is here: fetched releases of vLLM, and packages of the environment that runs the tests."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

from packaging.tags import sys_tags

from tests.loopback import record_of

LEFT_OUT = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
"""What an installer writes into a dist-info."""


def wheel_of(tree: Path, named: str = "") -> bytes:
    """Pack a fetched tree: the release's wheel without what is not Python, and without its dependencies.

    Of what is not Python, the files in the folder `named` are there, and empty: an overlay may read their names.
    """
    (info,) = (found.name for found in tree.glob("vllm-*.dist-info"))
    listed = [line.partition(",")[0] for line in (tree / info / "RECORD").read_text("utf-8").splitlines()]
    files = {name: (tree / name).read_bytes() for name in listed if (tree / name).is_file()}
    files |= {name: b"" for name in listed if named and name.startswith(f"{named}/") and name not in files}
    metadata = re.sub(rb"(?m)^Requires-Dist: .*\n", b"", files[f"{info}/METADATA"])
    return packed({**files, f"{info}/METADATA": metadata}, info)


def wheel_of_installed(project: str) -> tuple[str, bytes]:
    """Pack a project of this environment; return the wheel's name and its bytes.

    Raises:
        PackageNotFoundError: it is not installed here.
    """
    found = distribution(project)
    paths = [path for path in found.files or () if ".." not in path.parts and "__pycache__" not in path.parts]
    (info,) = {path.parts[0] for path in paths if path.name == "METADATA" and len(path.parts) == 2}
    files = {str(path): path.read_binary() for path in paths if path.parts[0] != info or path.name not in LEFT_OUT}
    tags = re.findall(r"^Tag: (\S+)$", files[f"{info}/WHEEL"].decode(), re.MULTILINE)
    tag = next(str(tag) for tag in sys_tags() if str(tag) in tags)
    name = re.sub(r"[-_.]+", "_", found.name).lower()
    return f"{name}-{found.version}-{tag}.whl", packed(files, info)


def packed(files: Mapping[str, bytes], info: str) -> bytes:
    record = f"{info}/RECORD"
    content = {name: data for name, data in files.items() if name != record}
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        for name, data in {**content, record: record_of(content, record)}.items():
            archive.writestr(name, data)
    return body.getvalue()

"""vLLM's own tests: taken from a source distribution on the package index, never kept in this project."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tarfile
import warnings
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import requests
from pypi_simple import DistributionPackage, NoSuchProjectError, PyPISimple, UnexpectedRepoVersionWarning
from vpatch.release.session import open_session
from vpatch.release.settings import read_settings

from tests.cpu.environment import CACHE, environ


def fetch(version: str, path: str) -> Path:
    """Give one file of a release's source distribution, a path below its top folder; kept in `.cache/`."""
    kept = CACHE / "upstream" / version / path
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            part = kept.with_suffix(".part")
            with part.open("w+b") as archive:
                _download(version, archive)
                archive.seek(0)
                with tarfile.open(fileobj=archive) as members:
                    member = members.extractfile(f"vllm-{version}/{path}")
                    assert member, f"vllm {version} has no {path}"
                    data = member.read()
            part.write_bytes(data)
            part.rename(kept)
    return kept


def run(python: Path, file: Path, tree: Path, home: Path) -> tuple[Counter[str], set[str]]:
    """Run a file of vLLM's tests against a tree: how many had which outcome, and the names of those that failed."""
    report = home / "report.xml"
    # Not this project's settings: a cache below it is still below it.
    plain = ("--noconftest", "-c", os.devnull, f"--rootdir={home}", "-pno:cacheprovider", f"--junitxml={report}")
    command = [str(python), "-m", "pytest", "-ptests.cpu.plugin", *plain, str(file)]
    ran = subprocess.run(command, cwd=home, env=environ(tree, home), capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), f"{file.name} on {tree}:\n{ran.stdout[-8000:]}{ran.stderr[-2000:]}"

    outcomes: Counter[str] = Counter()
    failing: set[str] = set()
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by the process above
        tags = {child.tag for child in case}
        outcome = next((tag for tag in ("error", "failure", "skipped") if tag in tags), "passed")
        outcomes[outcome] += 1
        failing |= {case.get("name", "")} if outcome in ("error", "failure") else set()
    return outcomes, failing


def _download(version: str, archive: IO[bytes]) -> None:
    settings = read_settings()
    with open_session(settings) as session:
        package = next(_source_distributions(session, settings.indexes, version), None)
        assert package, f"no source distribution of vllm {version} on the package index"
        digest = hashlib.sha256()
        with session.get(package.url, stream=True, timeout=60) as response:
            response.raise_for_status()
            for chunk in response.iter_content(1 << 20):
                digest.update(chunk)
                archive.write(chunk)
    said = package.digests.get("sha256")
    assert said in (None, digest.hexdigest()), f"{package.filename} arrived damaged"


def _source_distributions(
    session: requests.Session, indexes: Sequence[str], version: str
) -> Iterator[DistributionPackage]:
    for index in indexes:
        with suppress(NoSuchProjectError), warnings.catch_warnings():
            warnings.simplefilter("ignore", UnexpectedRepoVersionWarning)
            page = PyPISimple(index, session=session).get_project_page("vllm", timeout=60)
            yield from (one for one in page.packages if (one.package_type, one.version) == ("sdist", version))

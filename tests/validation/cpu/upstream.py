"""vLLM's own tests, taken from a source distribution on the package index, never kept in this project."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tarfile
import warnings
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, NamedTuple

import requests
from pypi_simple import DistributionPackage, NoSuchProjectError, PyPISimple, UnexpectedRepoVersionWarning
from vpatch.release.index_config import open_session, read_settings

from tests.archives import unpack
from tests.paths import CACHE
from tests.validation.cpu.environment import probe


class Case(NamedTuple):
    """Outcome of one test; a module that cannot be imported counts as one, under its own name."""

    name: str
    outcome: str  # passed, failure, error or skipped


def fetch(version: str, path: str) -> Path:
    """Return one test file of a release's source distribution, next to all the others; kept in `.cache/`.

    Args:
        version: the release.
        path: a path below the top folder, which starts with `tests/`.
    """
    top = CACHE / "upstream" / f"vllm-{version}"
    top.parent.mkdir(parents=True, exist_ok=True)
    with (top.parent / f"{top.name}.lock").open("w") as lock, TemporaryDirectory(dir=top.parent) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not top.exists():
            with TemporaryFile(dir=folder) as archive:
                _download(version, archive)
                archive.seek(0)
                with tarfile.open(fileobj=archive) as members:
                    tests = [member for member in members if member.name.startswith(f"{top.name}/tests/")]
                    unpack(members, Path(folder), tests)
            (Path(folder) / top.name).rename(top)
    assert (top / path).is_file(), f"vllm {version} has no {path}"
    return top / path


def cases(python: Path, files: Sequence[Path], tree: Path, home: Path) -> list[Case]:
    """Run files of one release's tests against a tree. They may write to `home`, an empty folder."""
    report = home / "report.xml"
    top = next(parent for parent in files[0].parents if parent.parent == CACHE / "upstream")
    # Not this project's pytest settings, which a cache below it would inherit.
    plain = ("-c", os.devnull, f"--rootdir={top}", "-p", "no:cacheprovider", f"--junitxml={report}")
    arguments = ("--continue-on-collection-errors", *plain, *map(str, files))
    probe(python, "on_cpu", tree, home, *arguments, ready="without_gpu")
    return [_case(element) for element in ET.parse(report).iter("testcase")]  # noqa: S314 - pytest wrote it


def run(python: Path, file: Path, tree: Path, home: Path) -> tuple[Counter[str], set[str]]:
    """Run a file of vLLM's tests against a tree; return the count of each outcome and the names of failed tests."""
    found = cases(python, [file], tree, home)
    failing = {case.name.rpartition("::")[2] for case in found if case.outcome in ("error", "failure")}
    return Counter(case.outcome for case in found), failing


def beside(python: Path, file: Path, trees: Sequence[Path], scratch: Path) -> list[tuple[Counter[str], set[str]]]:
    """Run a file of vLLM's tests against several trees; return for each what `run` returns."""
    homes = [scratch / str(number) for number in range(len(trees))]
    for home in homes:
        home.mkdir()
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(lambda tree, home: run(python, file, tree, home), trees, homes))


def _case(element: ET.Element) -> Case:
    name = "::".join(filter(None, (element.get("classname"), element.get("name"))))
    return Case(name, next((how for how in ("error", "failure", "skipped") if element.find(how) is not None), "passed"))


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

"""Compare what two commits of vpatch print and write, over every vLLM release.

    python -m tests.validation.equality OLD_COMMIT [NEW_COMMIT] [--vllm V]...

Each command runs as a process that imports one commit's sources. On equal copies of a release, each selection of
overlays is applied, applied again and reverted; after every command, every file of the tree is compared with the
release. Prints a diff, and exits with 1 if there is any. A full run takes half an hour of one core for each commit.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.archives import unpack
from tests.paths import ROOT
from tests.releases import RELEASES, tree_of

SOURCES = ("builder", "patches")
_INHERITED = re.compile("PATH|TMPDIR|(PIP|UV|SSL|REQUESTS)_.*|.*_proxy", re.IGNORECASE)
_FIXED = {"COLUMNS": "200", "LANG": "C.UTF-8", "LOGNAME": "equality", "SOURCE_DATE_EPOCH": "1767225600", "TZ": "UTC"}
_SECONDS = re.compile(r'(?<="seconds": )[\d.]+|\d+(\.\d+)? s\b')


class Program:
    """The command line of one commit (None: of the working tree), its folder, and the record of what it did."""

    def __init__(self, commit: str | None, work: Path) -> None:
        self.work, self.overlays, self.record = work, list[str](), list[str]()
        for source in SOURCES if commit is None else ():
            shutil.copytree(ROOT / source, work / "source" / source, ignore=shutil.ignore_patterns("__pycache__"))
        if commit:
            git = subprocess.Popen(["git", "-C", str(ROOT), "archive", commit, *SOURCES], stdout=subprocess.PIPE)
            with git, tarfile.open(fileobj=git.stdout, mode="r|") as tar:
                unpack(tar, work / "source")
        self.environment = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)} | _FIXED
        self.environment |= {"HOME": str(work / "home"), "XDG_CACHE_HOME": str(work / "cache")}
        self.environment["PYTHONPATH"] = os.pathsep.join(str(work / "source" / folder) for folder in SOURCES)

    def run(self, *words: str | Path) -> str:
        """Run a command and record it; placeholders replace its folder and the seconds that it prints."""
        command = [sys.executable, "-m", "vpatch", *map(str, words)]
        ran = subprocess.run(
            command, cwd=self.work, env=self.environment, umask=0o022, capture_output=True, text=True, check=False
        )
        said = f"$ vpatch {' '.join(map(str, words))}\nexit status {ran.returncode}\n{ran.stdout}{ran.stderr}"
        self.record += _SECONDS.sub("_ s", said.replace(str(self.work), "/WORK")).splitlines()
        return ran.stdout

    def catalogue(self) -> None:
        """Record the help, the overlays and the plan of every preset."""
        self.run("--help")
        self.overlays = [one["id"] for one in json.loads(self.run("list", "--json"))["overlays"]]
        for preset in json.loads(self.run("plan", "--list", "--json"))["presets"]:
            self.run("plan", "--preset", preset["name"], "--json")
        for overlay in self.overlays:
            self.run("show", overlay, "--json")

    def release(self, version: str) -> None:
        """Record each selection of overlays on a release: apply, apply again, revert each overlay alone, revert."""
        # A copy, so that no bug of a commit under test reaches the release that is kept. Trees share files with it.
        pristine, tree, applied = (self.work / name / version for name in ("pristine", "trees", "applied"))
        shutil.copytree(tree_of(version), pristine)
        each = [["--overlay", overlay] for overlay in self.overlays]
        for options in ([], [word for one in each for word in one], *each):
            shutil.copytree(pristine, tree, copy_function=os.link)
            for command in ("status", "diff", "apply", "verify", "apply"):
                self.step(pristine, tree, command, *options, *(["--json"] if command != "diff" else []))
            shutil.copytree(tree, applied, copy_function=os.link)
            for words in (*(one for one in each if one[1] in options), []):
                shutil.rmtree(tree)
                shutil.copytree(applied, tree, copy_function=os.link)
                self.step(pristine, tree, "revert", *words, "--json")
            shutil.rmtree(tree)
            shutil.rmtree(applied)
        self.record += changes(tree_of(version), pristine)
        shutil.rmtree(pristine)

    def step(self, pristine: Path, tree: Path, *words: str) -> None:
        """Run a command on a tree, and record what then differs from the release."""
        self.run(*words, tree)
        self.record += changes(pristine, tree)


def changes(pristine: Path, tree: Path) -> Iterator[str]:
    """Yield a line for each file or folder of a tree that differs from the pristine one."""
    before, after = ({str(path.relative_to(top)): path.lstat() for path in top.rglob("*")} for top in (pristine, tree))
    yield from (f"{name}: gone" for name in sorted(before.keys() - after.keys()))
    for name, now in sorted(after.items()):
        then, file = before.get(name), tree / name
        if then and os.path.samestat(then, now):
            continue
        alike = then is not None and then.st_mode == now.st_mode
        if not (alike and (file.is_dir() or file.read_bytes() == (pristine / name).read_bytes())):
            digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
            yield f"{name}: {now.st_mode:o} {digest}"


def main(arguments: Sequence[str]) -> int:
    """Compare two commits, print what differs, and return the exit status."""
    parser = argparse.ArgumentParser("python -m tests.validation.equality", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("old", metavar="OLD_COMMIT")
    parser.add_argument("new", metavar="NEW_COMMIT", nargs="?", help="default: the working tree")
    parser.add_argument("--vllm", metavar="V", action="append", choices=RELEASES, help="only this release (repeatable)")
    asked = parser.parse_args(arguments)
    differs = False
    with tempfile.TemporaryDirectory(prefix="vpatch-equality-") as work:
        programs = [Program(commit, Path(work, name)) for name, commit in (("old", asked.old), ("new", asked.new))]
        for unit in ("catalogue", *(asked.vllm or RELEASES)):
            for program in programs:
                program.record.clear()
                program.catalogue() if unit == "catalogue" else program.release(unit)
            old, new = (program.record for program in programs)
            found = list(difflib.unified_diff(old, new, "old", "new", n=1, lineterm=""))
            sys.stdout.write("\n".join([f"{unit}: {len(old):,} lines", *found, ""]))
            sys.stdout.flush()
            differs |= bool(found)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

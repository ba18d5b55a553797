"""Copies of the project in which mutants are made: each has the sources, the tests and an environment of its own.

Its environment finds the copy's packages before those of the environment that runs this, so that every process that a
test starts with its own interpreter has the mutant, whatever the test does to PYTHONPATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.mutation.operators import Mutant

CLOCK = count(1_600_000_000, 10)
"""A new time for each written module: Python takes bytecode whose source has the same second and size for current."""


@dataclass(frozen=True)
class Outcome:
    """The end of one run of pytest: whether it failed, the first test that did, and if the time was up."""

    failed: bool
    test: str = ""
    hung: bool = False


@dataclass
class Copy:
    """One copy of the project."""

    root: Path
    _clean: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def make(cls, project: Path, root: Path) -> Copy:
        """Copy the files that git tracks or would track, link the caches, and make the environment."""
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=project, capture_output=True, check=True
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (project / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(project / name, root / name)
        (project / ".cache").mkdir(exist_ok=True)
        (root / ".cache").symlink_to((project / ".cache").resolve())
        _environment(root)
        return cls(root)

    def put(self, mutant: Mutant, data: bytes) -> None:
        """Write a module, or its mutant."""
        path = self.root / mutant.file
        path.write_bytes(data)
        os.utime(path, (now := next(CLOCK), now))

    def run(self, tests: list[str], limit: float) -> Outcome:
        """Run tests in this order, until one fails or the limit in seconds is over."""
        chosen = self.root / "chosen.txt"
        chosen.write_text("".join(f"{test}\n" for test in tests))
        options = ["-x", "-q", "-m", "", "-p", "no:cacheprovider", "-p", "no:randomly", "-rfE", "--tb=no", "--no-cov"]
        command = [str(self.root / ".venv/bin/python"), "-m", "pytest", *options, f"@{chosen}"]
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST", "PYTHON"))
        }
        environment |= {
            "VIRTUAL_ENV": str(self.root / ".venv"),
            "PATH": f"{self.root / '.venv/bin'}:{os.environ['PATH']}",
        }
        ran = subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            out = ran.communicate(timeout=limit)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(ran.pid, 9)
            ran.communicate()
            return Outcome(failed=True, hung=True)
        if ran.returncode in (0, 5):
            return Outcome(failed=False)
        lines = re.findall(
            rf"^(?:FAILED|ERROR)(?: |:.*{re.escape(str(self.root))}/)(tests/.*?)(?: - .*)?$", out, re.MULTILINE
        )
        return Outcome(failed=True, test=lines[0] if lines else "")

    def passes(self, test: str) -> bool:
        """Whether a test passes here, where there is no mutant; each is run once."""
        if test not in self._clean:
            self._clean[test] = not self.run([test], 1200).failed
        return self._clean[test]


def _environment(root: Path) -> None:
    """Make an environment that has the packages of the current one, and the copy's own before them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / ".venv"], check=True)
    (packages,) = (root / ".venv/lib").glob("python*/site-packages")
    outer = sysconfig.get_path("purelib")
    own = f"{root / 'builder'}\n{root / 'patches'}\n"
    (packages / "mutant.pth").write_text(f"{own}import site; site.addsitedir({outer!r})\n")
    programs = root / ".venv/bin"
    for program in Path(sysconfig.get_path("scripts")).iterdir():
        if (programs / program.name).exists() or not program.is_file():
            continue
        data = program.read_bytes()
        line, found, rest = data.partition(b"\n")
        if found and line.startswith(b"#!") and b"python" in line:
            (programs / program.name).write_bytes(b"#!" + os.fsencode(programs / "python") + b"\n" + rest)
            (programs / program.name).chmod(0o755)
        else:
            (programs / program.name).symlink_to(program)

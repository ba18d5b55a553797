"""Run the first tier: `python -m tests`. Static checks run beside pytest, which gets this command's arguments.

With `CI` in the environment, as `.ci/run` sets it, it also measures coverage.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.paths import ROOT

WORKFLOWS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
CHOOSER = ".github/ISSUE_TEMPLATE/config.yml"
PYTEST = ("-u", "-m", "pytest", "-n", "auto", "--dist", "loadfile")  # unbuffered: a log shows each line at once
COVERAGE = ("--cov", "--cov-report=term-missing:skip-covered", "--cov-fail-under=95")

CHECKS: Mapping[str, Sequence[str]] = {
    "ruff": ("ruff", "check", "."),
    "format": ("ruff", "format", "--check", "."),
    "mypy": ("mypy",),
    "schema": ("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS),
    "action": ("check-jsonschema", "--builtin-schema", "vendor.github-actions", "action.yml"),
    "forms": ("check-jsonschema", "--builtin-schema", "vendor.github-issue-forms", *(set(FORMS) - {CHOOSER})),
    "chooser": ("check-jsonschema", "--builtin-schema", "vendor.github-issue-config", CHOOSER),
    "updates": ("check-jsonschema", "--builtin-schema", "vendor.dependabot", ".github/dependabot.yml"),
    "zizmor": ("zizmor", "--offline", "--quiet", *WORKFLOWS, "action.yml", ".github/dependabot.yml"),
}


def failure(check: Sequence[str]) -> str:
    """Run a static check of the repository; return what it printed if it failed, "" otherwise."""
    tool, *arguments = check
    command = [str(Path(sys.executable).with_name(tool)), *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return f"{ran.stdout}{ran.stderr}\n{tool} exited with {ran.returncode}\n" if ran.returncode else ""


def main(*arguments: str) -> int:
    """Run everything; return 0 if all of it succeeded."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each of many processes would compile the same modules
    with ThreadPoolExecutor(max_workers=1) as pool:  # one check at a time: pytest uses all cores
        failures = pool.map(failure, CHECKS.values())
        sys.stdout.write(f"static checks run beside the tests, and are reported last: {', '.join(CHECKS)}\n")
        sys.stdout.flush()
        coverage = COVERAGE if os.environ.get("CI") else ()
        tested = subprocess.call([sys.executable, *PYTEST, *coverage, *arguments], cwd=ROOT)
        found = dict(zip(CHECKS, failures, strict=True))
    sys.stdout.write("\n".join(filter(None, found.values())))
    outcomes = (f"{name} {'failed' if told else 'ok'}" for name, told in found.items())
    sys.stdout.write(f"static checks: {', '.join(outcomes)}\n")
    return tested or int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

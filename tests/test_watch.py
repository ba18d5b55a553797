"""The workflow that watches vLLM: its steps on a healthy vLLM and with a planted regression, and its permissions.

`gh` is a stand-in that records its arguments; everything else is real.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import Trees
from tests.matrix.git_server import git
from tests.needs import need
from tests.paths import ROOT
from tests.tiers import deep
from tests.workflows import bash, outputs, step, workflow

OVERLAY, RELEASE = "turboquant-workspace", "0.20.2"
RUN = "https://github.example/vpatch/vpatch/actions/runs/1"


class Looked(NamedTuple):
    """Result of the comparing job: exit codes of its two steps, its outputs and its text."""

    code: int
    told: int
    outputs: dict[str, str]
    summary: str
    err: str


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory, slim: Trees) -> str:
    """A repository in place of vLLM's, whose main branch is a release."""
    root = tmp_path_factory.mktemp("vllm")
    git(root, "init", "-q", "-b", "main")
    shutil.copytree(slim(RELEASE) / "vllm", root / "vllm")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "some")
    git(root, "tag", f"v{RELEASE}")
    return f"file://{root}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The job's working folder: the repository and its virtual environment."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in (".ci", "docs"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def runner(folder: Path) -> dict[str, str]:
    """Return the variables that the runner sets; steps write to two files in the folder."""
    files = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        Path(file).touch()
    return {**files, "GITHUB_SERVER_URL": "https://github.example", "GITHUB_REPOSITORY": "vpatch/vpatch"}


def look(checkout: Path, ref: str, repository: str, *, only: str = "", overlays: Path | None = None) -> Looked:
    """Run the steps; `only` holds more options that save time, `overlays` is a folder to take overlays from."""
    for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        (checkout / name).unlink(missing_ok=True)
    environment = {"REF": ref, "REPOSITORY": repository, **runner(checkout), "PYTHONPATH": str(overlays or "")}
    environment["XDG_CACHE_HOME"] = str(checkout.parent / "cache")
    command = step("watch", "look", "matrix")["run"]
    assert command.count("vpatch matrix ") == 1
    ran = bash(command.replace("vpatch matrix ", f"vpatch matrix {only} "), checkout, **environment)
    told = bash(step("watch", "look", "difference")["run"], checkout, **environment)
    summary = (checkout / "GITHUB_STEP_SUMMARY").read_text()
    return Looked(ran.returncode, told.returncode, outputs(checkout / "GITHUB_OUTPUT"), summary, ran.stderr)


@pytest.fixture(scope="module")
def maimed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the overlays; one of them lacks the shape of vLLM 0.20."""
    top = tmp_path_factory.mktemp("overlays")
    copy = shutil.copytree(ROOT / "patches/vpatch_overlays", top / "vpatch_overlays")
    code = (copy / "turboquant_workspace.py").read_text()
    pairs = (pair for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Dict)
             for pair in zip(node.keys, node.values, strict=True))  # fmt: skip
    (shape,) = (value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "0.20")
    text = f'"0.20": {ast.get_source_segment(code, shape)},'
    assert code.count(text) == 1
    (copy / "turboquant_workspace.py").write_text(code.replace(text, ""))
    return top


@pytest.mark.deep
@pytest.mark.parametrize(
    ("ref", "only"),
    [("main", f"--overlay {OVERLAY}"), ("", f"--vllm {RELEASE}")],  # of the repository, from the real index
    ids=["main", "releases"],
)
def test_a_planted_regression(checkout: Path, vllm: str, maimed: Path, ref: str, only: str) -> None:
    """The step fails and names the cell."""
    row = ref or RELEASE
    healthy = look(checkout, ref, vllm, only=only)

    assert (healthy.code, healthy.told, healthy.outputs["found"]) == (0, 0, "nothing"), healthy.err
    assert healthy.summary == f"## {ref or 'releases'}\n\nNo difference.\n"

    found = look(checkout, ref, vllm, only=only, overlays=maimed)

    assert (found.code, found.told, found.outputs["found"]) == (1, 0, "difference"), found.err
    assert found.err.count("worse: ") == found.err.count(f"worse: {row}: {OVERLAY}: pending -> drifted") == 1
    assert found.outputs["title"] == {"main": "watch: vLLM's main branch", "": "watch: vLLM's releases"}[ref]
    for text in (found.outputs["text"], found.summary):
        assert f"### Worse\n\n- `{row}`, `{OVERLAY}`: pending -> drifted" in text
    assert found.outputs["text"].endswith("(`python -m tests.readme`).")
    assert "https://github.example/vpatch/vpatch/actions/workflows/watch.yml" in found.outputs["text"]
    assert "<html" in (checkout / "matrix.html").read_text()
    (changed,) = json.loads((checkout / "matrix.json").read_text())["changes"]
    assert (changed["vllm"], changed["overlay"], changed["kind"]) == (row, OVERLAY, "worse")


@pytest.mark.parametrize(
    "ref", ["--upload-pack=touch done", *map(deep, ("v0.20.1", '"; touch done; "', "$(touch done)"))]
)
def test_a_ref_by_hand(checkout: Path, vllm: str, ref: str) -> None:
    """A ref chosen by hand opens no issue; a value that is no ref is reported and never executed."""
    found = look(checkout, ref, vllm)

    assert (found.code, found.told, found.outputs["title"]) == (1, 0, "")
    assert "cannot be read" in found.summary
    assert not (checkout / "done").exists()


def test_upstream_text_is_contained_and_cut(checkout: Path) -> None:
    """A line of upstream text cannot end the output, and a text too long for an issue is cut between lines."""
    change = {"vllm": "main", "overlay": "a", "against": None, "before": None, "after": "drifted", "kind": "worse"}
    lines = [change | {"because": f"\nEOF\n{number} found=nothing\n" + "x" * 500} for number in range(200)]
    (checkout / "matrix.json").write_text(json.dumps({"changes": lines}))
    ran = bash(step("watch", "look", "difference")["run"], checkout, **runner(checkout), REF="")
    found = outputs(checkout / "GITHUB_OUTPUT")
    assert ran.returncode == 0, ran.stderr
    assert found.keys() == {"found", "title", "text"}
    assert found["found"] == "difference"
    assert 45_000 < len(found["text"]) < 60_000
    assert "\n- `main`, `a`: drifted: `EOF 5 found=nothing xxx" in found["text"]
    assert "x`\n\nAnd more.\n\n`vpatch matrix` says so" in found["text"]


GH = """
import json, os, subprocess, sys
arguments, home = sys.argv[1:], os.environ["GH_HOME"]
open(home + "/asked", "a").write(json.dumps(arguments) + "\\n")
issues = json.load(open(home + "/issues"))
if arguments[:2] == ["issue", "list"]:
    assert arguments[2:6] == ["--label", "watch", "--state", "open"]
    *_, how, query = arguments
    assert how == "--jq"
    subprocess.run(["jq", "-r", query], input=json.dumps(issues), text=True, check=True)
elif arguments[:2] == ["issue", "view"]:
    (body,) = (one["body"] for one in issues if str(one["number"]) == arguments[2])
    print(body.replace("\\n", "\\r\\n"))
"""
TITLE, TEXT = "watch: vLLM's releases", '### Worse\n\n- `a` `$(touch done)` "x"\n\nend.'


def tell(folder: Path, found: str, issues: list[dict[str, Any]]) -> list[list[str]]:
    """Run the step that writes the issue; return the changes requested of `gh`."""
    (folder / "gh").write_text(f"#!{sys.executable}\n{GH}")
    (folder / "gh").chmod(0o755)
    (folder / "issues").write_text(json.dumps(issues))
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    given = {"FOUND": found, "TITLE": TITLE, "TEXT": TEXT, "RUN": RUN, "PATH": path, "GH_HOME": str(folder)}
    ran = bash(step("watch", "tell", "issue")["run"], folder, **given)
    assert ran.returncode == 0, ran.stderr
    assert not (folder / "done").exists()
    label, listed, *asked = map(json.loads, (folder / "asked").read_text().splitlines())
    assert label[:4] == ["label", "create", "watch", "--force"]
    assert listed[:2] == ["issue", "list"]
    return [one for one in asked if one[:2] != ["issue", "view"]]


OTHERS = [{"number": 4, "title": "watch: vLLM's main branch", "body": "x"}, {"number": 5, "title": "it", "body": ""}]
SAME, OLDER = ({"number": 7, "title": TITLE, "body": body} for body in (TEXT, "another"))
CREATED = ["create", "--title", TITLE, "--label", "watch", "--body", TEXT]
EDITED = [["edit", "7", "--body", TEXT], ["comment", "7", "--body", f"It is another difference now: {RUN}"]]
CLOSED = ["close", "7", "--comment", f"All is as it was recorded: {RUN}"]


@pytest.mark.parametrize(
    ("found", "issues", "asked"),
    [
        ("difference", [], [CREATED]),
        ("difference", OTHERS, [CREATED]),
        ("difference", [*OTHERS, SAME], []),
        ("difference", [*OTHERS, OLDER], EDITED),
        ("nothing", OTHERS, []),
        ("nothing", [*OTHERS, SAME], [CLOSED]),
    ],
)
def test_the_issue(tmp_path: Path, found: str, issues: list[dict[str, Any]], asked: list[list[str]]) -> None:
    need("jq")
    assert tell(tmp_path, found, issues) == [["issue", *one] for one in asked]


def test_permissions_and_schedule() -> None:
    """The releases are checked every day, the main branch every week: the expression compares the schedule's text."""
    found = workflow("watch")
    look, tell = found["jobs"]["look"], found["jobs"]["tell"]
    daily, weekly = (one["cron"] for one in found["on"]["schedule"])

    assert found["permissions"] == {}
    assert (look["permissions"], tell["permissions"]) == ({"contents": "read"}, {"issues": "write"})
    assert [(one.get("id"), "uses" in one) for one in tell["steps"]] == [("issue", False)]
    assert not [one["run"] for job in (look, tell) for one in job["steps"] if "${{" in one.get("run", "")]
    assert "continue-on-error" not in json.dumps(found["jobs"])
    assert (daily[-6:], weekly[-6:]) == (" * * *", " * * 1")
    assert look["env"]["REF"] == f"${{{{ github.event.schedule == '{weekly}' && 'main' || inputs.ref }}}}"
    assert look["outputs"].keys() == {"found", "title", "text"}
    assert step("watch", "look", "matrix")["env"] == {"REPOSITORY": "https://github.com/vllm-project/vllm"}

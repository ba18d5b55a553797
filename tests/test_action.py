"""The GitHub action in `action.yml`: its steps, run on the vLLM of a virtual environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.conftest import Trees, contents_of, environment, unchanged
from tests.hybrid import HYBRID
from tests.paths import ROOT, link
from tests.tiers import deep
from tests.workflows import Acted, act, bash

ACTION = YAML(typ="safe").load(ROOT / "action.yml")
PAGE = (ROOT / "docs/action.md").read_text()
HOSTILE = "$(touch hacked) `touch hacked`; touch hacked; * \"'"
SKIP = "turboquant-skip-list"
TWO = "turboquant-hybrid\n  turboquant-workspace\n"


@pytest.fixture
def venv(tmp_path: Path, slim: Trees) -> Path:
    """A job's virtual environment with a vLLM in it."""
    packages = environment(tmp_path / "job/.venv")
    shutil.copytree(slim("0.20.2"), packages, copy_function=link, dirs_exist_ok=True)
    return tmp_path / "job/.venv"


def acted(venv: Path, **inputs: str) -> Acted:
    """Run the action in the job's folder, with the vpatch of the tests; `python3` is that of the environment."""
    path = f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return act(venv.parent, inputs, {"PATH": path}, installed=Path(sys.prefix))


def acted_whole(venv: Path, version: str = "") -> Acted:
    """Run all steps of the action, the one that installs vpatch, too."""
    path = f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return act(venv.parent, {"vpatch-version": version}, {"PATH": path})


def states(ran: Acted) -> dict[str, str]:
    return {one["id"]: one["state"] for one in json.loads(ran.outputs["overlays"])}


@pytest.mark.parametrize("overlays", [SKIP, deep("")])
def test_it_patches_the_vllm_of_the_jobs_python(venv: Path, overlays: str) -> None:
    with unchanged(venv):
        ahead = acted(venv, overlays=overlays, check="true")
    ran = acted(venv, overlays=overlays)
    with unchanged(venv):
        again = acted(venv, overlays=overlays)

    assert (ahead.code, ahead.outputs["changed"], states(ahead)[SKIP]) == (1, "true", "pending")
    assert (ran.code, ran.err, ran.outputs["changed"], states(ran)[SKIP]) == (0, "", "true", "applied")
    assert "turboquant-tiles" not in states(ran), "it is opt-in"
    assert re.search(rf"^vLLM 0\.20\.2 in {venv}/lib.*\n(  .*\n)*  {overlays or 'ct-fp8-lm-head'}: applied: ", ran.out)
    assert "\n  changed: vllm/engine/arg_utils.py\n" in ran.out
    assert (again.code, again.outputs["changed"], states(again)) == (0, "false", states(ran))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("inputs", "applied"),
    [
        ({"tree": ".venv", "python": "/nothing", "overlays": TWO}, TWO.split()),
        deep({"tree": "{venv}", "python": "/nothing", "overlays": TWO}, TWO.split()),
        deep({"tree": "{venv}/bin/python", "overlays": TWO}, TWO.split()),
        deep({"with": "turboquant-tiles"}, ["turboquant-tiles", HYBRID]),
    ],
)
def test_a_tree_and_overlays_can_be_named(venv: Path, inputs: dict[str, str], applied: list[str]) -> None:
    ran = acted(venv, **{name: value.format(venv=venv) for name, value in inputs.items()})

    assert (ran.code, {states(ran)[name] for name in applied}) == (0, {"applied"}), ran.err


@pytest.mark.deep
@pytest.mark.parametrize("folder", ["patches", deep("my patches"), deep("vpatch.toml")])
def test_patches_of_the_repository(venv: Path, folder: str) -> None:
    """From the input, with a name of two words, or from the project's file, beside which the step runs."""
    name, inputs = "i586-machines", {"patches": f"{folder}\n"}
    if folder == "vpatch.toml":
        (venv.parent / folder).write_text(f'patches = ["own"]\noverlays = ["{name}"]\n')
        folder, inputs = "own", {}
    (venv.parent / folder).mkdir()
    shutil.copy(ROOT / f"tests/third_party/vpatch_machine_names/{name}.vpatch", venv.parent / folder)
    ran = acted(venv, overlays=name if inputs else "", **inputs)

    assert (ran.code, ran.err, states(ran)) == (0, "", {name: "applied"})


def commands(text: str) -> list[str]:
    """Return the lines that the runner would obey: its `ActionCommand` trims them first."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line.startswith("::") or re.search(r"##\[[\w-]+.*\]", line)]


OBEYED = ("::set-output name=changed::x", "::stop-commands::x")
HIDDEN = [f"{end}{one}{end}" for end in "\n\r\x85\u2028" for one in OBEYED]


@pytest.mark.parametrize("hidden", [HIDDEN[0], *map(deep, ("##[add-mask]a", *HIDDEN[1:]))])
def test_nothing_of_the_tree_is_a_command(venv: Path, hidden: str) -> None:
    """Its version, its folder and a name that was asked for: in the output, and in what fails."""
    (packages,) = venv.glob("lib/python3*/site-packages")
    (packages / "vllm-0.20.2.dist-info").rename(packages / f"vllm-0.20.2{hidden}.dist-info")
    named = venv.with_name(f"a{hidden}")
    venv.rename(named)
    good = acted(named, tree=str(named), overlays=SKIP)
    none = acted(named, tree=f"{named}/{hidden}")

    assert (good.code, none.code) == (0, 2), [good.err, none.err]
    assert [commands(text) for ran in (good, none) for text in (ran.out, ran.err)] == [[]] * 4
    assert good.outputs.keys() == {"changed", "overlays"}
    assert good.outputs["changed"] == "true"
    assert all(line.isprintable() for ran in (good, none) for line in f"{ran.out}{ran.err}".split("\n"))


@pytest.mark.deep
def test_a_drifted_tree_fails_and_says_why(venv: Path) -> None:
    (file,) = venv.glob("lib/python3*/site-packages/vllm/engine/arg_utils.py")
    text = file.read_text().replace("def create_engine_config(", "def create_config(")
    file.unlink()
    file.write_text(text)
    with unchanged(venv):
        ran = acted(venv, overlays="turboquant-hybrid")

    assert (ran.code, ran.outputs["changed"], states(ran)) == (1, "false", {"turboquant-hybrid": "drifted"})
    assert "EngineArgs.create_engine_config" in ran.err


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("check", "yes", "check: 'yes' is neither true nor false\n"),
        ("overlays", "no-such", "no-such"),
        ("tree", "--help", "--help: no such folder\n"),
        ("patches", "nowhere", "nowhere"),
        deep("python", "/nothing", "/nothing"),
        *((name, HOSTILE, "$(touch") for name in ("check", "tree")),
        *(deep(name, HOSTILE, "$(touch") for name in ("overlays", "with", "patches", "python")),
    ],
)
def test_bad_inputs(venv: Path, name: str, value: str, says: str) -> None:
    """They are never code for the shell, nor patterns of files."""
    with unchanged(venv):
        ran = acted(venv, **{name: value})

    assert ran.code in (1, 2)
    assert says in ran.err
    assert ran.outputs["changed"] in ("", "false")
    assert not (venv.parent / "hacked").exists()


@pytest.mark.deep
def test_variables_of_the_job_do_not_change_vpatch(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the job does not replace one of vpatch's."""
    (venv.parent / "click.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.setenv("PYTHONPATH", str(venv.parent))

    assert acted(venv, overlays=SKIP).code == 0


@pytest.mark.deep
def test_it_installs_itself_beside_the_job(venv: Path) -> None:
    """vpatch comes from the action's own checkout, and the job's environment gets nothing but the changes."""
    before = set(contents_of(venv))
    ran = acted_whole(venv)

    assert (ran.code, ran.outputs["changed"]) == (0, "true"), ran.err
    added = {name for name, data in contents_of(venv).items() if name not in before and data is not None}
    assert added
    assert all(re.search(r"/vllm/_vpatch/|/vllm-0\.20\.2\.dist-info/vpatch/", name) for name in added)


@pytest.mark.deep
@pytest.mark.parametrize("version", ["0.0.0.dev999", "0.1.0 --index-url=file:///nothing", HOSTILE])
def test_a_version_that_does_not_exist(venv: Path, version: str) -> None:
    with unchanged(venv):
        ran = acted_whole(venv, version)

    assert ran.code
    assert version.split(maxsplit=1)[0] in ran.err or "Invalid" in ran.err
    assert not (venv.parent / "hacked").exists()


def test_without_a_new_enough_python(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        (old / name).write_text("#!/bin/sh\nexit 1\n")
        (old / name).chmod(0o755)
    script = ACTION["runs"]["steps"][0]["run"].replace("/usr/bin/python3", "python3")
    ran = bash(script, tmp_path, PATH=f"{old}:/usr/bin:/bin", RUNNER_TEMP=str(tmp_path), ACTION="", VERSION="")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "vpatch needs Python 3.11 or newer: add actions/setup-python\n"


def test_the_page_lists_inputs_and_outputs() -> None:
    for name in ("inputs", "outputs"):
        (table,) = re.findall(rf"<!-- {name} -->\n((?:\|.*\n)+)", PAGE)
        assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == list(ACTION[name])
    examples = [YAML(typ="safe").load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    ours = [step for steps in examples for step in steps if step.get("uses", "").startswith("vpatch/vpatch@")]
    assert ours
    assert all(step.get("with", {}).keys() <= ACTION["inputs"].keys() for step in ours)

"""The patch files of a project and of `--patches`: found, selected, pinned, applied, and kept beside the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from vpatch.core import sources
from vpatch.core.catalogue import discover
from vpatch.core.verdict import UNRECORDED
from vpatch.manifest import sha256
from vpatch.project import SHARED, merged, opened

from tests.conftest import Process, Program, Trees, untouched
from tests.hybrid import HYBRID, INTERFACE
from tests.paths import ROOT
from tests.processes import UNWATCHED
from tests.run.conftest import install

ID = "i586-machines"
PATCH = (ROOT / f"tests/third_party/vpatch_machine_names/{ID}.vpatch").read_text()
OTHER = f"""Format: 1
Subject: Strip the name of a machine
Base: 0.20.2

--- {INTERFACE}
@@ Platform.get_cpu_architecture
-machine = platform.machine().lower()
+machine = platform.machine().lower().strip()
"""
LACKS = '{"format": 1, "releases": ["0.19.0"], "through": {}, "known": {}, "code": {}}'
PIN = f"sha256:{sha256(PATCH.encode())}"
TOML = 'patches = ["patches"]\n'
MARKED = f'"i586", "i686"):  # vpatch: {ID}\n'
COPY = f"vllm-0.20.2.dist-info/vpatch/patches/{ID}.vpatch"


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a patch file and no project's file; the current folder."""
    top = tmp_path / "repo"
    (top / "patches").mkdir(parents=True)
    (top / ".git").mkdir()
    (top / f"patches/{ID}.vpatch").write_text(PATCH)
    monkeypatch.chdir(top)
    return top


def put(top: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)


def origins(vpatch: Program, *words: str) -> dict[str, str]:
    return {one["id"]: one["origin"] for one in vpatch("list", "--json", *words).json["overlays"]}


WAYS = {
    "vpatch.toml": ({"vpatch.toml": TOML}, [], ""),
    "pyproject.toml": ({SHARED: f"[tool.vpatch]\n{TOML}"}, [], ""),
    "inline": ({SHARED: 'tool = { vpatch = { patches = ["patches"] } }\n'}, [], ""),
    "a file": ({"vpatch.toml": f'patches = ["patches/{ID}.vpatch"]\n'}, [], ""),
    "twice": ({"vpatch.toml": TOML}, ["--patches", f"../repo/patches/{ID}.vpatch"], "patches"),
    "--patches": ({}, ["--patches", "patches"], ""),
    "--patches FILE": ({}, ["--patches", f"patches/{ID}.vpatch"], ""),
    "environment": ({}, [], "patches"),
    "several": ({"more/stripped.vpatch": OTHER}, [], f"more{os.pathsep}patches"),
    "option before environment": ({}, ["--patches", "patches"], "missing"),
    "without the project": ({"vpatch.toml": "wrong = 1"}, ["--no-project", "--patches", "patches"], ""),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_name_patches(vpatch: Program, repo: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    files, words, variable = WAYS[way]
    put(repo, files)
    if variable:
        monkeypatch.setenv("VPATCH_PATCHES", variable)

    found = origins(vpatch, *words)

    assert found[ID] == f"patches/{ID}.vpatch"
    assert found.get("stripped") == ("more/stripped.vpatch" if way == "several" else None)
    assert HYBRID in found, "those of packages, too"


@pytest.mark.parametrize(
    ("files", "below", "file"),
    [
        ({"vpatch.toml": TOML}, "src/deep", "{}/vpatch.toml"),
        ({"vpatch.toml": TOML, f"src/{SHARED}": "[tool.other]\nabout = 'vpatch'"}, "src", "{}/vpatch.toml"),
        ({"vpatch.toml": TOML, f"src/{SHARED}": "no = TOML ="}, "src", "{}/vpatch.toml"),
        ({"vpatch.toml": TOML, f"src/{SHARED}": '[tool.vpatch]\nwith = ["receipt"]'}, "src", SHARED),
        ({"vpatch.toml": TOML, "src/.git": "gitdir: elsewhere"}, "src", ""),
        ({"../vpatch.toml": TOML}, ".", ""),
        ({SHARED: "[project]\nname = 'vpatch-server'\n[tool.ruff]\n"}, ".", ""),
    ],
)
def test_the_nearest_file_counts(
    repo: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str], below: str, file: str
) -> None:
    """A file of other tools is passed over; a repository ends the search."""
    put(repo, files)
    (repo / below).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(repo / below)

    found = opened([])

    assert found.file == file.format(repo)
    named = [] if not file or file == SHARED else [f"{repo}/patches/{ID}.vpatch"]
    assert [one.path for one in found.sources.patches] == named, "relative to the file"


def test_a_folder_that_was_removed(repo: Path) -> None:
    put(repo, {"gone/vpatch.toml": TOML})
    os.chdir(repo / "gone")
    shutil.rmtree(repo / "gone")

    assert opened([]).file == ""


DEFAULT = {ID, HYBRID, "turboquant-skip-list"}
SELECTIONS = [
    ("", [], [], DEFAULT),
    ('with = ["receipt"]', [], [], DEFAULT | {"receipt"}),
    (f'without = ["{ID}"]', [], [], DEFAULT - {ID}),
    (f'overlays = ["{ID}", "receipt"]', [], [], {ID, "receipt"}),
    ("overlays = []", [], [], set()),
    ('with = ["receipt"]', ["turboquant-tiles"], [HYBRID], DEFAULT - {HYBRID} | {"receipt", "turboquant-tiles"}),
    # The command line wins.
    ('with = ["receipt"]', [], ["receipt"], DEFAULT),
    (f'without = ["{ID}"]', [ID], [], DEFAULT),
    (f'overlays = ["{ID}"]', [HYBRID], [], {ID, HYBRID}),
    (f'overlays = ["{ID}", "{HYBRID}"]', [], [HYBRID], {ID}),
]


@pytest.mark.parametrize(("table", "more", "fewer", "wanted"), SELECTIONS)
def test_what_a_project_selects(repo: Path, table: str, more: list[str], fewer: list[str], wanted: set[str]) -> None:
    put(repo, {"vpatch.toml": f"{TOML}{table}\n"})
    project = opened([])

    with sources.using(project.sources):
        chosen = {item.id for item in merged(project.selection, more, fewer).among(discover())}

    watched = DEFAULT | {"receipt", "turboquant-tiles"}
    assert chosen & watched == wanted
    assert not table.startswith("overlays") or chosen == wanted


BAD = {
    "unknown key": ({"vpatch.toml": "patch = []"}, [], 1, "vpatch.toml: patch: no such key; did you mean patches?"),
    "nested": ({"vpatch.toml": f"[tool.vpatch]\n{TOML}"}, [], 1, "tool: the keys of vpatch.toml stand at its top"),
    "a text": ({"vpatch.toml": 'patches = "p"'}, [], 1, "vpatch.toml: patches: not a list of texts"),
    "an empty text": ({"vpatch.toml": 'patches = [""]'}, [], 1, "vpatch.toml: patches: not a list of texts"),
    "a number": ({SHARED: "[tool.vpatch]\nwith = [1]"}, [], 1, f"{SHARED}: with: not a list of texts"),
    "no table": ({SHARED: "[tool]\nvpatch = 1"}, [], 1, f"bad project file: {SHARED}: tool.vpatch: not a table"),
    "no TOML": ({"vpatch.toml": "a = ="}, [], 1, "bad project file: vpatch.toml: not TOML: "),
    "no UTF-8": ({"vpatch.toml": "a = '\udcff'"}, [], 1, "bad project file: vpatch.toml: not TOML: "),
    "deep": ({"vpatch.toml": f"with = {'[' * 90}{']' * 90}"}, [], 1, "it nests more than 64 deep"),
    "two files": ({"vpatch.toml": "", SHARED: "[tool.vpatch]"}, [], 1, "two project files: "),
    "exact and more": ({"vpatch.toml": 'overlays = []\nwith = ["receipt"]'}, [], 1, "overlays: it selects exactly"),
    "both": ({"vpatch.toml": 'with = ["a"]\nwithout = ["a"]'}, [], 1, "without: a is in `with`, too"),
    "no folder": ({"vpatch.toml": 'patches = ["fixes"]'}, [], 1, "vpatch.toml: patches: fixes: no such file or"),
    "no patch": ({"vpatch.toml": 'patches = ["src"]', "src/a.py": ""}, [], 1, "patches: src: no *.vpatch is in it"),
    "other file": ({"vpatch.toml": 'patches = ["a.py"]', "a.py": ""}, [], 1, "a.py: its name does not end with"),
    "a module": ({"my_fix.py": ""}, ["--patches", "my_fix.py"], 1, "a package, which `vpatch new my-fix` begins; in"),
    "a folder of modules": ({"src/2_fix.py": ""}, ["--patches", "src"], 1, "which `vpatch new my-fix` begins; in one"),
    "a diff": ({"a.patch": ""}, ["--patches", "a.patch"], 1, "; `vpatch import a.patch` makes a patch file of a diff"),
    "a folder of diffs": ({"src/a.diff": ""}, ["--patches", "src"], 1, "in it; `vpatch import src/a.diff` makes a"),
    "unknown with": ({"vpatch.toml": f'{TOML}with = ["i58-machine"]'}, [], 1, f"with: i58-machine; did you mean {ID}?"),
    "unknown without": ({"vpatch.toml": 'without = ["recept"]'}, [], 1, "vpatch.toml: without: recept; did you mean"),
    "unknown overlay": ({"vpatch.toml": 'overlays = ["recept"]'}, [], 1, "no such overlay: vpatch.toml: overlays: "),
    "no pin": (
        {"vpatch.toml": f'{TOML}require.{ID} = "sha1:00"'},
        [],
        1,
        f"require.{ID}: 'sha1:00' is not sha256: and",
    ),
    "no pins": ({"vpatch.toml": "require = 1"}, [], 1, "vpatch.toml: require: not a table of hashes"),
    "another pin": (
        {"vpatch.toml": f'{TOML}require.{ID} = "sha256:{"0" * 64}"'},
        [],
        1,
        f"not the required patch: vpatch.toml: require.{ID}: patches/{ID}.vpatch has {PIN}, not sha256:0000",
    ),
    "pin of nothing": ({"vpatch.toml": f'require.none = "{PIN}"'}, [], 1, "require.none: no patch file has this id"),
    "pin of a module": ({"vpatch.toml": f'require.receipt = "{PIN}"'}, [], 1, "require.receipt: no patch file has"),
    "no folder there": ({}, ["--patches", "fixes"], 2, "no patch files: fixes: no such file or folder"),
    "no patch there": ({"src/a.py": ""}, ["--patches", "src"], 1, "no patch files: src: no *.vpatch is in it"),
    "empty": ({}, ["--patches", ""], 2, "--patches is empty"),
    "taken": ({"p/receipt.vpatch": PATCH}, ["--patches", "p"], 1, "overlay id taken: receipt: vpatch "),
    "two of them": (
        {f"p/{ID}.vpatch": PATCH},
        ["--patches", "p", "--patches", "patches"],
        1,
        f"overlay id taken: {ID}: p/{ID}.vpatch and patches/{ID}.vpatch both ship it",
    ),
    "no id": ({"p/Big.vpatch": PATCH}, ["--patches", "p"], 1, "cannot load overlay: p/Big.vpatch: its id would be"),
    "no patch file": ({"p/a.vpatch": "x\n"}, ["--patches", "p"], 1, "cannot load overlay: p/a.vpatch: line 1: "),
    "out of vllm": (
        {"p/a.vpatch": PATCH.replace("vllm/platforms", "vllm/../../etc")},
        ["--patches", "p"],
        1,
        "'vllm/../../etc/interface.py' is no Python module or data file below vllm/",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_mistake_is_one_line(vpatch: Program, repo: Path, linked: Trees, bad: str) -> None:
    """It stops every command, and nothing is written."""
    files, words, code, message = BAD[bad]
    for name, text in files.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    tree = linked("0.20.2", "repo/site")
    commands = (("list",), ("apply", tree), ("matrix", "--tree", tree, "--no-cache"))
    build = [("build", "x.toml")] if bad == "no folder there" else []  # it reads its own file before patch files
    for command, *rest in (*commands, *build, ("run", "--cache", repo / "cache", "--", sys.executable)):
        with untouched(repo):
            ran = vpatch(command, *words, *rest)
        assert (ran.code, ran.out) == (code, "")
        shown = [line for line in ran.err.splitlines() if message in line]
        assert len(shown) == 1 or command == "run", ran.err
    assert "started" in ran.err or code == 2


def test_with_and_without_the_same(vpatch: Program, repo: Path) -> None:
    words = ("--with", "receipt", "--without", "receipt")
    ran = vpatch("apply", repo, *words)
    assert (ran.code, "receipt is wanted and left out" in ran.err) == (2, True)
    ran = vpatch("apply", repo, "--overlay", ID, "--without", HYBRID)
    assert (ran.code, "leave out --without" in ran.err) == (2, True)


@pytest.mark.deep
def test_what_is_not_recorded_is_one_note(vpatch: Program, repo: Path, linked: Trees, tmp_path: Path) -> None:
    """It names the patch files, and the command that records it; of a list that lacks a shape, too."""
    tree = linked("0.20.2")
    other = tmp_path / "others/also-mine.vpatch"
    put(tmp_path, {"others/also-mine.vpatch": OTHER, "others/_calls/also-mine.json": LACKS})
    put(repo, {"vpatch.toml": TOML})
    words = ("--patches", other.parent, tree, "--overlay", ID, "--overlay", "also-mine")
    said = f"nothing is recorded of what also-mine and {ID} take from vLLM, so that was not checked; to record it: "
    do = f"`{sys.executable} -m vpatch.calls --patches {other.parent} also-mine {ID}`"

    for command in ("status", "diff"):
        notes = [line for line in vpatch(command, *words).err.splitlines() if line.startswith("note: ")]
        assert notes == [f"note: {said}{do}"]
        assert "recorded" not in vpatch(command, *words, "-q").err
        assert vpatch(command, *words, "--json").json["notes"] == [f"{said}{do}"]
    # A copy has no list, whether there is one or not.
    assert said in vpatch("apply", *words).err
    assert f"{UNRECORDED} {ID} takes" in vpatch("verify", tree).err
    checked = vpatch("verify", "--no-project", tree)
    assert (checked.code, UNRECORDED in checked.err) == (0, False)


@pytest.mark.deep
def test_a_project_is_applied_and_reverted(vpatch: Program, repo: Path, linked: Trees, slim: Trees) -> None:
    """By all verbs; a second run writes nothing."""
    tree = linked("0.20.2")
    put(repo, {"vpatch.toml": f'{TOML}overlays = ["{ID}"]\n[require]\n{ID} = "{PIN}"\n'})

    first = vpatch("status", tree)
    assert first.err.startswith(f"vLLM 0.20.2 in {tree} (project: vpatch.toml)\n")
    assert vpatch("status", tree, "-q").err == ""
    assert vpatch("apply", tree, "--check").code == 1
    assert MARKED in vpatch("diff", tree).out
    ran = vpatch("apply", tree, "--json")
    assert (ran.code, ran.json["changed"], ran.err) == (0, ["vllm-0.20.2.dist-info/RECORD", INTERFACE], "")
    assert MARKED in (tree / INTERFACE).read_text()
    with untouched(tree):
        assert vpatch("apply", tree).err.splitlines()[-1] == "Nothing to do: 1 overlay is applied."
        assert vpatch("verify", tree).code == 0
        assert vpatch("apply", tree, "--check").code == 0
    row = vpatch("matrix", "--tree", slim("0.20.2"), "--no-cache", "--json").json["rows"][0]
    assert {one["id"]: one["state"] for one in row["overlays"]}[ID] == "pending"
    assert f"From patches/{ID}.vpatch ({PIN}).\n" in vpatch("show", ID, tree).out
    assert vpatch("revert", tree).code == 0
    subprocess.run(["diff", "-r", tree, slim("0.20.2")], check=True)


@pytest.mark.deep
def test_suggested_commands_find_the_same_patches(vpatch: Program, repo: Path, linked: Trees) -> None:
    tree = linked("0.20.2")
    words = ("--patches", "patches", "--no-project", "--without", HYBRID)
    assert (
        vpatch("status", tree, *words)
        .err.splitlines()[-1]
        .endswith(f"`vpatch apply --patches patches --no-project --without {HYBRID} {tree}`.")
    )
    said = vpatch("apply", tree, "--overlay", ID, "--patches", "patches").err
    assert said.endswith(f"Undo with `vpatch revert {tree}`.\n")


@pytest.mark.deep
def test_a_run_sees_the_bytes(process: Process, repo: Path, slim: Trees, tmp_path: Path) -> None:
    """A plan is remembered by them; the manifest has the hash; nothing is read of the folder later."""
    put(repo, {"vpatch.toml": f'{TOML}overlays = ["{ID}"]\n'})
    installed = install(tmp_path, slim("0.20.2"))
    shows = f"""import json, shutil, sys
(top,) = (top for top in sys.path if "/cache/" in top)
shutil.rmtree("patches", ignore_errors=len(sys.argv) > 1)
print(open(f"{{top}}/{INTERFACE}").read(), json.load(open(f"{{top}}/vpatch.json"))["patches"])"""
    words = ("run", "--cache", installed.cache, "--", installed.python, "-c", shows)
    for number, name in enumerate(("i586", "i586", "geode"), 1):
        text = PATCH.replace('i586",', f'{name}",')
        put(repo, {f"patches/{ID}.vpatch": text})
        ran = process(*words, env=UNWATCHED)
        assert f'"i386", "{name}", "i686"):  # vpatch: {ID}\n' in ran.out, ran.err
        assert f"{{'{ID}': '{sha256(text.encode())}'}}" in ran.out
        assert "(project: vpatch.toml)\n" in ran.err
        assert len(list(installed.cache.glob("memos/*.json"))) == (1 if number < 3 else 2)
    ran = process(*words, env=UNWATCHED)
    assert (ran.code, ran.err.splitlines()[-1]) == (1, "Nothing was started.")


@pytest.mark.deep
def test_a_matrix_sees_the_bytes(process: Process, repo: Path, slim: Trees, tmp_path: Path) -> None:
    """Its workers have the patches, and its verdicts are remembered by their bytes."""
    words = ("matrix", "--tree", slim("0.20.2"), "--overlay", ID, "--patches", "patches", "--json")
    states = []
    for old in ("i386", "i386", "i387"):
        put(repo, {f"patches/{ID}.vpatch": PATCH.replace("i386", old)})
        ran = process(*words, env={**UNWATCHED, "XDG_CACHE_HOME": str(tmp_path / "cache")})
        states += [one["state"] for one in ran.json["rows"][0]["overlays"]]
    assert states == ["pending", "pending", "drifted"]


def test_completion_knows_the_project(process: Process, repo: Path) -> None:
    put(repo, {"vpatch.toml": TOML})
    env = {"_VPATCH_COMPLETE": "bash_complete", "COMP_WORDS": "vpatch apply --overlay i58", "COMP_CWORD": "3"}
    assert process(env=env).out == f"plain,{ID}\n"
    env |= {"COMP_WORDS": "vpatch apply --no-project --overlay i58", "COMP_CWORD": "4"}
    assert process(env=env).out.strip() == ""

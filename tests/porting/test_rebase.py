"""`vpatch rebase`: a draft is shown, and written only if it is accepted; from then on both files are one overlay."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

import pytest

from tests.conftest import Program
from tests.loopback import IndexServer
from tests.porting.installed import copied, edit
from tests.porting.making import diff
from tests.releases import tree_of
from tests.wheels import packed

FILE, PLACE = "vllm/entrypoints/ssl.py", "vllm/entrypoints/serve/utils/ssl.py"
"""A module of 0.20.2, and where 0.24.0 has it."""
OTHER = "vllm/utils/import_utils.py"
INFO = "vllm-0.20.2.dist-info"


@pytest.fixture(scope="module", autouse=True)
def fetched() -> None:
    """The releases that the tests read, before another package index takes the place of the user's."""
    for release in ("0.20.2", "0.24.0", "0.26.0"):
        tree_of(release)


@pytest.fixture
def patches(here: Path, index: IndexServer, vpatch: Program) -> Path:
    """Two patch files for 0.20.2, which is on the index: the module of one moves, and upstream changes the other's."""
    root = tree_of("0.20.2")
    files = {path: (root / path).read_bytes() for path in (FILE, OTHER, f"{INFO}/METADATA")}
    index.publish("vllm-0.20.2-cp38-abi3-manylinux_2_35_x86_64.whl", packed(files, INFO))
    said, checked = files[FILE].decode(), files[OTHER].decode()
    say = said.replace("Reloading SSL certificate chain", "Reloading the SSL certificate chain")
    line = "    return importlib.util.find_spec(module_name) is not None\n"
    hide = checked.replace(line, line.replace("return", "return module_name not in HIDDEN and")).replace(
        "@cache\ndef _has_module", "HIDDEN = ()\n\n\n@cache\ndef _has_module"
    )
    (here / "say.diff").write_text(diff(said, say, FILE))
    (here / "hide.diff").write_text(diff(checked, hide, OTHER))
    ran = vpatch("import", "say.diff", "hide.diff", "--base", root)
    assert ran.code == 0, ran.err
    return here / "patches"


def test_a_draft_is_accepted(patches: Path, tmp_path: Path, vpatch: Program) -> None:
    target = copied("0.24.0", tmp_path / "target")
    before = (target / PLACE).read_bytes()
    named = ("rebase", "patches/say.vpatch", "--onto", target)

    shown = vpatch(*named)

    assert shown.code == 0, shown.err
    assert "A draft: the hunks in the definitions' new place." in shown.out
    assert f"`vpatch rebase patches/say.vpatch --onto {target} --accept`" in shown.err
    assert f"\n---- {FILE}\n+--- {PLACE}\n" in shown.out
    assert not (patches / "say@0.24.0.vpatch").exists()

    written = vpatch(*named, "--accept")

    next_ = f"`vpatch apply --patches patches {target}`, `vpatch matrix --patches patches`"
    assert (written.code, written.err) == (0, f"Wrote patches/say@0.24.0.vpatch. Next: {next_}.\n")
    head = (patches / "say@0.24.0.vpatch").read_text().partition("\n\n")[0].splitlines()
    assert [line.partition(":")[0] for line in head] == ["Format", "Subject", "Base", "Last-Update", "Accepted-By"]
    again = vpatch(*named, "--accept")
    assert again.code == 1
    assert "exists already: patches/say@0.24.0.vpatch" in again.err

    options = ("--patches", "patches", "--overlay", "say")
    for tree in (target, tree_of("0.20.2")):
        assert "say  pending" in vpatch("status", *options, tree).out
    assert "no draft is needed" in vpatch(*named).err
    assert vpatch("apply", *options, target).code == 0
    assert "Nothing to do" in vpatch("apply", *options, target).err
    assert "say  applied" in vpatch("status", "--overlay", "say", "--no-project", target).out  # by the copy in the tree
    both = (patches / "say.vpatch").read_bytes() + (patches / "say@0.24.0.vpatch").read_bytes()
    pin = f"sha256:{hashlib.sha256(both).hexdigest()}"
    (tmp_path / "vpatch.toml").write_text(f'patches = ["patches"]\noverlays = ["say"]\n[require]\nsay = "{pin}"\n')
    assert vpatch("verify", target).code == 0
    (patches / "say@0.24.0.vpatch").unlink()
    assert "not the required patch" in vpatch("verify", target).err
    assert vpatch("revert", "--no-project", target).code == 0
    assert (target / PLACE).read_bytes() == before


def test_an_import_is_judged_with_its_further_shapes(patches: Path, vpatch: Program) -> None:
    site = copied("0.24.0", patches.parent / ".venv/lib/python3.11/site-packages")
    (patches.parent / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    assert vpatch("rebase", "patches/say.vpatch", "--onto", site, "--accept").code == 0
    command = ("import", "say.diff", "--base", tree_of("0.20.2"), "--force", "--json")

    made = vpatch(*command)

    assert made.code == 0, made.out
    assert [one["state"] for one in made.json["patches"][0]["states"]] == ["pending", "pending"]

    (shape := patches / "say@0.24.0.vpatch").write_text(shape.read_text().replace("Base: 0.24.0", "Base: 0.24.1"))
    broken = vpatch(*command).json
    assert broken["problems"][0]["cause"] == "say@0.24.0.vpatch: its head has no `Base: 0.24.0`, as its name says"
    assert broken["changed"] == ["patches/say.vpatch"]


def test_what_both_sides_changed_is_shown(patches: Path, vpatch: Program) -> None:
    ran = vpatch("rebase", "hide", "--patches", "patches", "--onto", tree_of("0.26.0"), "--accept")

    assert ran.code == 1
    assert f"{OTHER}: the vLLM of the patch, and vLLM 0.26.0\n" in ran.out
    assert "      return importlib.util.find_spec(module_name) is not None" in ran.out
    assert "|         if importlib.util.find_spec(module_name) is None:\n" in ran.out
    assert "no draft: hide: a three-way merge of the lines: vllm/utils/import_utils.py: both sides changed" in ran.err
    by_hand = f"`vpatch rebase patches/hide.vpatch --onto {tree_of('0.26.0')} --by-hand hide-0.26.0`"
    assert ran.err.endswith(f"Nothing was written. To make the change by hand: {by_hand}.\n")
    assert sorted(path.name for path in patches.iterdir()) == ["hide.vpatch", "say.vpatch"]


@pytest.mark.deep
def test_by_hand(patches: Path, vpatch: Program) -> None:
    """The same command writes the modules, asks for the change, and shows the draft."""
    say, hide = ((patches / f"{name}.vpatch").read_text() for name in ("say", "hide"))
    (patches / "both.vpatch").write_text(say + hide.partition("\n\n")[2])
    command = ("rebase", "patches/both.vpatch", "--onto", tree_of("0.26.0"))
    again = shlex.join(map(str, ("vpatch", *command, "--by-hand", "both-0.26.0")))

    stopped = vpatch(*command)

    assert stopped.code == 1
    assert f"  {FILE}     drafted   moved to {PLACE}\n" in stopped.out
    assert f"  {OTHER}  no draft\n" in stopped.out
    assert f"by hand: `{again}`.\n" in stopped.err

    (folder := patches.parent / "both-0.26.0").mkdir()
    begun = vpatch(*shlex.split(again)[1:], "--accept")

    assert begun.code == 0, begun.err
    assert begun.err.endswith(f"Wrote 2 modules to both-0.26.0. Change {OTHER} there, and then: `{again}`.\n")
    assert "Reloading the SSL" in (folder / PLACE).read_text()
    unchanged = vpatch(*shlex.split(again)[1:])
    assert unchanged.code == 1
    assert f"{OTHER} is as vLLM 0.26.0 has it: change it, or remove it" in unchanged.err
    (folder / PLACE).rename(away := folder / "away")
    nothing = vpatch(*shlex.split(again)[1:])
    assert "no module there differs from vLLM 0.26.0: change one, or, if that vLLM has nothing left" in nothing.err
    assert "leave the patch out by `--without both`" in nothing.err
    away.rename(folder / PLACE)

    edit(
        folder,
        OTHER,
        lambda text: text.replace(
            "    try:\n        if importlib",
            "    if module_name == 'x':\n        return False\n    try:\n        if importlib",
            1,
        ),
    )
    shown = vpatch(*shlex.split(again)[1:])

    assert shown.code == 0, shown.err
    assert f"To write patches/both@0.26.0.vpatch: `{again} --accept`." in shown.err
    assert vpatch(*shlex.split(again)[1:], "--accept").code == 0
    for tree in (tree_of("0.20.2"), tree_of("0.26.0")):
        assert "both  pending" in vpatch("status", "--patches", "patches", "--overlay", "both", tree).out


def test_for_scripts(patches: Path, vpatch: Program) -> None:
    found = vpatch("rebase", "patches/say.vpatch", "--onto", tree_of("0.24.0"), "--json").json

    assert (found["command"], found["vllm"], found["patch"]) == ("rebase", "0.24.0", "patches/say.vpatch")
    assert found["overlays"][0]["state"] == "drifted"
    assert found["draft"]["how"] == "the hunks in the definitions' new place"
    assert f"--- {PLACE}\n" in found["draft"]["text"]
    assert found["changed"] == []
    assert sorted(path.name for path in patches.iterdir()) == ["hide.vpatch", "say.vpatch"]


@pytest.mark.usefixtures("patches")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("other", "--patches", "patches", "--onto", "0.24.0"), "no patch file: other: no patch file of the project"),
        (("other", "--onto", "0.24.0"), "name a file, or a folder of them by --patches"),
        (("patches/other.vpatch", "--onto", "0.24.0"), "no patch files: patches/other.vpatch: no such file or folder"),
        (("patches/say.vpatch",), "Missing option '--onto'"),
        (("patches/say.vpatch", "--onto", "0.24.0", "--by-hand", "say.diff"), "'say.diff' is a file"),
    ],
)
def test_usage(vpatch: Program, arguments: tuple[str, ...], says: str) -> None:
    ran = vpatch("rebase", *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


# The patch file, copied to another name; a part of its text, and by what that is replaced; what is said.
UNREAD = {
    "a further shape": ("say@0.24.0", "Base: 0.20.2", "Base: 0.24.0", "it is a shape of say.vpatch, which has to lie"),
    "a name that is no id": ("Say", "", "", "its id would be 'Say'"),
    "no field": ("odd", "Subject:", "Object:", "line 2: no field is called Object"),
}


@pytest.mark.parametrize("case", UNREAD)
def test_a_patch_file_that_is_none(case: str, patches: Path, vpatch: Program) -> None:
    name, old, new, says = UNREAD[case]
    (patches / f"{name}.vpatch").write_text((patches / "say.vpatch").read_text().replace(old, new))

    ran = vpatch("rebase", f"patches/{name}.vpatch", "--onto", tree_of("0.24.0"))

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"cannot load overlay: patches/{name}.vpatch: {says}")


def test_which_patch_file_is_meant(patches: Path, vpatch: Program) -> None:
    (twin := patches.parent / "more" / "say.vpatch").parent.mkdir()
    twin.write_bytes((patches / "say.vpatch").read_bytes())

    folder = vpatch("rebase", "patches/", "--onto", tree_of("0.24.0"))
    both = vpatch("rebase", "say", "--patches", "patches", "--patches", "more", "--onto", tree_of("0.24.0"))

    assert (folder.code, folder.out) == (both.code, both.out) == (1, "")
    assert "no patch file: patches: a folder; name one of its files" in folder.err
    assert "overlay id taken: say: patches/say.vpatch and more/say.vpatch both ship it; name one of them" in both.err


def test_another_vllm_of_the_same_version(patches: Path, tmp_path: Path, vpatch: Program) -> None:
    """Two shapes for one version would make the patch file unreadable."""
    target = copied("0.20.2", tmp_path / "target")
    edit(target, OTHER, lambda text: text.replace("find_spec(module_name) is not None", "find_spec(module_name)"))

    ran = vpatch("rebase", "patches/hide.vpatch", "--onto", target, "--accept")

    assert ran.code == 1
    assert "no draft: hide: hide.vpatch has a shape for 0.20.2" in ran.err
    assert sorted(path.name for path in patches.iterdir()) == ["hide.vpatch", "say.vpatch"]


def test_a_base_with_a_local_version(patches: Path, vpatch: Program) -> None:
    """It is the release: the index has no wheel of another build."""
    file = patches / "say.vpatch"
    file.write_text(file.read_text().replace("Base: 0.20.2", "Base: 0.20.2+cu129"))
    file.with_name("hide.vpatch").unlink()

    found = vpatch("rebase", file, "--onto", tree_of("0.24.0"), "--json").json

    assert found["draft"]["how"] == "the hunks in the definitions' new place"
    assert found["notes"] == ["vLLM 0.20.2 was read in place of 0.20.2+cu129"]


def test_a_source_checkout(patches: Path, tmp_path: Path, vpatch: Program) -> None:
    for name in ("__init__.py", "config/__init__.py"):
        (path := tmp_path / "vllm" / name).parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    ran = vpatch("rebase", patches / "say.vpatch", "--onto", tmp_path)

    assert ran.code == 1
    assert "its version is not known; name the release that it is closest to instead" in ran.err

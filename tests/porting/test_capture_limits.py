"""What a capture leaves out, what it says of a vLLM that it cannot compare, and where the originals come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from vpatch.guest.record import entry, parse, revise

from tests.cli.test_contract import SHAPE, fits
from tests.conftest import Program, contents_of
from tests.hybrid import INFO
from tests.loopback import IndexServer
from tests.porting.installed import HAND, LEFT, Capture, copied, edit, prioritized, rewrite, the_file
from tests.releases import tree_of
from tests.wheels import packed

NOTHING = "Nothing to capture: every module is as it was installed."
NOT_CAPTURED = (
    "it changed, and is not captured: it is no text that a patch file can have, or its original is not at hand"
)
JSON = SHAPE | {"written": (str, type(None)), "added": [str], "missing": [str], "unchanged": [str]}


@pytest.mark.usefixtures("offline")
def test_nothing_was_done(capture: Capture, tree: Path, tmp_path: Path) -> None:
    ran = capture(tree, pristine=False)

    assert (ran.code, ran.out) == (0, "")
    assert ran.err.splitlines() == [
        f"vLLM 0.20.2 in {tree}",
        "To compare with a release that RECORD does not list, as of a fork: name the folder that `vpatch fetch` wrote "
        "of that release with --pristine",
        "Nothing to capture: every module is as it was installed.",
    ]
    assert not (tmp_path / "patches").exists()
    assert capture(tree).err.splitlines()[1:] == ["Nothing to capture: every module is as it was installed."]


def test_what_changed_nothing(capture: Capture, tree: Path, tmp_path: Path) -> None:
    edit(tree, LEFT, lambda text: text.replace("def is_lossless_cast(", "# why\ndef is_lossless_cast("))
    rewrite(tree / HAND, (tree / HAND).read_bytes().replace(b"\n", b"\r\n"))

    ran = capture(tree)

    assert ran.code == 0
    same = "unchanged  the same program: comments, docstrings, layout, order, or imports that went"
    assert ran.out == f"  {LEFT}            {same}\n  {HAND}  {same}\n"
    assert ran.err.endswith("Nothing to capture: what changed is the same program.\n")

    edit(tree, HAND, lambda text: prioritized(text.replace("\r\n", "\n")).replace("\n", "\r\n"))
    ran = capture(tree, "--json")
    fits(ran.json, JSON)
    assert ran.code == 0
    assert ran.json["written"] == f"{tmp_path}/patches/captured.vpatch"
    assert (ran.json["changed"], ran.json["unchanged"]) == ([HAND], [LEFT])
    assert "\r" not in str(the_file(tmp_path))


def test_a_branch_that_never_runs(capture: Capture, tree: Path) -> None:
    edit(
        tree,
        LEFT,
        lambda text: text.replace(
            "> tgt_level:\n        return False\n", "> tgt_level:\n        return False\n        print(0)\n"
        ),
    )
    (note,) = [line for line in capture(tree).err.splitlines() if line.startswith("note: ")]

    assert note.startswith(f"note: accepted on its base: {LEFT} (is_lossless_cast): `print(0)` never runs: ")


@pytest.mark.parametrize("pristine", [True, False])
def test_modules_that_came(
    capture: Capture, tree: Path, vpatch: Program, tmp_path: Path, offline: None, *, pristine: bool
) -> None:
    """They may be the only change; those of vpatch do not count."""
    (tree / "vllm/v1/extra").mkdir()
    (tree / "vllm/v1/extra/__init__.py").touch()
    rewrite(tree / "vllm/v1/extra/one.py", b"# Ours.\r\nx = 1")

    ran = capture(tree, pristine=pristine)

    assert ran.code == 0, ran.err
    assert [line.split() for line in ran.out.splitlines()][:-1] == [
        ["vllm/v1/extra/__init__.py", "added"],
        ["vllm/v1/extra/one.py", "added"],
    ]
    assert "Wrote " in ran.err
    other = copied("0.20.2", tmp_path / "other")
    before = contents_of(other)
    assert vpatch("apply", "--patches", tmp_path / "patches", "--overlay", "captured", other).code == 0
    assert (other / "vllm/v1/extra/one.py").read_bytes() == b"# vpatch: captured\n# Ours.\nx = 1\n"
    assert "Nothing to capture" in capture(other, "--force", pristine=pristine).err
    with (other / "vllm/v1/extra/one.py").open("a") as file:
        file.write("x = 2\n")
    assert "vpatch added it, and it was edited since, which is not captured" in capture(other, "--force").err
    (other / "vllm/v1/extra/one.py").unlink()
    assert vpatch("revert", other).code == 0
    assert contents_of(other) == before


@pytest.mark.parametrize("pristine", [True, False])
def test_modules_that_went(capture: Capture, tree: Path, tmp_path: Path, offline: None, *, pristine: bool) -> None:
    (tree / "vllm/extra.py").write_text("x = 1\n")
    (tree / "vllm/extra.json").write_text("{}\n")
    (tree / "vllm/v1/extra").mkdir()
    (tree / "vllm/v1/extra/__init__.py").touch()
    (tree / "vllm/_vpatch").mkdir()
    (tree / "vllm/_vpatch/one.py").touch()
    (tree / LEFT).unlink()

    ran = capture(tree, pristine=pristine)

    assert ran.code == 1
    assert [line.split() for line in ran.out.splitlines()] == [
        ["vllm/extra.json", "added"],
        ["vllm/extra.py", "added"],
        [LEFT, "missing"],
        ["vllm/v1/extra/__init__.py", "added"],
    ]
    assert ran.err.splitlines()[1:] == [
        f"cannot capture: {tree}: a patch file cannot remove modules: {LEFT}",
        "Nothing was written.",
    ]
    assert not (tmp_path / "patches").exists()


def with_data(tree: Path) -> None:
    """Let a vLLM have data, which RECORD lists."""
    data = {"vllm/small.json": b"{}", "vllm/same.json": b"[]\n", "vllm/_C.abi3.so": b"\0" * (17 << 20)}
    record = tree / INFO / "RECORD"
    rows = revise(parse(record.read_bytes()), {path: entry(path, content) for path, content in data.items()})
    rewrite(record, rows.serialize())
    for path, content in data.items():
        rewrite(tree / path, content)


def test_data_is_captured(capture: Capture, tree: Path, tmp_path: Path, vpatch: Program) -> None:
    """Text that changed or came, with the original at hand. What is binary is named."""
    with_data(tree)
    before = copied("0.20.2", tmp_path / "before")
    with_data(before)
    assert capture(tree, "--pristine", before, pristine=False).err.splitlines()[-1].startswith("Nothing to capture")

    new = {
        "vllm/small.json": b"[1]",
        "vllm/E=1,N=[2].json": b"{}\n",
        "vllm/small.json.bak": b"{}",
        "vllm/new.bin": b"\xff",
    }
    for path, data in {**new, "vllm/_C.abi3.so": b"\0" * (18 << 20)}.items():
        rewrite(tree / path, data)
    ran = capture(tree, "--json", "--pristine", before, pristine=False)

    assert ran.code == 0, ran.out
    assert (ran.json["changed"], ran.json["added"]) == (["vllm/small.json"], ["vllm/E=1,N=[2].json"])
    assert ran.json["notes"] == [f"vllm/_C.abi3.so: {NOT_CAPTURED}"]
    options = ("--patches", tmp_path / "patches", "--overlay", "captured")
    assert vpatch("apply", *options, before).code == 0
    assert (before / "vllm/small.json").read_bytes() == b"[1]"
    assert capture(before, "--name", "again", pristine=False).err.splitlines()[-1] == NOTHING


def test_data_whose_original_is_not_at_hand(capture: Capture, tree: Path) -> None:
    """As where `vpatch fetch` wrote the modules, and RECORD."""
    with_data(tree)
    fetched = copied("0.20.2", tree.parent / "fetched")
    rewrite(fetched / INFO / "RECORD", (tree / INFO / "RECORD").read_bytes())
    assert capture(tree, "--pristine", fetched, pristine=False).err.splitlines()[1:] == [NOTHING]

    rewrite(tree / "vllm/small.json", b"[1]")
    ran = capture(tree, "--pristine", fetched, pristine=False)

    assert ran.err.splitlines()[1:] == [f"note: vllm/small.json: {NOT_CAPTURED}", NOTHING]


def test_what_no_patch_file_does(capture: Capture, tree: Path, tmp_path: Path) -> None:
    """The module is named, and nothing is written, not even of the others."""
    edit(tree, HAND, prioritized)
    edit(tree, LEFT, lambda text: f"{text}\n\ndef twice(): ...\ndef twice(): ...\n\x0c\n# \x07\nX = '\x0c'\n")
    ran = capture(tree)

    assert ran.code == 1
    assert ran.out.split() == [LEFT, "changed", HAND, "changed"]
    (problem,) = [line for line in ran.err.splitlines() if line.startswith("cannot capture: ")]
    assert problem.startswith(f"cannot capture: {LEFT}: ")
    assert ran.err.endswith("\nNothing was written.\n")
    assert not (tmp_path / "patches").exists()


def test_what_is_not_python(capture: Capture, tree: Path) -> None:
    edit(tree, LEFT, lambda text: f"{text}\ndef f(:\n")
    rewrite(tree / HAND, b"# coding: utf-16\n")
    ran = capture(tree)

    assert (ran.code, ran.out) == (1, "")
    assert f"cannot capture: {HAND}: not readable as Python: " in ran.err
    edit(tree, HAND, lambda _: "x = 1\n")
    assert f"cannot capture: {LEFT}: not readable as Python: line " in capture(tree).err


def test_without_a_record(capture: Capture, tree: Path) -> None:
    (tree / INFO / "RECORD").unlink()
    ran = capture(tree, pristine=False)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[1:] == [
        f"cannot capture: {tree}: it has no RECORD, as an editable install; name the folder that `vpatch fetch` "
        "wrote of that release with --pristine",
        "Nothing was written.",
    ]
    edit(tree, HAND, prioritized)
    assert capture(tree).code == 0


def test_a_checkout(capture: Capture, tree: Path) -> None:
    (tree / ".git").mkdir()
    ran = capture(tree)

    assert (ran.code, ran.out) == (1, "")
    assert (
        f"cannot capture: {tree}: a source checkout, of which git knows what was done; `git -C {tree} diff`" in ran.err
    )


@pytest.mark.deep
@pytest.mark.usefixtures("offline")
def test_offline_without_originals(capture: Capture, tree: Path) -> None:
    edit(tree, HAND, prioritized)
    ran = capture(tree, pristine=False)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[1:] == [
        "package index failed: http://127.0.0.1:1/simple: connection refused; where there is a network, "
        f"`vpatch fetch 0.20.2 vllm-0.20.2`; with that folder here, `vpatch capture --pristine vllm-0.20.2 {tree}`",
        "Nothing was written.",
    ]


def published(index: IndexServer, *changes: str) -> None:
    """Publish a wheel of 0.20.2 with two modules, of which some differ from the release."""
    files = {path: (tree_of("0.20.2") / path).read_bytes() for path in (HAND, LEFT, f"{INFO}/METADATA")}
    files |= {path: files[path] + b"# more\n" for path in changes}
    index.publish("vllm-0.20.2-cp38-abi3-manylinux_2_35_x86_64.whl", packed(files, INFO))


def test_by_range_requests(capture: Capture, tree: Path, tmp_path: Path, index: IndexServer) -> None:
    """Of a local version that the index lacks, the originals are those of the public one."""
    published(index)
    edit(tree, HAND, prioritized)
    (tree / INFO).rename(tree / INFO.replace("0.20.2", "0.20.2+cu129"))
    edit(tree, "vllm-0.20.2+cu129.dist-info/RECORD", lambda text: text.replace(INFO, INFO.replace("2.d", "2+cu129.d")))

    ran = capture(tree, "--subject", "Put requests by a method of their own", pristine=False)

    assert ran.code == 0, ran.err
    assert "note: the originals are those of vLLM 0.20.2: 0.20.2+cu129 is not on the package index\n" in ran.err
    assert the_file(tmp_path).head == {
        "Format": "1",
        "Subject": "Put requests by a method of their own",
        "Base": "0.20.2",
    }
    assert [change.path for change in the_file(tmp_path).changes] == [HAND]
    index.stop()
    assert capture(tree, "--name", "again", pristine=False).code == 0, "the cache has them now"


def test_another_folder(vpatch: Program, capture: Capture, tree: Path) -> None:
    """A folder of another release may be what the user means; one that vpatch changed is not."""
    edit(tree, HAND, prioritized)
    (tree / INFO).rename(tree / INFO.replace("0.20.2", "0.20.1"))
    assert f"note: {tree_of('0.20.2').resolve()} has vLLM 0.20.2, and {tree} has 0.20.1\n" in capture(tree).err

    other = copied("0.20.2", tree.with_name("other"))
    assert vpatch("apply", "--overlay", "turboquant-skip-list", other).code == 0
    ran = capture(tree, "--force", "--pristine", other, pristine=False)
    assert ran.code == 1
    assert f"cannot capture: {other}: not the original vLLM: vpatch changed it; name a folder that" in ran.err


def test_another_release_on_the_index(capture: Capture, tree: Path, index: IndexServer) -> None:
    """Its files must have RECORD's hashes."""
    published(index, HAND)
    edit(tree, HAND, prioritized)
    ran = capture(tree, pristine=False)

    assert (ran.code, ran.out) == (1, "")
    assert (
        f"cannot capture: {HAND}: the release on the package index has other bytes than RECORD lists; fetch the release"
        in ran.err
    )


def test_what_is_there_is_kept(capture: Capture, tree: Path, tmp_path: Path) -> None:
    edit(tree, HAND, prioritized)
    assert capture(tree).code == 0
    before = contents_of(tmp_path / "patches")
    ran = capture(tree)

    file = tmp_path / "patches/captured.vpatch"
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"exists already: {file}: it is not overwritten; --force replaces it\n"
    assert contents_of(tmp_path / "patches") == before
    assert capture(tree, "--force").code == 0


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("--name", "My_Fix"), "use words in lower case, joined by hyphens, as in my-fix"),
        (("--subject", "one\ntwo"), "one line of text"),
        (("--subject", " "), "one line of text"),
        (("--python", "python3"), "two trees"),
        (("--pristine", "nowhere"), "no such folder"),
    ],
)
def test_usage(vpatch: Program, tree: Path, arguments: tuple[str, ...], cause: str) -> None:
    ran = vpatch("capture", tree, *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert cause in ran.err


def test_an_unknown_version(capture: Capture, tree: Path, tmp_path: Path) -> None:
    """A patch file says for which release it was made."""
    edit(tree, HAND, prioritized)
    (tree / INFO).rename(tree / "vllm-ours.dist-info")
    bare = copied("0.20.2", tmp_path / "bare")
    (bare / INFO).rename(bare / "vllm_0.20.2.info")

    ran = capture(tree, "--pristine", bare, pristine=False)

    assert ran.code == 1
    assert f"cannot capture: {tree}: its version, 'ours', is not that of a release" in ran.err
    assert capture(tree).code == 0

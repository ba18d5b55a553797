"""`vpatch import --run`: what a command changes in a copy of vLLM becomes a patch file."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from vpatch.porting.scratch import run_in

from tests.conftest import Program, Trees, unchanged, untouched
from tests.forks import ended, start
from tests.loopback import IndexServer
from tests.porting.making import ADDED, FILE, OTHER, text_of
from tests.wheels import packed

SCRIPT = f"""\
import importlib.util, os, pathlib, sys

print("patching")
module = pathlib.Path(importlib.util.find_spec("vllm").origin).with_name("sequence.py")
assert module == pathlib.Path(os.environ["VLLM_SITE_PACKAGES"], "{FILE}") == pathlib.Path("{FILE}").resolve()
with module.open("r+") as file:  # in place: a link would lead to the original
    text = file.read()
    file.seek(0)
    file.write(text.replace({ADDED[0]!r}, {ADDED[1]!r}, 1))
pathlib.Path("vllm/logger.py").rename("vllm/logger.py.orig")
pathlib.Path("vllm/logger.py").write_text(pathlib.Path("vllm/logger.py.orig").read_text() + "LEVELS = 5\\n")
"""
SED = f"sed -i '/^import torch$/a LAYERS = 61' {FILE}"


@pytest.fixture
def small(here: Path, slim: Trees, pristine: Trees) -> Path:
    """A vLLM of few files, which a test may change; a copy of all of them takes longer than the test."""
    small = shutil.copytree(slim("0.20.2"), here / "small", copy_function=shutil.copyfile)
    for file in (FILE, OTHER):
        shutil.copyfile(pristine("0.20.2") / file, small / file)
    (small / "vllm/data.json").write_text("{}\n")
    return small


@pytest.mark.deep
def test_a_script_that_finds_vllm_by_import(here: Path, small: Path, vpatch: Program) -> None:
    (here / "fix_layers.py").write_text(SCRIPT)

    with untouched(small):
        made = vpatch("import", "--base", small, "--run", 'python3 "$OLDPWD/fix_layers.py"', "--json")

    assert made.code == 0, made.out
    (patch,) = made.json["patches"]
    assert (patch["id"], patch["base"], patch["files"]) == ("fix-layers", "0.20.2", [OTHER, FILE])
    text = (here / "patches/fix-layers.vpatch").read_text()
    assert text.startswith("Format: 1\nSubject: The changes of fix_layers.py\nBase: 0.20.2\n\n")
    assert "\n+LAYERS = 61\n" in text
    assert "\n+LEVELS = 5\n" in text
    options = ("--patches", "patches", "--overlay", "fix-layers", small)
    assert vpatch("apply", *options).code == 0
    assert "LAYERS = 61  # vpatch: fix-layers\n" in text_of(small)


def test_sed_on_the_installed_vllm(tree: Path, here: Path, vpatch: Program) -> None:
    site = here / ".venv/lib/python3.11/site-packages"
    site.parent.mkdir(parents=True)
    tree.rename(site)
    (here / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n")

    with unchanged(site):
        made = vpatch("import", "--run", SED)

    assert made.code == 0, made.err
    assert made.out.startswith("patches/sequence.vpatch  1 change in 1 module, for 0.20.2\n")


def test_a_module_that_comes(here: Path, small: Path, vpatch: Program) -> None:
    command = "mkdir vllm/mine; touch vllm/mine/__init__.py; echo 'x = 1' > vllm/mine/one.py"

    made = vpatch("import", "--base", small, "--run", command, "--json")

    assert made.code == 0, made.out
    assert made.json["patches"][0]["files"] == ["vllm/mine/__init__.py", "vllm/mine/one.py"]


BAD = {
    "fails": ("echo 'no such layer' >&2; exit 3", "it ends with exit code 3: no such layer"),
    "fails silently": ("false", "cannot import: false: it ends with exit code 1\n"),
    "has many lines": (f"# {'x' * 90}\nfalse\n", f"cannot import: # {'x' * 78}...: it ends with exit code 1\n"),
    "has a long word": (f"false {'x' * 5000}", "x...: it ends with exit code 1\n"),
    "is killed": ("kill -9 $$", "it ends with signal 9"),
    "is no command": ("vpatch-no-such-program", "it ends with exit code 127: "),
    "has no such script": ("python3 fix.py", 'it runs in a copy of vLLM: name your file as "$OLDPWD/fix.py"'),
    "does nothing": ("true", "cannot import: true: it changes no file of its copy of vLLM\n"),
    "changes comments": (f"echo '# here' >> {FILE}", "nothing changes but comments"),
    "deletes": (f"rm {FILE}", f"{FILE}: it is deleted, and a patch file changes or adds files"),
    "adds an odd name": (
        "echo 1 > vllm/one-more.py",
        "'vllm/one-more.py' is no Python module or data file below vllm/",
    ),
    "breaks": (f"echo 'x = (' >> {FILE}", "not valid Python"),
    "writes no text": (f"printf 'x = \"\\377\"\\n' >> {FILE}", f"cannot import: {FILE}: "),
    "binary data": (f"{SED}; printf '\\377' > vllm/data.json", "vllm/data.json: it is binary: no text in UTF-8"),
    "CRLF in data": (f"{SED}; printf '[]\\r\\n' > vllm/data.json", "vllm/data.json: it has the control character"),
    "a line of another meaning": (f"{SED}; echo '++ a' > vllm/data.json", "vllm/data.json: it has the line `++ a`"),
    "hidden data": (f"{SED}; touch vllm/.data", "vllm/.data: a patch file cannot have it"),
    "adds beside": (f"{SED}; echo > more.pth", "more.pth: not part of vLLM; `--python-only` leaves it out"),
    "deletes all": ('rm -r "$VLLM_SITE_PACKAGES"', "cannot read the copy of vLLM: "),
    "deletes vLLM": ("rm -r vllm; mkdir vllm; echo '{}' > vllm/data.json", ": it is deleted, and"),
    "changes the wrong one": (
        'echo "x = 1" >> "$OLDPWD/small/vllm/sequence.py"',
        "it changed while the command ran, which was to change only its copy; let the command find vLLM by",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_command_that_gives_no_patch(name: str, here: Path, small: Path, vpatch: Program) -> None:
    command, says = BAD[name]
    (here / "fix.py").write_text("print(1)\n")

    refused = vpatch("import", "--base", small, "--run", command)

    assert refused.code == 1, refused.out
    assert says in refused.err, refused.err
    assert refused.err.startswith("cannot ")
    assert refused.err.count("\n") == 1
    assert not (here / "patches").exists()


def test_other_files_may_be_left_out(here: Path, small: Path, vpatch: Program) -> None:
    command = f"{SED}; echo '[]' > vllm/data.json; echo >> {small.name}-0; touch vllm-0.20.2.dist-info/patched"

    made = vpatch("import", "--base", small, "--python-only", "--run", command)

    assert made.code == 0, made.err
    assert "left out: vllm/data.json: not Python" in made.out
    assert "left out: small-0: not part of vLLM" in made.out


@pytest.mark.parametrize(
    ("base", "code", "says"),
    [
        ("0.99.0", 2, "no such release: vllm 0.99.0"),
        ("missing", 2, "not a version: missing"),
        (".", 1, "no vllm"),
    ],
)
@pytest.mark.usefixtures("index")
def test_no_such_base(base: str, code: int, says: str, here: Path, vpatch: Program) -> None:
    refused = vpatch("import", "--base", base, "--run", "touch ran")

    assert (refused.code, refused.err.count("\n")) == (code, 1)
    assert says in refused.err
    assert not (here / "ran").exists()


def test_a_release(here: Path, small: Path, index: IndexServer, vpatch: Program) -> None:
    """It is fetched for the command, and the folder is gone afterwards."""
    files = {path.relative_to(small).as_posix(): path.read_bytes() for path in small.rglob("*.py")}
    info = "vllm-0.20.2.dist-info"
    metadata = {f"{info}/METADATA": (small / info / "METADATA").read_bytes()}
    index.publish("vllm-0.20.2-cp38-abi3-manylinux_2_35_x86_64.whl", packed({**files, **metadata}, info))

    made = vpatch("import", "--base", "0.20.2", "--run", SED)
    named = vpatch("import", "--base", "0.20.2", "--run", SED, "--name", "layers")

    assert (made.code, named.code) == (0, 0), made.err
    assert made.out.startswith("patches/sequence.vpatch  1 change in 1 module, for 0.20.2\n")
    assert f"  it is called sequence after {FILE}: `--name` gives it another name\n" in made.out
    assert named.out.startswith("patches/layers.vpatch  1 change in 1 module, for 0.20.2\n")
    assert "--name" not in named.out
    assert sorted(path.name for path in here.iterdir()) == ["home", "patches", "small"]


def test_an_interrupt_while_the_command_starts_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs already, and the call that started it has not returned; the pipe closes when it is gone."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            assert select.select([reader], [], [], 60)[0]
            assert os.read(reader, 6) == b"ready\n"
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the commands do
    try:
        with pytest.raises(KeyboardInterrupt):
            run_in(tmp_path, "exec 3> pipe; sleep 600 & echo ready >&3; wait")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert select.select([reader], [], [], 60)[0], "it goes on"
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_an_interrupt_ends_the_command_and_removes_the_copy(here: Path, small: Path) -> None:
    """Also what the command started; the pipe closes when the last of them is gone."""
    temporary, pipe = here / "temporary", here / "pipe"
    temporary.mkdir()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    command = f"exec 3> {pipe}; sleep 600 & echo ready >&3; wait"
    with (here / "output").open("wb") as out:
        child = start(
            *("import", "--base", small, "--run", command),
            streams=(out.fileno(),) * 3,
            first=lambda: setattr(tempfile, "tempdir", str(temporary)),
        )
        assert select.select([reader], [], [], 60)[0]
        assert os.read(reader, 6) == b"ready\n"
        os.kill(child, signal.SIGTERM)
        assert ended(child) == 130
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert list(temporary.iterdir()) == []
    assert not (here / "patches").exists()

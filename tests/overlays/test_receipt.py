"""receipt on real releases: its states, the code that it writes, and what processes with it prove.

Processes run vLLM's own loader of plugins, in a tree without torch.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from vpatch import api
from vpatch.core.catalogue import Selection
from vpatch.guest.vpatch_claim import RECEIPT
from vpatch.image.patch import PROVENANCE
from vpatch.run.content import Content
from vpatch.run.launch import planned
from vpatch.run.store import farm_of
from vpatch.testing import Case, State, check
from vpatch.tree.locate import locate

from tests.conftest import Program, Trees
from tests.failures import problem_of
from tests.overlays.tables import drifted
from tests.processes import UNWATCHED
from tests.releases import RELEASES, cases
from tests.run.standin import LOAD, WAITS, add_own, started
from tests.run.test_receipt import HELD, IN_MEMORY, METRIC

PLUGINS, RUNNER = "vllm/plugins/__init__.py", "vllm/v1/worker/gpu_model_runner.py"
WITHOUT_MEMFD = "import os\ndel os.memfd_create\n"  # as in Pythons that uv installs

CASES = (
    *(Case(release, State.PENDING, says="0.18 layout; 4 changes") for release in RELEASES),
    *drifted("0.33.0", PLUGINS, ("plugins_loaded = True", "plugins_loaded = 1", "is not there")),
    *drifted("0.20.2", PLUGINS, ("def load_general_plugins", "def load_plugins", "no 'load_general_plugins' here")),
)


@pytest.mark.parametrize("case", cases(CASES))
def test_case(case: Case, slim: Callable[[str], Path], tmp_path: Path) -> None:
    check(case, "receipt", tree=slim(case.release), scratch=tmp_path)


def test_it_adds_an_import_and_a_call(slim: Trees, tmp_path: Path) -> None:
    source = (slim("0.20.2") / PLUGINS).read_text()
    imported, called = "import vllm.envs as envs\n", "    plugins_loaded = True\n"
    new = source.replace(imported, f"{imported}from vllm._vpatch.vpatch_receipt import hold_receipt\n")
    new = new.replace(called, f"{called}    hold_receipt()\n")

    case = Case("0.20.2", State.PENDING, result={PLUGINS: new})

    check(case, "receipt", tree=slim("0.20.2"), scratch=tmp_path)


class Applied(NamedTuple):
    """A release without torch, to which `vpatch apply --receipt` has written the default overlays.

    root: the tree.
    content: what a farm of the pristine tree has to hold for the same overlays.
    """

    root: Path
    content: Content

    def run(self, code: str, first: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run code as a process that imports the tree, or a farm of it."""
        command, environment = [sys.executable, "-c", code], self.environment(first)
        return subprocess.run(
            command, env=environment, cwd=self.root.parent, capture_output=True, text=True, check=False
        )

    def environment(self, first: Path | None = None) -> dict[str, str]:
        path = os.pathsep.join(map(str, filter(None, (first, self.root))))
        # The plugins of vLLM itself need torch.
        return {**os.environ, **UNWATCHED, "PYTHONPATH": path, "VLLM_PLUGINS": "vpatch_receipt"}

    @property
    def line(self) -> str:
        return f"runs {', '.join(self.content.overlays)} (digest {self.content.digest[:12]})\n"


@pytest.fixture
def applied(linked: Trees, vpatch: Program) -> Applied:
    root = linked("0.33.0")
    add_own(root, "0.33.0")
    content = planned(locate(root), Selection(also=("receipt",)))
    ran = vpatch("apply", "--receipt", root)
    assert ran.code == 0, ran.err
    return Applied(root, content)


def test_a_process_proves_the_digest_that_a_farm_would_have(applied: Applied, vpatch: Program) -> None:
    """So that one rule serves servers of both kinds."""
    ran = applied.run(f"{LOAD}{HELD}{METRIC}")

    assert (ran.returncode, ran.stdout.splitlines()[0]) == (0, IN_MEMORY), ran.stderr
    assert ran.stderr.endswith(applied.line)
    metric = f'vpatch_info{{digest="{applied.content.digest}",overlays="{",".join(applied.content.overlays)}"}} 1.0\n'
    assert metric in ran.stdout
    again = planned(locate(applied.root), Selection(also=("receipt",)))
    assert (again.digest, again.files) == (applied.content.digest, {})
    assert vpatch("verify", applied.root).code == 0


def test_ps_and_verify_see_it(applied: Applied, vpatch: Program) -> None:
    with started(sys.executable, "-c", f"{LOAD}{WAITS}", env=applied.environment()) as server:
        (found,) = (one for one in vpatch("ps", "--json").json["processes"] if one["pid"] == server)
        proof = vpatch("verify", "--pid", str(server))
        change(applied.root / RUNNER)
        changed = vpatch("verify", "--pid", str(server))

    assert (found["digest"], found["asked"]) == (applied.content.digest, None)
    assert found["overlays"] == list(applied.content.overlays)
    assert (proof.code, proof.err.count("\n")) == (0, 1)
    assert proof.err.startswith(f"Verified: process {server} claims ")
    assert changed.code == 1
    assert changed.err.startswith(f"changed: {applied.root / RUNNER}: it has changed, and process {server} was started")


def change(file: Path) -> None:
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data + b"x = 1\n")


def edited(applied: Applied) -> str:
    change(applied.root / RUNNER)
    return f"changed since vpatch wrote them: {RUNNER}"


def removed(applied: Applied) -> str:
    (applied.root / RUNNER).unlink()
    return "No such file or directory"


def unrecorded(applied: Applied) -> str:
    """As in a source checkout."""
    kept(applied).unlink()
    return f"no dist-info in {applied.root} tells what vpatch wrote"


def half_a_record(applied: Applied) -> str:
    kept(applied).write_text('{"schema": 1')
    return "Expecting ',' delimiter"


def lost_record(applied: Applied) -> str:
    """As if the dist-info's folder was removed, and another overlay applied since."""
    told = json.loads(kept(applied).read_bytes())
    files = {file: known for file, known in told["files"].items() if "receipt" in file or file == PLUGINS}
    kept(applied).write_text(json.dumps({**told, "files": files}))
    return "vpatch's record lacks what an earlier run wrote: vllm/_vpatch/ct_fp8_lm_head.py, "


def other_record(applied: Applied) -> str:
    kept(applied).write_text('{"files": []}')
    return "'list' object has no attribute 'items'"


def kept(applied: Applied) -> Path:
    (file,) = applied.root.glob("vllm-*.dist-info/vpatch/provenance.json")
    return file


@pytest.mark.parametrize("spoil", [edited, removed, unrecorded, half_a_record, lost_record, other_record])
def test_without_a_proof_the_server_runs_and_says_why(spoil: Callable[[Applied], str], applied: Applied) -> None:
    said = spoil(applied)
    ran = applied.run(f"{LOAD}{HELD}{METRIC}")

    assert ran.returncode == 0
    assert RECEIPT not in ran.stdout
    assert "vpatch_info" not in ran.stdout
    assert ran.stderr.startswith("vpatch: process ")
    assert "has no receipt: " in ran.stderr
    assert said in ran.stderr


def test_an_image_has_another_record_and_the_same_receipt(applied: Applied) -> None:
    """A base that `vpatch build` made, to which `vpatch apply` wrote no more: its record is that of the image."""
    told = json.loads(kept(applied).read_bytes())
    (kept(applied).parents[1] / PROVENANCE).write_text(json.dumps({**told, "overlays": []}))
    kept(applied).unlink()
    ran = applied.run(f"{LOAD}{HELD}")

    assert (ran.returncode, ran.stdout) == (0, f"{IN_MEMORY}\n")
    assert ran.stderr.endswith(applied.line)


@pytest.mark.parametrize("older", ["provenance.json", PROVENANCE])
def test_two_records_count_together(older: str, applied: Applied) -> None:
    """`build` changes what `apply` wrote to its base, and `apply` adds to an image."""
    told = json.loads(kept(applied).read_bytes())
    before = {file: {**known, "after": ["0" * 64]} for file, known in told["files"].items()}
    places = {"provenance.json": kept(applied), PROVENANCE: kept(applied).parents[1] / PROVENANCE}
    for name, place in places.items():
        place.write_text(json.dumps({**told, "files": before if name == older else told["files"]}))

    assert applied.run(f"{LOAD}{HELD}").stdout == f"{IN_MEMORY}\n"


def test_what_is_left_of_a_removed_vllm_is_no_record(applied: Applied) -> None:
    """As conda leaves it when it upgrades: see `tree.leftovers`."""
    left = applied.root / "vllm-0.0.1.dist-info/vpatch/provenance.json"
    left.parent.mkdir(parents=True)
    left.write_bytes(kept(applied).read_bytes())
    ran = applied.run(f"{LOAD}{HELD}")

    assert ran.stdout == f"{IN_MEMORY}\n", ran.stderr


def test_another_digest_than_asked_for_is_not_proved(applied: Applied) -> None:
    """As of a process of `vpatch run` that has lost its farm."""
    ran = applied.run(f"import os\nos.environ['VPATCH_RUN'] = 'f' * 64\n{LOAD}{HELD}")

    assert (ran.returncode, ran.stdout) == (0, "\n")
    assert "has no receipt: started for ffffffffffff, and finds " in ran.stderr


def test_a_python_without_files_in_memory(applied: Applied, vpatch: Program) -> None:
    """The C library has them, too."""
    with started(sys.executable, "-c", f"{WITHOUT_MEMFD}{LOAD}{WAITS}", env=applied.environment()) as server:
        (found,) = (one for one in vpatch("ps", "--json").json["processes"] if one["pid"] == server)
        proof = vpatch("verify", "--pid", str(server))

    assert found["digest"] == applied.content.digest
    assert (proof.code, proof.err.count("\n")) == (0, 1), proof.err


def test_a_process_that_can_hold_no_receipt(applied: Applied) -> None:
    """It says so, and what it runs, which it has compared."""
    refuse = "import os\ndef refuse(*_):\n    raise PermissionError(1, 'Operation not permitted')\n"
    ran = applied.run(f"{refuse}os.memfd_create = refuse\n{LOAD}{HELD}{METRIC}")

    assert (ran.returncode, ran.stdout.splitlines()[0]) == (0, "")
    assert "holds no receipt: [Errno 1] Operation not permitted" in ran.stderr
    assert ran.stderr.endswith(applied.line)
    assert "vpatch_info{" in ran.stdout


def test_a_checkout_is_refused(tmp_path: Path, linked: Trees, vpatch: Program) -> None:
    root = linked("0.33.0")
    shutil.rmtree(next(root.glob("*.dist-info")))
    subprocess.run(["git", "init", "-q", root], check=True)
    says = f"no receipt: {root}: a source checkout has no record of what vpatch wrote"
    for verb, how in itertools.product((api.apply, api.diff), ("overlays", "also")):
        assert str(problem_of(partial(verb, root, **{how: ["receipt"]}))).startswith(says)
    for options in (("apply", "--receipt"), ("apply", "-n", "--receipt"), ("diff", "--overlay", "receipt")):
        assert (vpatch(*options, root).code, says in vpatch(*options, root).err) == (1, True)


@pytest.mark.parametrize("reverted", [False, True])
def test_a_farm_with_the_overlay_has_one_receipt(
    *, reverted: bool, applied: Applied, vpatch: Program, tmp_path: Path
) -> None:
    """Whether it is in the vLLM or in the farm."""
    if reverted:
        assert vpatch("revert", applied.root).code == 0
    content = planned(locate(applied.root), Selection(also=("receipt",)))
    farm = farm_of(content, tmp_path / "cache", Path(sys.executable))
    ran = applied.run(f"{LOAD}{HELD}", first=farm)

    assert (ran.returncode, ran.stdout) == (0, f"{IN_MEMORY}\n"), ran.stderr
    assert ran.stderr.endswith(applied.line)


def test_a_worker_proves_the_digest(applied: Applied) -> None:
    proof = "from vllm._vpatch.vpatch_receipt import Proof\nprint(Proof().vpatch_digest())"

    assert applied.run(f"{LOAD}{proof}").stdout == f"{applied.content.digest}\n"
    change(applied.root / RUNNER)
    ran = applied.run(f"{LOAD}{proof}")
    assert ran.returncode == 1
    assert ran.stderr.endswith("RuntimeError: vpatch: this process has no receipt; vLLM's log says why\n")


def test_named_among_overlays(linked: Trees, vpatch: Program) -> None:
    """`--overlay` alone selects exactly these, and `--receipt` adds to them."""
    ran = vpatch("apply", "--overlay", "hybrid-mtp-counts", "--receipt", "--json", linked("0.20.2"))

    assert [one["id"] for one in ran.json["overlays"]] == ["hybrid-mtp-counts", "receipt"]
    assert {one["state"] for one in ran.json["overlays"]} == {"applied"}

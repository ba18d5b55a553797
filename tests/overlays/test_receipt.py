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
from vpatch.manifest import BUILT
from vpatch.run.content import Content
from vpatch.run.launch import planned
from vpatch.run.store import farm_of
from vpatch.testing import State
from vpatch.tree.locate import locate

from tests.conftest import Program, Trees
from tests.failures import problem_of
from tests.overlays.tables import check_result, drifted, on, table
from tests.processes import UNWATCHED
from tests.run.standin import LOAD, WAITS, add_own, started
from tests.run.test_receipt import HELD, IN_MEMORY, METRIC
from tests.tiers import deep

pytestmark = pytest.mark.deep  # these start interpreters

PLUGINS, RUNNER = "vllm/plugins/__init__.py", "vllm/v1/worker/gpu_model_runner.py"
WITHOUT_MEMFD = "import os\ndel os.memfd_create\n"  # as in Pythons that uv installs

CASES = (
    *on(">=0.18", State.PENDING, "0.18 layout; 4 changes"),
    *drifted("0.33.0", PLUGINS, ("plugins_loaded = True", "plugins_loaded = 1", "is not there")),
    *drifted("0.20.2", PLUGINS, ("def load_general_plugins", "def load_plugins", "no 'load_general_plugins' here")),
)

test_case = table("receipt", CASES)


def test_it_adds_an_import_and_a_call(slim: Trees, tmp_path: Path) -> None:
    imported, called = "import vllm.envs as envs\n", "    plugins_loaded = True\n"
    changes = (
        (imported, f"{imported}from vllm._vpatch.vpatch_receipt import hold_receipt\n"),
        (called, f"{called}    hold_receipt()\n"),
    )

    check_result("receipt", "0.20.2", slim("0.20.2"), tmp_path, PLUGINS, *changes)


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


@pytest.mark.parametrize("python", ["", WITHOUT_MEMFD])
def test_ps_and_verify_see_it(python: str, applied: Applied, vpatch: Program) -> None:
    """Also in a Python without files in memory: the C library has them, too."""
    with started(sys.executable, "-c", f"{python}{LOAD}{WAITS}", env=applied.environment()) as server:
        (found,) = (one for one in vpatch("ps", "--json").json["processes"] if one["pid"] == server)
        proof = vpatch("verify", "--pid", str(server))
        change(applied.root / RUNNER)
        changed = vpatch("verify", "--pid", str(server))

    assert (found["digest"], found["asked"]) == (applied.content.digest, None)
    assert found["overlays"] == list(applied.content.overlays)
    assert (proof.code, proof.err.count("\n")) == (0, 1), proof.err
    assert proof.err.startswith(f"Verified: process {server} claims ")
    assert changed.code == 1
    assert changed.err.startswith(f"changed: {applied.root / RUNNER}: it has changed, and process {server} was started")


def change(file: Path) -> None:
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data + b"x = 1\n")


def kept(applied: Applied) -> Path:
    (file,) = applied.root.glob("vllm-*.dist-info/vpatch/provenance.json")
    return file


def lose(file: Path) -> None:
    """As if the dist-info's folder was removed, and another overlay applied since."""
    record = json.loads(file.read_bytes())
    files = {name: known for name, known in record["files"].items() if "receipt" in name or name == PLUGINS}
    file.write_text(json.dumps({**record, "files": files}))


SPOILED: dict[str, tuple[Callable[[Applied], object], str]] = {
    "edited": (lambda on: change(on.root / RUNNER), f"changed since vpatch wrote them: {RUNNER}"),
    "removed": (lambda on: (on.root / RUNNER).unlink(), "No such file or directory"),
    "unrecorded, as in a source checkout": (lambda on: kept(on).unlink(), " tells what vpatch wrote"),
    "half a record": (lambda on: kept(on).write_text('{"schema": 1'), "Expecting ',' delimiter"),
    "lost record": (
        lambda on: lose(kept(on)),
        "vpatch's record lacks what an earlier run wrote: vllm/_vpatch/ct_fp8_lm_head.py, ",
    ),
    "other record": (lambda on: kept(on).write_text('{"files": []}'), "'list' object has no attribute 'items'"),
}


@pytest.mark.parametrize("how", [how if how == "edited" else deep(how) for how in SPOILED])
def test_without_a_proof_the_server_runs_and_says_why(how: str, applied: Applied) -> None:
    spoil, because = SPOILED[how]
    spoil(applied)
    ran = applied.run(f"{LOAD}{HELD}{METRIC}")

    assert ran.returncode == 0
    assert RECEIPT not in ran.stdout
    assert "vpatch_info" not in ran.stdout
    assert ran.stderr.startswith("vpatch: process ")
    assert "has no receipt: " in ran.stderr
    assert because in ran.stderr


def image(on: Applied) -> None:
    """A base that `vpatch build` made, to which `vpatch apply` wrote no more: its record is that of the image."""
    record = json.loads(kept(on).read_bytes())
    (kept(on).parents[1] / BUILT).write_text(json.dumps({**record, "overlays": []}))
    kept(on).unlink()


def two(on: Applied, *, older: str) -> None:
    """`build` changes what `apply` wrote to its base, and `apply` adds to an image."""
    record = json.loads(kept(on).read_bytes())
    before = {file: {**known, "after": ["0" * 64]} for file, known in record["files"].items()}
    places = {"provenance.json": kept(on), BUILT: kept(on).parents[1] / BUILT}
    for name, place in places.items():
        place.write_text(json.dumps({**record, "files": before if name == older else record["files"]}))


def left(on: Applied) -> None:
    """What is left of a removed vLLM is no record. As conda leaves it when it upgrades: see `tree.upgrade`."""
    file = on.root / "vllm-0.0.1.dist-info/vpatch/provenance.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(kept(on).read_bytes())


@pytest.mark.deep
@pytest.mark.parametrize("change", [image, left, partial(two, older="provenance.json"), partial(two, older=BUILT)])
def test_other_records_prove_the_same(change: Callable[[Applied], None], applied: Applied) -> None:
    change(applied)
    ran = applied.run(f"{LOAD}{HELD}")

    assert (ran.returncode, ran.stdout) == (0, f"{IN_MEMORY}\n"), ran.stderr
    assert ran.stderr.endswith(applied.line)


def test_another_digest_than_asked_for_is_not_proved(applied: Applied) -> None:
    """As of a process of `vpatch run` that has lost its farm."""
    ran = applied.run(f"import os\nos.environ['VPATCH_RUN'] = 'f' * 64\n{LOAD}{HELD}")

    assert (ran.returncode, ran.stdout) == (0, "\n")
    assert "has no receipt: started for ffffffffffff, and finds " in ran.stderr


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

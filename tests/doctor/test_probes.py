"""`vpatch doctor --run`: the probes of overlays on an installed vLLM."""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
from pathlib import Path

import pytest

from tests.conftest import Process, Program, contents_of, environment
from tests.doctor.conftest import Diagnose, _healthy, _stock, alone, healthy, one, packages, put, stock
from tests.forks import ended, start
from tests.hybrid import HYBRID, ONLY
from tests.paths import ROOT
from tests.releases import tree_of, unneeded
from tests.tiers import deep
from tests.validation.cpu.environment import BYTECODE, interpreter
from tests.validation.cpu.trees import patched_tree

__all__ = ["_healthy", "_stock", "alone", "healthy", "stock"]

SKIP_LIST = "turboquant-skip-list"
# The tests' environments have a torchvision without its compiled half.
STAND_IN = "import tests.validation.cpu.platform as p\np.stand_in_for_torchvision()\n"
HANGS = "import signal\nopen({place!r}, 'w').write('ready')\nsignal.pause()\n"


def says(venv: Path, code: str) -> Path:
    """Replace what runs when vLLM is imported: every probe imports it first."""
    put(packages(venv) / "vllm/__init__.py", code)
    return venv


@pytest.mark.deep
def test_without_torch_only_a_probe_that_imports_nothing_decides(diagnose: Diagnose, stock: Path) -> None:
    found = diagnose(says(stock, "import torch\n"), "--run", name="probe")

    *others, decided = sorted(found, key=lambda said: "hybrid-mtp-states" in said["what"])
    notes = {said["what"] for said in others if said["level"] == "note"}
    (note,) = notes
    assert note.startswith("could not be run: the environment lacks torch: ")
    assert f", {HYBRID}, " in note
    assert {said["level"] for said in others} == {"note", "ok"}
    assert decided["level"] == "problem", "its probe reads the kernels, and imports nothing"


def test_a_defect(vpatch: Program, diagnose: Diagnose, stock: Path, healthy: Path) -> None:
    """The text of the assertion, and what to do: if the overlay is applied already, applying would not help."""
    because = "layers: [] expected, [3] found"
    for venv in (stock, healthy):
        says(venv, f"raise AssertionError({because!r})\n")
    ran = vpatch("doctor", "--run", stock, *ONLY, "--json")
    pending = one([said for said in ran.json["findings"] if said["name"] == "probe"])
    applied = one(diagnose(healthy, "--run", *ONLY, name="probe"))
    # The overlay does not fit now; its probe still shows what the code does.
    file = packages(stock) / "vllm/engine/arg_utils.py"
    put(file, file.read_text().replace("TurboQuantConfig.get_boundary_skip_layers", "another_function"))
    drifted = one(diagnose(stock, "--run", *ONLY, name="probe"))

    assert (ran.code, pending["level"]) == (1, "problem")
    assert pending["what"] == drifted["what"] == f"{HYBRID}: the defect is in this vLLM: {because}"
    assert pending["do"] == f"`vpatch apply --overlay {HYBRID} {stock}`"
    assert ran.json["probes"] == [{"overlay": HYBRID, "name": "turboquant_hybrid", "ok": False, "because": because}]
    assert vpatch("doctor", stock, *ONLY, "--json").json["probes"] == []
    assert applied["what"] == f"{HYBRID}: the defect is in this vLLM, although the overlay is applied: {because}"
    assert applied["do"] == "check the other findings for the cause; if none explains it, report a bug"
    assert drifted["do"] == f"`vpatch status -v --overlay {HYBRID} {stock}`"


def test_right(vpatch: Program, stock: Path) -> None:
    """Probes for a GPU are named; so are overlays for which there is nothing to run."""
    says(stock, "import os\nos._exit(0)\n")
    ran = vpatch("doctor", "--run", stock)

    lines = " ".join(ran.out.split())
    assert f"{HYBRID} runs right here, though it is not applied: " in lines
    assert f"nothing to run in this vLLM: {', '.join(unneeded('0.20.2'))}" in lines
    assert "left out, since they need a GPU: turboquant_hybrid_serve" in lines
    assert "To run vLLM's functions" not in ran.err
    assert f"To run vLLM's functions, too: `vpatch doctor --run {stock}`" in vpatch("doctor", stock).err


@pytest.mark.parametrize(
    ("code", "limit_s", "because"),
    [
        ("import os\nos.abort()\n", 60, "it was ended by SIGABRT"),
        ("raise RuntimeError('CUDA error')\n", 60, "RuntimeError: CUDA error"),
        ("import signal\nsignal.pause()\n", 0.5, "it did not end within 0.5 s"),
    ],
    ids=["dies", "raises", "hangs"],
)
def test_a_probe_that_tells_nothing(
    diagnose: Diagnose, stock: Path, monkeypatch: pytest.MonkeyPatch, code: str, limit_s: float, because: str
) -> None:
    monkeypatch.setattr("vpatch.doctor.probes.LIMIT_S", limit_s)
    found = one(diagnose(says(stock, code), "--run", *ONLY, name="probe"))

    assert found["level"] == "warning"
    assert found["what"] == f"{HYBRID}: its probe does not tell whether the defect is in this vLLM: {because}"


def test_another_vllm_is_not_run(
    diagnose: Diagnose, stock: Path, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources without an environment run with the packages of another one, if PYTHONPATH names them."""
    python, root = healthy / "bin/python", packages(stock)
    found = one(diagnose(stock, "--python", python, "--run", name="probe"))
    assert found["what"] == "no probe was run: no interpreter is known that imports this vLLM"
    assert found["do"].endswith(f": `env PYTHONPATH={root} vpatch doctor --run --python {python} {root}`")
    says(stock, "raise AssertionError('no')\n")
    monkeypatch.setenv("PYTHONPATH", str(root))
    found = one(diagnose(root, "--python", python, "--run", *ONLY, name="probe"))
    assert found["what"] == f"{HYBRID}: the defect is in this vLLM: no"
    monkeypatch.delenv("PYTHONPATH")

    found = one(diagnose(tree_of("0.20.2"), "--run", name="probe"))
    assert found["do"] == "name the interpreter that runs this vLLM with --python"


@pytest.mark.parametrize("number", [signal.SIGINT, deep(signal.SIGTERM)])
def test_ctrl_c(stock: Path, tmp_path: Path, number: signal.Signals) -> None:
    """It ends the probes, too, and leaves no file."""
    os.mkfifo(place := str(tmp_path / "pipe"))
    says(stock, HANGS.format(place=place))
    reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
    with tempfile.TemporaryFile() as out:
        child = start("doctor", "--run", stock, *ONLY, streams=(out.fileno(),) * 3)
        assert select.select([reader], [], [], 60)[0]
        assert os.read(reader, 5) == b"ready"
        os.kill(child, number)
        assert ended(child) == 130
    os.set_blocking(reader, True)
    assert os.read(reader, 5) == b"", "the probe is gone"
    os.close(reader)
    assert contents_of(tmp_path / "temporary") == {}


def test_it_changes_nothing(child: Process, stock: Path, tmp_path: Path) -> None:
    """No bytecode and no cache either."""
    says(stock, "import vllm.code\nopen('cache', 'w').write('')\n")
    put(packages(stock) / "vllm/code.py", "raise AssertionError('no')\n")
    for folder in ("home", "temporary"):
        (tmp_path / "stock" / folder).mkdir(exist_ok=True)
    before = contents_of(stock)
    variables = {"HOME": str(stock / "home"), "TMPDIR": str(stock / "temporary")}
    ran = child("doctor", "--run", stock, *ONLY, "--json", env=variables)

    assert ran.json["probes"][0]["because"] == "no"
    assert contents_of(stock) == before


@pytest.mark.deep
def test_the_real_vllm(process: Process, tmp_path: Path) -> None:
    """With torch and all, an environment as users have it: stock shows the defect, and patched does not."""
    told = {}
    for name, tree in {"stock": tree_of("0.20.2"), "patched": patched_tree("0.20.2")}.items():
        (shared,) = interpreter("0.20.2").parents[1].glob("lib/python3*/site-packages")
        site = environment(tmp_path / name)
        put(site / "tree.pth", f"{tree}\nimport site; site.addsitedir({str(shared)!r})\n")
        put(site / "sitecustomize.py", f"import sys\nsys.path.append({str(ROOT)!r})\n{STAND_IN}")
        python = tmp_path / name / "bin/python"
        variables = {"PYTHONPYCACHEPREFIX": str(BYTECODE), "PATH": os.defpath}
        ran = process("doctor", "--run", "--python", python, "--overlay", SKIP_LIST, "--json", env=variables)
        told[name] = one([said for said in json.loads(ran.out)["findings"] if said["name"] == "probe"])

    assert told["stock"]["level"] == "problem"
    assert "the name of a kind of layer was to be taken: invalid literal for int()" in told["stock"]["what"]
    assert told["patched"]["level"] == "ok", told["patched"]
    assert told["patched"]["what"].startswith(f"{SKIP_LIST} runs right here: TurboQuant with names")

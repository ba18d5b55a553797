"""Known error lines in a server's log, by the state of the overlay that mends them."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Program
from tests.doctor.conftest import Diagnose, put
from tests.hybrid import HYBRID
from tests.known.cases import EPILOGUE
from tests.known.cases import HYBRID as REFUSED


def test_lines_of_overlays_and_of_others(diagnose: Diagnose, stock: Path, healthy: Path, tmp_path: Path) -> None:
    log = put(
        tmp_path / "log",
        f"INFO fine\n\x1b[31mERROR\x1b[0m {REFUSED}\nEngineDeadError: see above\n"
        f"xid 3 of a sum of many words\n{EPILOGUE}\n",
    )
    (mended, end, foreign), (applied, *_) = (diagnose(one, "--log", log, name="log") for one in (stock, healthy))

    assert (mended["level"], mended["what"]) == ("problem", f"{HYBRID}, not applied, mends this line of the log")
    assert mended["where"] == f"ERROR {REFUSED}"
    assert mended["do"] == f"`vpatch apply --overlay {HYBRID} {stock}`"
    assert (end["level"], end["what"]) == ("warning", "EngineDeadError")
    assert "The first traceback above it" in end["do"]
    assert foreign["what"] == "ampere-fp8 is known for this line of the log, and this vLLM has nothing of it"
    assert (applied["level"], applied["what"]) == ("warning", f"{HYBRID} mends this line of the log, and is applied")
    left, *_ = diagnose(stock, "--without", HYBRID, "--log", log, name="log")
    assert left["what"] == f"{HYBRID}, which is not selected, mends this line of the log"


def test_a_line_with_many_causes(diagnose: Diagnose, stock: Path, healthy: Path, tmp_path: Path) -> None:
    """Overlays that may mend it and are missing, then advice; for certain, if the rest of the log has their signs."""
    stamp = "(EngineCore pid=1) ERROR 11-28 22:04:11 [core.py:770] torch.AcceleratorError: "
    begin = "INFO 11-28 22:01:00 [core.py:9] speculative_config=SpeculativeConfig(method='mtp')\n"
    line = f"{stamp}CUDA error: an illegal memory access was encountered"
    signs = "attention page size is >= mamba page size\nCapturing CUDA graphs (mixed prefill-decode, PIECEWISE): 9/9\n"
    short = put(tmp_path / "short", f"{begin}Capturing CUDA graphs (PIECEWISE)\n{line}\n")
    whole = put(tmp_path / "whole", f"{begin}{signs}{line}\n")
    (perhaps, advice), (sure, _) = (diagnose(stock, "--log", one, name="log") for one in (short, whole))

    assert perhaps["level"] == "warning"
    assert perhaps["what"].startswith(
        "mtp-capture-sizes, not applied, mends this line of the log, if: With MTP, a hybrid"
    )
    assert perhaps["where"] == line
    assert perhaps["do"] == f"`vpatch apply --overlay mtp-capture-sizes {stock}`"
    assert (advice["level"], advice["what"]) == ("warning", "illegal memory access")
    assert (sure["level"], sure["what"]) == ("problem", "mtp-capture-sizes, not applied, mends this line of the log")
    opt_in, *_ = diagnose(healthy, "--log", put(tmp_path / "log", "CUDA error: out of memory"), name="log")
    assert opt_in["what"].startswith(
        "turboquant-tiles, which is opt-in, mends this line of the log, if: With a TurboQuant"
    )
    assert opt_in["do"] == f"`vpatch apply --with turboquant-tiles {healthy}`"


def test_a_log_without_a_known_line(diagnose: Diagnose, vpatch: Program, stock: Path, tmp_path: Path) -> None:
    (found,) = diagnose(stock, "--log", put(tmp_path / "log", b"\0\xff fine"), name="log")

    assert found["level"] == "ok"
    assert found["what"] == "no known error line in the log; wrong answers and hangs leave none"
    assert "`vpatch find answers are garbage`" in found["do"]
    assert vpatch("doctor", stock, "--log", tmp_path / "missing").code == 2


def test_what_is_not_applied_is_listed_with_its_symptoms(vpatch: Program, stock: Path, healthy: Path) -> None:
    """In place of "No problem found"."""
    ran, whole = vpatch("doctor", stock), vpatch("doctor", healthy)

    title = "What you may see, since these overlays are not applied\n"
    assert f"  {HYBRID}\n    {REFUSED}\n" in ran.out.partition(title)[2]
    assert ran.err.splitlines()[-1].endswith(" not applied: look for what you see in the list above.")
    assert "No problem found" not in ran.err
    assert title not in whole.out


def test_a_log_chooses_among_what_is_not_applied(vpatch: Program, stock: Path, tmp_path: Path) -> None:
    """By the model, the KV cache and the drafts that it started with, though it ends before the KV cache."""
    version, model = "vLLM API server version 0.20.2", "Qwen/Qwen3.6-35B-A3B"
    engine = f"Initializing a V1 LLM engine (v0.20.2) with config: model='{model}', kv_cache_dtype=auto"
    drafts = "SpeculativeConfig(method='mtp', model='x', num_spec_tokens=3)"
    given = f"non-default args: {{'model': '{model}', 'kv_cache_dtype': 'turboquant_k8v4'}}"
    shown = {
        log: vpatch("doctor", stock, "--log", put(tmp_path / "log", "\n".join((version, *log))))
        for log in ((f"{engine}, speculative_config={drafts}, tensor_parallel_size=1",), (given,), ("fine",))
    }
    found = [
        {line.strip() for line in ran.out.partition("are not applied\n")[2].splitlines() if line[2:3].strip()}
        for ran in shown.values()
    ]
    mtp, turboquant, every = found

    assert {"hybrid-mtp-counts", "hybrid-mtp-gates"} <= mtp < every
    assert {HYBRID, "turboquant-workspace"} <= turboquant < every
    assert not {HYBRID, "turboquant-workspace", "custom-ar-expandable"} & mtp
    assert not {"hybrid-mtp-counts", "hybrid-mtp-gates"} & turboquant
    first, _, last = (ran.err for ran in shown.values())
    assert f"note: the log is of {model} with a KV cache of auto and 3 draft tokens: {len(mtp)} of " in first
    assert "note: the log does not show which overlays its server needs: the log: it does not have the model\n" in last

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


def test_a_log_without_a_known_line(diagnose: Diagnose, vpatch: Program, stock: Path, tmp_path: Path) -> None:
    (found,) = diagnose(stock, "--log", put(tmp_path / "log", b"\0\xff fine"), name="log")

    assert (found["level"], found["what"]) == ("ok", "no known error line in the log")
    assert vpatch("doctor", stock, "--log", tmp_path / "missing").code == 2


def test_what_is_not_applied_is_listed_with_its_symptoms(vpatch: Program, stock: Path, healthy: Path) -> None:
    """In place of "No problem found"."""
    ran, whole = vpatch("doctor", stock), vpatch("doctor", healthy)

    title = "What you may see, since these overlays are not applied\n"
    assert f"  {HYBRID}\n    {REFUSED}\n" in ran.out.partition(title)[2]
    assert ran.err.splitlines()[-1].endswith(" not applied: look for what you see in the list above.")
    assert "No problem found" not in ran.err
    assert title not in whole.out

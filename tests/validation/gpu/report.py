"""`python -m tests.validation.gpu.report`: write the tables of docs/validation.md from docs/gpu/*.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tests.blocks import put
from tests.paths import ROOT
from tests.validation.gpu import decode_checks, run_checks
from tests.validation.gpu.claims import verdicts
from tests.validation.gpu.engines import DECODE, PATCHED
from tests.validation.gpu.evidence import Evidence, Missing, Runs, Unfit, Verdict, gather, middle, read

DOCUMENT = ROOT / "docs/validation.md"
RESULTS = ROOT / "docs/gpu"


def fresh(text: str) -> str:
    """Replace the tables in docs/validation.md's text.

    Raises:
        ValueError: the text has no place for a table.
    """
    found = gather(read(RESULTS.glob("*.json")))
    decoding = _by_release(found, {"decode steps": _decoding, "n-gram drafts": _drafts})
    blocks = {
        "gpu-claims": claims(verdicts(found)),
        "gpu-decoding": decoding,
        "gpu-starts": _by_release(found, {"starts": _starts}),
        "gpu-runs": _runs(),
    }
    for name, lines in blocks.items():
        text = put(text, name, "".join(f"{line}\n" for line in lines))
    return text


def claims(verdicts: Iterable[Verdict]) -> list[str]:
    rows = ((v.claim.id, v.claim.says, v.release, v.state, v.figures) for v in verdicts)
    return _table(("claim", "says", "vLLM", "result", "measured"), rows)


def _by_release(runs: Runs, tables: Mapping[str, Callable[[Evidence], list[str]]]) -> Iterator[str]:
    """Render tables for each release whose measurements are complete."""
    for release, here in runs.items():
        for title, table in tables.items():
            try:
                lines = table(here)
            except (Missing, Unfit):
                continue
            yield from (f"vLLM {release}, {title}:", "", *lines, "")


def _decoding(here: Evidence) -> list[str]:
    """Render the speeds of decode steps, from `fast-decode`."""
    speeds, busy = decode_checks.speeds(here), decode_checks.busy(here)
    rows = []
    for shape in speeds["decode"]:
        rates, times = ([found[name][shape] for name in ("stock", "decode", "bf16")] for found in (speeds, busy))
        stock, ours, bf16 = rates
        rows.append((f"{shape[0]}", f"{shape[1]:,}", *(f"{rate:,.0f}" for rate in rates), f"{ours / stock:.2f}",
                     f"{ours / bf16:.2f}", *(f"{time:.2f}" for time in times)))  # fmt: skip
    head = ("batch", "context", "stock tokens/s", "decode tokens/s", "bf16 tokens/s", "to stock", "to bf16",
            "stock busy ms", "decode busy ms", "bf16 busy ms")  # fmt: skip
    return _table(head, rows)


def _drafts(here: Evidence) -> list[str]:
    """Render the speeds of answers with drafts, from `draft-speed`."""
    slow, fast = (decode_checks.draft_speeds(here, tree) for tree in (PATCHED, DECODE))
    rows = []
    for count in fast:
        (found,) = here.events(DECODE, f"{count} drafts", "answers_per_s")
        rows.append((f"{count}", f"{slow[count]:,.0f}", f"{fast[count]:,.0f}", f"{fast[count] / slow[count]:.2f}",
                     f"{fast[count] / fast[0]:.2f}", f"{middle(found['tokens_in_a_step']):.2f}"))  # fmt: skip
    head = ("drafts", "slow form tokens/s", "fast form tokens/s", "to slow form", "to 0 drafts",
            "tokens of a request in a step")  # fmt: skip
    return _table(head, rows)


def _starts(here: Evidence) -> list[str]:
    """Render the times of starts, from `run-start`."""
    rounds = zip(*run_checks.starts(here).values(), strict=True)
    rows = ((f"{n}", *(f"{began:.2f}, {ready:.2f}" for began, ready in row)) for n, row in enumerate(rounds, 1))
    return _table(("round", "tiles: began, ready, s", "farm", "farm made first"), rows)


def _runs() -> Iterator[str]:
    files = {file: json.loads(file.read_text()) for file in RESULTS.glob("*.json")}
    for file, run in sorted(files.items(), key=lambda item: str(item[1]["date"])):
        machine = run["machine"]
        yield from (f"### vLLM {run['vllm']}: {', '.join(run['scenarios'])}", "")
        results = f"[Results of each probe](gpu/{file.name})"
        yield from (f"Commit {run['commit']}, {run['date']}: `{run['command']}`. {results}", "")
        yield (
            f"{machine['gpu']} of {machine['memory_mib']:,} MiB, driver {machine['driver']}; {machine['cpu']}; "
            f"Python {machine['python']}, torch {machine['torch']}, CUDA {machine['cuda']}, Triton {machine['triton']}"
        )
        yield ""
        for tree, states in run["overlays"].items():
            yield f"- {tree}: {', '.join(f'{name} {state}' for name, state in states.items())}"
        yield ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]


if __name__ == "__main__":
    DOCUMENT.write_text(fresh(DOCUMENT.read_text()))

"""`python -m tests.validation.gpu.report`: write the tables of docs/validation.md from docs/gpu/*.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

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
    runs = list(read(sorted(RESULTS.glob("*.json"))))
    found = gather(runs)
    decoding = _by_release(found, {"decode steps": _decoding, "n-gram drafts": _drafts})
    blocks = {
        "gpu-claims": claims(verdicts(found)),
        "gpu-decoding": decoding,
        "gpu-starts": _by_release(found, {"starts": _starts}),
        "gpu-runs": (line for run in runs for line in _run(run)),
    }
    for name, lines in blocks.items():
        text = put(text, name, "".join(f"{line}\n" for line in lines))
    return text


def claims(verdicts: Iterable[Verdict]) -> list[str]:
    rows = ((v.claim.id, v.claim.says, v.release, v.state, v.figures) for v in verdicts)
    return _table(("claim", "says", "vLLM", "result", "measured"), rows)


def probes(run: Mapping[str, Any]) -> list[str]:
    rows = (
        (one["probe"], one["tree"], "; ".join(_found(one)), f"{one['s']} s" if "s" in one else "")
        for one in run["results"]
    )
    return _table(("probe", "tree", "found", "took"), rows)


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


def _run(run: Mapping[str, Any]) -> Iterator[str]:
    machine = run["machine"]
    yield from (f"### vLLM {run['vllm']}: {', '.join(run['scenarios'])}", "")
    yield from (f"Commit {run['commit']}, {run['date']}: `{run['command']}`", "")
    yield (
        f"{machine['gpu']} of {machine['memory_mib']:,} MiB, driver {machine['driver']}; {machine['cpu']}; "
        f"Python {machine['python']}, torch {machine['torch']}, CUDA {machine['cuda']}, Triton {machine['triton']}"
    )
    yield ""
    for tree, states in run["overlays"].items():
        yield f"- {tree}: {', '.join(f'{name} {state}' for name, state in states.items())}"
    yield from ("", *probes(run), "")


def _found(result: Mapping[str, Any]) -> Iterator[str]:
    yield from filter(None, map(_text, result["events"]))
    if "kv_tokens" in result:
        times = f", {result['concurrency']:.2f} times the longest request" if "concurrency" in result else ""
        yield f"KV cache of {result['kv_tokens']:,} tokens{times}"
    if result["error"]:
        yield f"**dies**: {result['error'][:300]}" if result["events"] or "s" in result else result["error"]


def _text(e: Mapping[str, Any]) -> str:
    """Render one event of a probe; "" if it is not for the table."""
    match e:
        case {"start_s": start}:
            ready = f" ({e['ready_s']} s after it was launched)" if "ready_s" in e else ""
            return f"started in {start} s{ready}, blocks of {e['block_size']}, {e['used_mib']:,} MiB in use"
        case {"prompt": prompt, "used_mib": used}:
            buffers = f", layers' buffers {e['layer_buffers_mib']:,}" if e["layer_buffers_mib"] else ""
            return (
                f"{prompt:,} tokens: {used:,} MiB in use, {e['reserved_mib']:,} reserved, "
                f"peak {e['peak_allocated_mib']:,} of tensors, workspace {e['workspace_mib']:,}{buffers}"
            )
        case {"peak_minus_budget_mib": peak, "start_minus_budget_mib": start}:
            return f"beside the budget {start:+,} MiB at start, {peak:+,} at the peak"
        case {"prefill": length, "tokens_per_s": rates}:
            return f"prefill of {length:,} at {middle(rates):,.0f} tokens/s"
        case {"batch": batch, "context": context, "tokens_per_s": rates}:
            return f"batch {batch} at {context:,}: {middle(rates):,.0f} tokens/s"
        case {"decode_batch": batch, "context": context, "tokens_per_s": rates}:
            return f"batch {batch} at {context:,}: {middle(rates):,.0f} tokens/s"
        case {"decode_batch": batch, "context": context, "busy_ms": busy}:
            return f"batch {batch} at {context:,}: GPU busy for {busy:.2f} ms a step"
        case {"compiled_while_serving": names}:
            return f"compiled after the start: {', '.join(names) or 'nothing'}"
        case {"requested": _}:
            names = ("weights", "activations", "non_torch", "graphs", "kv_cache", "requested")
            counted = (f"{name.replace('_', ' ')} {e[name] / (1 << 30):.2f}" for name in names)
            return f"GiB counted: {', '.join(counted)}"
        case {"extensions": _}:
            digest = f", digest {e['digest'][:12]}" if e["digest"] else ""
            held = ", receipt held" if e["held"] else ""
            return f"{e['modules']:,} modules of vLLM, {len(e['elsewhere'])} from elsewhere{digest}{held}"
        case {"tests": tests, "failed": failed, "skipped": skipped}:
            return f"{tests} tests, {failed} failed, {skipped} skipped"
        case {"runner": _, "asynchronous": asynchronous, "graphs": graphs}:
            return f"{'asynchronous' if asynchronous else 'synchronous'} scheduling, CUDA graphs {graphs}"
        case {"mismatches": wrong, "steps": steps, "rows": rows}:
            return f"{steps:,} steps, {wrong:,} of {rows:,} counts are another request's"
        case {"conversation": _, "cached": cached, "prompt": prompt}:
            return f"{cached:,} of {prompt:,} tokens cached"
        case {"repetition": part, "right": right, "ids": ids}:
            return f"{part}: {right} of {ids} tokens as constructed"
        case {"replayed": name, "part": part}:
            return (
                f"{name}, {part}: {e['tokens']:,} tokens differ by {e['mean']:.3f} in mean "
                f"(bias {e['bias']:+.3f}, largest {e['max']:.2f})"
            )
        case {"soak_s": seconds, "answers": answers, "asked": asked, "tokens": tokens}:
            return f"{answers:,} of {asked:,} answers, {tokens:,} tokens in {seconds} s"
        case {"answers_per_s": rates, "tokens_in_a_step": steps}:
            return f"{middle(rates):,.0f} tokens/s, {middle(steps):.2f} tokens of a request in a step"
        case {"turns": _, "prefill_per_s": prefill, "decode_per_s": decode}:
            return f"prefill {middle(prefill):,.0f}, decode {middle(decode):,.0f} tokens/s"
        case _:
            return ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]


if __name__ == "__main__":
    DOCUMENT.write_text(fresh(DOCUMENT.read_text()))

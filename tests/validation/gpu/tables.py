"""Results as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.validation.gpu import decode_checks, run_checks
from tests.validation.gpu.engines import DECODE, PATCHED
from tests.validation.gpu.evidence import Evidence, Verdict, middle


def claims(verdicts: Iterable[Verdict]) -> list[str]:
    """Render the table of claims."""
    rows = ((v.claim.id, v.claim.says, v.release, v.state, v.figures) for v in verdicts)
    return _table(("claim", "says", "vLLM", "result", "measured"), rows)


def probes(run: Mapping[str, Any]) -> list[str]:
    """Render the table of a run's probes and their results."""
    rows = (
        (one["probe"], one["tree"], "; ".join(_found(one)), f"{one['s']} s" if "s" in one else "")
        for one in run["results"]
    )
    return _table(("probe", "tree", "found", "took"), rows)


def decoding(here: Evidence) -> list[str]:
    """Render the speeds of decode steps.

    Raises:
        Missing, Unfit: `fast-decode` was not run, or not to its end.
    """
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


def drafts(here: Evidence) -> list[str]:
    """Render the speeds of answers with drafts.

    Raises:
        Missing, Unfit: `draft-speed` was not run, or not to its end.
    """
    slow, fast = (decode_checks.draft_speeds(here, tree) for tree in (PATCHED, DECODE))
    rows = []
    for count in fast:
        (found,) = here.events(DECODE, f"{count} drafts", "answers_per_s")
        rows.append((f"{count}", f"{slow[count]:,.0f}", f"{fast[count]:,.0f}", f"{fast[count] / slow[count]:.2f}",
                     f"{fast[count] / fast[0]:.2f}", f"{middle(found['tokens_in_a_step']):.2f}"))  # fmt: skip
    head = ("drafts", "slow form tokens/s", "fast form tokens/s", "to slow form", "to 0 drafts",
            "tokens of a request in a step")  # fmt: skip
    return _table(head, rows)


def starts(here: Evidence) -> list[str]:
    """Render the times of starts by `vpatch run`.

    Raises:
        Missing, Unfit: `run-start` was not run, or not to its end.
    """
    found = run_checks.starts(here)
    rows = (
        (f"{number}", *(f"{began:.2f}, {ready:.2f}" for began, ready in row))
        for number, row in enumerate(zip(*found.values(), strict=True), 1)
    )
    return _table(("round", "tiles: began, ready, s", "farm", "farm made first"), rows)


def _found(result: Mapping[str, Any]) -> Iterator[str]:
    for event in result["events"]:
        yield from _drafting(event)
        yield from _event(event)
    if "kv_tokens" in result:
        times = f", {result['concurrency']:.2f} times the longest request" if "concurrency" in result else ""
        yield f"KV cache of {result['kv_tokens']:,} tokens{times}"
    if result["error"]:
        yield f"**dies**: {result['error'][:300]}" if result["events"] or "s" in result else result["error"]


def _event(event: Mapping[str, Any]) -> Iterator[str]:
    if "start_s" in event:
        ready = f" ({event['ready_s']} s after it was launched)" if "ready_s" in event else ""
        yield (
            f"started in {event['start_s']} s{ready}, blocks of {event['block_size']}, {event['used_mib']:,} MiB in use"
        )
    elif "prompt" in event and "used_mib" in event:
        buffers = f", layers' buffers {event['layer_buffers_mib']:,}" if event["layer_buffers_mib"] else ""
        yield (
            f"{event['prompt']:,} tokens: {event['used_mib']:,} MiB in use, {event['reserved_mib']:,} reserved, "
            f"peak {event['peak_allocated_mib']:,} of tensors, workspace {event['workspace_mib']:,}{buffers}"
        )
    elif "peak_minus_budget_mib" in event:
        yield (
            f"beside the budget {event['start_minus_budget_mib']:+,} MiB at start, "
            f"{event['peak_minus_budget_mib']:+,} at the peak"
        )
    elif "prefill" in event:
        yield f"prefill of {event['prefill']:,} at {middle(event['tokens_per_s']):,.0f} tokens/s"
    elif "batch" in event and "tokens_per_s" in event:
        yield f"batch {event['batch']} at {event['context']:,}: {middle(event['tokens_per_s']):,.0f} tokens/s"
    elif "decode_batch" in event:
        speed = f"{middle(event['tokens_per_s']):,.0f} tokens/s" if "tokens_per_s" in event else ""
        busy = f"GPU busy for {event['busy_ms']:.2f} ms a step" if "busy_ms" in event else ""
        yield f"batch {event['decode_batch']} at {event['context']:,}: {speed or busy}"
    elif "compiled_while_serving" in event:
        yield f"compiled after the start: {', '.join(event['compiled_while_serving']) or 'nothing'}"
    elif "requested" in event:
        names = ("weights", "activations", "non_torch", "graphs", "kv_cache", "requested")
        counted = (f"{name.replace('_', ' ')} {event[name] / (1 << 30):.2f}" for name in names)
        yield f"GiB counted: {', '.join(counted)}"
    elif "extensions" in event:
        digest = f", digest {event['digest'][:12]}" if event["digest"] else ""
        held = ", receipt held" if event["held"] else ""
        yield f"{event['modules']:,} modules of vLLM, {len(event['elsewhere'])} from elsewhere{digest}{held}"
    elif "tests" in event:
        yield f"{event['tests']} tests, {event['failed']} failed, {event['skipped']} skipped"


def _drafting(event: Mapping[str, Any]) -> Iterator[str]:
    """Render an event of drafting.STEPS."""
    if "runner" in event:
        asynchronous = "asynchronous" if event["asynchronous"] else "synchronous"
        yield f"{asynchronous} scheduling, CUDA graphs {event['graphs']}"
    elif "mismatches" in event:
        yield f"{event['steps']:,} steps, {event['mismatches']:,} of {event['rows']:,} counts are another request's"
    elif "conversation" in event:
        yield f"{event['cached']:,} of {event['prompt']:,} tokens cached"
    elif "repetition" in event:
        yield f"{event['repetition']}: {event['right']} of {event['ids']} tokens as constructed"
    elif "replayed" in event:
        yield (
            f"{event['replayed']}, {event['part']}: {event['tokens']:,} tokens differ by {event['mean']:.3f} in mean "
            f"(bias {event['bias']:+.3f}, largest {event['max']:.2f})"
        )
    elif "soak_s" in event:
        yield f"{event['answers']:,} of {event['asked']:,} answers, {event['tokens']:,} tokens in {event['soak_s']} s"
    elif "answers_per_s" in event:
        yield (
            f"{middle(event['answers_per_s']):,.0f} tokens/s, {middle(event['tokens_in_a_step']):.2f} tokens of a "
            "request in a step"
        )
    elif "turns" in event:
        yield f"prefill {middle(event['prefill_per_s']):,.0f}, decode {middle(event['decode_per_s']):,.0f} tokens/s"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]

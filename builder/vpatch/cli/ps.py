"""The command that lists vLLM's processes, and what each claims to run; and the check of one claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from vpatch.cli.options import examples, reported
from vpatch.cli.output import Report
from vpatch.cli.wording import counted, listed
from vpatch.processes.servers import Server, server, servers, wrong

_SHORT = 12  # digits of a digest that people see


@click.command("ps", epilog=examples("ps", "ps --json | jq '.processes[] | select(.digest == null)'"))
@reported
def ps_command() -> Report:
    """List running vLLM processes, with the overlays that each claims.

    A process of `vpatch run` holds a receipt, and so does one of a vLLM with the overlay `receipt`. Its user could have
    written another one: `vpatch verify --pid PID` checks a claim. For a process without a receipt, vpatch shows the
    digest that its environment asks for, if there is one. Linux only.
    """
    found = servers()
    seen, closed = [one for one in found if not one.closed], [one for one in found if one.closed]
    extra = {"processes": [_as_json(one) for one in seen]}
    return Report(
        "ps", lines=[_line(one) for one in seen], extra=extra, notes=_notes(closed), outcome=_outcome(seen, closed)
    )


def proof(number: int) -> Report:
    """Return the report of `vpatch verify --pid`.

    Raises:
        UnknownName, Failure: as `vpatch.processes.servers.server`.
    """
    found = server(number)
    problems = wrong(found)
    extra = {"processes": [_as_json(found) | {"checked": not problems}]}
    if problems or found.receipt is None:
        outcome = f"Not verified: {counted(len(problems), 'problem')}."
        return Report("verify", problems=problems, lines=(), extra=extra, outcome=outcome)
    named = found.asked or found.receipt.farm is None
    notes = [] if named else ["Its environment does not name a digest, or its title has overwritten it."]
    claim = f"process {number} claims {_overlays(found.receipt.overlays)} (digest {found.receipt.digest[:_SHORT]})"
    outcome = f"Verified: {claim}, and its files are as it claims."
    return Report("verify", lines=(), extra=extra, notes=notes, outcome=outcome)


def _line(one: Server) -> str:
    """Return the number, the digest, the command and the overlays."""
    if one.receipt:
        what, then = one.receipt.digest[:_SHORT], f"claims {_overlays(one.receipt.overlays)}"
    else:
        what, then = "no receipt", f"started for {one.asked[:_SHORT]}" if one.asked else ""
    return "  ".join(filter(None, (f"{one.process.id:>7}", f"{what:<{_SHORT}}", one.process.shown, then)))


def _overlays(names: tuple[str, ...]) -> str:
    return f"{counted(len(names), 'overlay')}: {listed(names)}" if names else "no overlay"


def _as_json(one: Server) -> dict[str, Any]:
    return {
        "pid": one.process.id,
        "digest": one.receipt and one.receipt.digest,
        "overlays": list(one.receipt.overlays if one.receipt else ()),
        "asked": one.asked,
        "command": one.process.shown,
        "checked": None,
    }


def _notes(closed: Sequence[Server]) -> list[str]:
    why = dict.fromkeys(one.closed for one in closed)
    named = {each: [f"{one.process.id} ({one.process.shown})" for one in closed if one.closed == each] for each in why}
    return [f"Cannot read {listed(them)}: {each}." for each, them in named.items()]


def _outcome(seen: Sequence[Server], closed: Sequence[Server]) -> str:
    number, without = len(seen), sum(one.receipt is None for one in seen)
    if not number:
        return "No vLLM process that vpatch can read." if closed else "No vLLM process runs on this machine."
    what = "1 vLLM process" if number == 1 else f"{number} vLLM processes"
    if without:
        return f"{what}, {without} without a receipt."
    return f"{what}, with a receipt each. To check what one claims: `vpatch verify --pid PID`"

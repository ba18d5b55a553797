"""The command that lists vLLM's processes, and what each claims to run; and the check of one claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from vpatch.cli.options import examples, reported
from vpatch.cli.output import Report, TextReport
from vpatch.cli.wording import command, counted, listed
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
    unread: dict[str, list[str]] = {}
    for one in closed:
        unread.setdefault(one.closed, []).append(f"{one.process.id} ({one.process.shown})")
    notes = [f"Cannot read {listed(names)}: {why}." for why, names in unread.items()]
    lines, outcome = [_line(one) for one in seen], _outcome(seen, closed)
    return TextReport(object=_as_object(seen), lines=lines, notes=notes, outcome=outcome)


def proof(number: int) -> Report:
    """Return the report of `vpatch verify --pid`.

    Raises:
        UnknownName, Failure: as `vpatch.processes.servers.server`.
    """
    found = server(number)
    problems = wrong(found)
    if problems or found.receipt is None:
        outcome = f"Not verified: {counted(len(problems), 'problem')}."
        return TextReport(object=_as_object([found], checked=not problems), problems=problems, outcome=outcome)
    named = found.asked or found.receipt.farm is None
    notes = [] if named else ["Its environment does not name a digest, or its title has overwritten it."]
    claim = f"process {number} claims {_overlays(found.receipt.overlays)} (digest {found.receipt.digest[:_SHORT]})"
    outcome = f"Verified: {claim}, and its files are as it claims."
    return TextReport(object=_as_object([found], checked=True), notes=notes, outcome=outcome)


def _line(one: Server) -> str:
    """Return the number, the digest, the command and the overlays."""
    if one.receipt:
        what, then = one.receipt.digest[:_SHORT], f"claims {_overlays(one.receipt.overlays)}"
    else:
        what, then = "no receipt", f"started for {one.asked[:_SHORT]}" if one.asked else ""
    return "  ".join(filter(None, (f"{one.process.id:>7}", f"{what:<{_SHORT}}", one.process.shown, then)))


def _overlays(names: tuple[str, ...]) -> str:
    return f"{counted(len(names), 'overlay')}: {listed(names)}" if names else "no overlay"


def _as_object(found: Sequence[Server], *, checked: bool | None = None) -> dict[str, Any]:
    """Return what each process claims, and whether the claim is true; None if it was not checked."""
    return {
        "processes": [
            {
                "pid": one.process.id,
                "digest": one.receipt and one.receipt.digest,
                "overlays": list(one.receipt.overlays if one.receipt else ()),
                "asked": one.asked,
                "command": one.process.shown,
                "checked": checked,
            }
            for one in found
        ]
    }


def _outcome(seen: Sequence[Server], closed: Sequence[Server]) -> str:
    number, without = len(seen), sum(one.receipt is None for one in seen)
    if not number:
        return "No vLLM process that vpatch can read." if closed else "No vLLM process runs on this machine."
    what = "1 vLLM process" if number == 1 else f"{number} vLLM processes"
    if without:
        return f"{what}, {without} without a receipt."
    return f"{what}, with a receipt each. To check what one claims: {command('verify', '--pid', seen[0].process.id)}"

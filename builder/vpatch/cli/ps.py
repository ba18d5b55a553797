"""The command that lists vLLM's processes, and what each proves that it runs; and the proof of one of them."""

from __future__ import annotations

from typing import Any

import click

from vpatch.cli.options import examples, reported
from vpatch.cli.output import Report
from vpatch.cli.wording import counted, listed
from vpatch.processes.servers import Server, Servers, proved, servers

_SHORT = 12  # digits of a digest that people see


@click.command("ps", epilog=examples("ps", "ps --json | jq '.processes[] | select(.digest == null)'"))
@reported
def ps_command() -> Report:
    """List running vLLM processes, with the overlays that each proves.

    A process of `vpatch run` holds a receipt, and so does one of a vLLM with the overlay `receipt`. For one without,
    vpatch shows the digest that its environment asks for, if there is one. Linux only.
    """
    found = servers()
    lines = [_line(one) for one in found.seen]
    extra = {"processes": [_as_json(one) for one in found.seen]}
    return Report("ps", lines=lines, extra=extra, notes=_notes(found), outcome=_outcome(found))


def proof(number: int) -> Report:
    """Return the report of `vpatch verify --pid`.

    Raises:
        UnknownName, Failure: as `vpatch.processes.servers.proved`.
    """
    found, problems = proved(number)
    extra = {"processes": [_as_json(found)]}
    if problems or found.receipt is None:
        said = f"Not verified: {counted(len(problems), 'problem')}."
        return Report("verify", problems=problems, lines=(), extra=extra, outcome=said)
    told = found.asked or not found.receipt.is_of_farm
    notes = [] if told else ["Its environment does not name a digest, or its title has overwritten it."]
    said = (
        f"Verified: process {number} runs {_overlays(found.receipt.overlays)} (digest {found.receipt.digest[:_SHORT]})."
    )
    return Report("verify", lines=(), extra=extra, notes=notes, outcome=said)


def _line(server: Server) -> str:
    """Return the number, the digest, the command and the overlays."""
    if server.receipt:
        what, then = server.receipt.digest[:_SHORT], _overlays(server.receipt.overlays)
    else:
        what, then = "no receipt", f"started for {server.asked[:_SHORT]}" if server.asked else ""
    return "  ".join(filter(None, (f"{server.process.id:>7}", f"{what:<{_SHORT}}", server.process.shown, then)))


def _overlays(names: tuple[str, ...]) -> str:
    return f"{counted(len(names), 'overlay')}: {listed(names)}" if names else "no overlay"


def _as_json(server: Server) -> dict[str, Any]:
    return {
        "pid": server.process.id,
        "digest": server.receipt and server.receipt.digest,
        "overlays": list(server.receipt.overlays if server.receipt else ()),
        "asked": server.asked,
        "command": server.process.shown,
    }


def _notes(found: Servers) -> list[str]:
    if not found.closed:
        return []
    them = listed([f"{one.id} ({one.shown})" for one in found.closed])
    what = "belongs to another user" if len(found.closed) == 1 else "belong to other users"
    return [f"{them} {what}: only that user and root can read what it proves."]


def _outcome(found: Servers) -> str:
    number, without = len(found.seen), sum(one.receipt is None for one in found.seen)
    if not number:
        return "No vLLM process that vpatch can read." if found.closed else "No vLLM process runs on this machine."
    what = "1 vLLM process" if number == 1 else f"{number} vLLM processes"
    return f"{what}, {without} without a receipt." if without else f"{what}, with a receipt each."

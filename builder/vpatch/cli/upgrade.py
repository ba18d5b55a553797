"""The report of `matrix --from A --to B`: what an upgrade brings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vpatch.cli.options import source_words
from vpatch.cli.output import Report
from vpatch.cli.wording import Line, command, counted, it_them, listed, table
from vpatch.errors import Problem
from vpatch.matrix.upgrade import Outlook, Prospect, outlooks
from vpatch.matrix.verdicts import Row, parsed_version


@dataclass(frozen=True, kw_only=True)
class UpgradeReport(Report):
    """What the upgrade to another vLLM does to each overlay."""

    start: str
    end: str
    found: Sequence[Outlook]

    def fields(self) -> Mapping[str, Any]:
        """Return both vLLMs and the overlays."""
        return {"from": self.start, "to": self.end, "upgrade": list(map(asdict, self.found))}

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield a line for each overlay."""
        yield from table([(f"  {one.overlay}", one.prospect, one.because) for one in self.found], width)


def upgrade_report(
    rows: Sequence[Row],
    start: str,
    end: str,
    *,
    patches: Collection[str] = (),
    written: Collection[str] = (),
    opt_in: Collection[str] = (),
) -> Report:
    """Compare the rows of two vLLMs.

    Args:
        rows: the rows.
        start: the vLLM before.
        end: the vLLM after.
        patches: the ids of the overlays that are the user's patch files.
        written: the ids in the project's file.
        opt_in: the ids of the overlays that `vpatch apply` does not apply by itself.
    """
    before, after = (
        next(row for row in rows if parsed_version(row.name) == parsed_version(name)) for name in (start, end)
    )
    unread = [problem for row in (before, after) if row.tree is None for problem in row.problems]
    own = {*patches, *written}
    found = tuple(outlooks(before, after, own, opt_in))
    drifting = [one for one in found if one.prospect is Prospect.DRIFTS]
    drop = [name for name in _merged(found) if name in own]
    todo = [f"Merged upstream, so drop: {listed(drop)}."] if drop else []
    if drifting:
        first = next((one.overlay for one in drifting if one.overlay in patches), "")
        rebase = command("rebase", first, "--onto", end, *source_words())
        show = command("show", drifting[0].overlay, "--vllm", end)
        todo.append(f"To adapt {first}: {rebase}." if first else f"What drifts: {show}.")
    drifts = [Problem(one.prospect, f"{end}: {one.overlay}", one.because) for one in drifting]
    rest = any(one.prospect in {Prospect.STAYS, Prospect.NEEDED} for one in found)
    done = f"{command('apply')} after the upgrade does the rest" if rest else counted(len(found), "overlay")
    outcome = " ".join(todo) or f"Nothing to adapt: {done}."
    news = _news(found, own)
    return UpgradeReport(start=start, end=end, found=found, problems=unread or drifts, offer=news, outcome=outcome)


def _merged(found: Sequence[Outlook]) -> list[str]:
    return [one.overlay for one in found if one.prospect is Prospect.MERGED and one.before is not one.after]


def _news(found: Sequence[Outlook], own: Collection[str]) -> str:
    """Return what `vpatch apply` does by itself after the upgrade; "" if it does the same as before."""
    apply, said = command("apply"), []
    if merged := [name for name in _merged(found) if name not in own]:
        said.append(f"Merged upstream: {listed(merged)}; {apply} leaves {it_them(len(merged))} out.")
    if needed := [one.overlay for one in found if one.prospect is Prospect.NEEDED]:
        said.append(f"Newly needed: {listed(needed)}; {apply} applies {it_them(len(needed))}.")
    return " ".join(said)

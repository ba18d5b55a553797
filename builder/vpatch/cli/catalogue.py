"""The commands that tell of overlays: list, show."""

from __future__ import annotations

import click

from vpatch.cli.options import complete_overlay, reported
from vpatch.cli.output import Report
from vpatch.core.catalogue import discover, select
from vpatch.core.overlay import Catalogued


def _summary(item: Catalogued) -> dict[str, object]:
    overlay = item.overlay
    return {
        "id": item.id,
        "summary": overlay.summary,
        "opt_in": overlay.opt_in,
        "upstream": list(overlay.upstream),
        "origin": item.origin,
    }


@click.command("list")
@reported
def list_command() -> Report:
    """List the installed overlays."""
    installed = discover()
    lines = [f"{i.id}{' (opt-in)' if i.overlay.opt_in else ''}: {i.overlay.summary}" for i in installed]
    return Report("list", extra={"overlays": [_summary(item) for item in installed]}, lines=lines)


@click.command("show")
@click.argument("overlay", shell_complete=complete_overlay)
@reported
def show_command(overlay: str) -> Report:
    """Tell one overlay in full: why, upstream links, what it does on which release, its parts."""
    (item,) = select(discover(), (overlay,))
    parts = [
        {
            "name": part.name,
            "shapes": [{"name": s.name, "files": sorted({e.file for e in s.edits})} for s in part.shapes],
        }
        for part in item.overlay.parts
    ]
    links = [f"https://github.com/{link.replace('#', '/pull/')}" for link in item.overlay.upstream]
    lines = [
        f"{item.id}{' (opt-in)' if item.overlay.opt_in else ''}: {item.overlay.summary}",
        f"from {item.origin}",
        "",
        *item.why.split("\n"),
        "",
        *links,
        "",
        *(f"vLLM {releases}: {what}" for releases, what in item.overlay.releases.items()),
        *(
            f"part {part.name}, from {shape.name}: {file}"
            for part in item.overlay.parts
            for shape in part.shapes
            for file in sorted({edit.file for edit in shape.edits})
        ),
    ]
    detail = _summary(item) | {"why": item.why, "links": links, "releases": dict(item.overlay.releases), "parts": parts}
    return Report("show", extra={"overlays": [detail]}, lines=lines)

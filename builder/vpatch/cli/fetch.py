"""The command `vpatch fetch`: write a pristine release to disk."""

from __future__ import annotations

from pathlib import Path

import click

from vpatch.cli.options import reported
from vpatch.cli.output import Report
from vpatch.cli.progress import bar


@click.command("fetch")
@click.argument("version")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, readable=False))
@reported
def fetch_command(version: str, folder: Path) -> Report:
    """Put the pristine Python sources of vLLM VERSION into DIR, laid out as in site-packages.

    Only these files are read from the package index, not the whole wheel; each is checked against the wheel's RECORD.
    The index is the one that pip or uv is set to use.
    """
    from vpatch.release.fetch import fetch

    with bar(f"vllm {version}") as progress:
        got = fetch(version, folder, progress=progress)
    read, whole = got.bytes_read / 1e6, got.wheel_bytes / 1e6
    return Report(
        "fetch",
        str(got.tree),
        got.version,
        extra={"wheel": got.wheel, "files": got.files, "bytes_read": got.bytes_read, "wheel_bytes": got.wheel_bytes},
        lines=[f"vllm {got.version}: {got.files} files in {got.tree} ({read:.1f} of {whole:.0f} MB read)"],
    )

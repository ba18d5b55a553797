"""The commands that only look at a tree: status, diff, verify."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from vpatch.api import unknown_marks
from vpatch.cli.options import chosen, not_applicable, reported, site_of, tree_options
from vpatch.cli.output import Report
from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine
from vpatch.errors import Failure
from vpatch.tree.backup import originals
from vpatch.tree.locate import is_checkout, locate


@click.command("status")
@tree_options
@reported
def status_command(tree: Path | None, python: Path | None, ids: tuple[str, ...]) -> Report:
    """Say what TREE is to every overlay. Writes nothing."""
    site, overlays = site_of(tree, python), chosen(ids)
    verdicts = Engine(overlays).status(site.read)
    problems = [p for v in verdicts for p in v.problems] + not_applicable(verdicts, ids, str(site.root))
    return Report("status", str(site.root), site.version, verdicts, problems=problems)


@click.command("diff")
@tree_options
@reported
def diff_command(tree: Path | None, python: Path | None, ids: tuple[str, ...]) -> Report:
    """Print the unified diff that `apply` would make. Writes nothing."""
    site, overlays = site_of(tree, python), chosen(ids)
    changeset = Engine(overlays).plan(site.read)
    lines = [line for file, new in changeset.files.items() for line in _diff(file, site.read(file), new)]
    problems = [*changeset.problems, *not_applicable(changeset.before, ids, str(site.root))]
    extra = {"diff": "".join(f"{line}\n" for line in lines), "files": list(changeset.files)}
    # A diff is for `patch` and pagers: people see no verdicts.
    about = ("diff", str(site.root), site.version, changeset.before)
    return Report(*about, problems=problems, extra=extra, lines=lines, exact=True)


def _diff(file: str, old: bytes | None, new: bytes) -> list[str]:
    import difflib

    source = f"a/{file}" if old is not None else "/dev/null"
    found: list[str] = []
    for line in difflib.unified_diff(_lines(old or b""), _lines(new), source, f"b/{file}"):
        found += [line[:-1]] if line.endswith("\n") else [line, "\\ No newline at end of file"]
    return found


def _lines(data: bytes) -> list[str]:
    """Split where `patch` does, and give back the same bytes: no encoding, no other newline."""
    *lines, last = data.decode("utf-8", "surrogateescape").split("\n")
    return [f"{line}\n" for line in lines] + ([last] if last else [])


@click.command("verify")
@tree_options
@reported
def verify_command(tree: Path | None, python: Path | None, ids: tuple[str, ...]) -> Report:
    """Prove that what is applied is whole.

    Postconditions hold, the names in inserted code are bound, nothing overrides it, files compile, RECORD is true, no
    stale bytecode. With --python, that interpreter would import exactly these files and, where it can import them, the
    changed functions are the ones that it gets.
    """
    from vpatch.tree.verify import verify

    site = locate(tree, python)
    installed = discover()
    found = verify(site, chosen(ids) if ids else installed, asked=bool(ids), python=python)
    problems = list(found.problems)
    with suppress(Failure):  # `verify` has reported an unreadable provenance
        problems += [] if is_checkout(site) else unknown_marks(site.read, installed, originals(site))
    return Report("verify", str(site.root), site.version, found.verdicts, problems=problems, notes=found.notes)

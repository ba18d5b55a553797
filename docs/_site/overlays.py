"""A hook of the site: a page for each of vpatch's overlays, and one by which users find theirs from what they see."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from packaging.specifiers import SpecifierSet
from vpatch.cli.show import added, diffs
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import PartChange, State
from vpatch.errors import Failure
from vpatch.matrix.reading import ReleaseReads
from vpatch.matrix.rendering import markdown
from vpatch.matrix.verdicts import Matrix, Row, read_rows

OURS = tuple(item for item in discover() if item.origin.startswith("vpatch "))
ERROR = re.compile(r"\w+Error: ")
REFERENCE = re.compile(r"(?<![\w/.#-])(?:([\w.-]+/[\w.-]+)#(\d+)|#(\d{4,}))\b")


class Section(NamedTuple):
    """A section of a document."""

    title: str
    anchor: str
    text: str


class Span(NamedTuple):
    """Neighboring releases with a common state, and its reason."""

    releases: str
    state: State
    why: str


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the overlays' pages to their section of the navigation."""
    (section,) = (entry["Overlays"] for entry in config.nav or () if "Overlays" in entry)
    section += [{item.id: f"overlays/{item.id}.md"} for item in OURS]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages."""
    docs = Path(config.docs_dir)
    matrix = Matrix(OURS, read_rows(docs / "matrix.json"))
    sections = tuple(sections_of((docs / "validation.md").read_text("utf-8")))
    templates = Environment(  # noqa: S701 - of Markdown, from texts of this repository
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters |= {"shown": shown, "linked": linked, "escaped": escaped, "diffs": diffs, "added": added}

    def add(name: str, template: str, **values: object) -> None:
        content = templates.get_template(template).render(values)
        files.append(File.generated(config, f"overlays/{name}.md", content=content))

    spans = {item.id: tuple(spans_of(item, matrix.rows)) for item in OURS}
    pending = {item.id: tuple(pending_on(item, matrix.rows)) for item in OURS}
    add("index", "overlays.md.j2", overlays=OURS, pending=pending, matrix=markdown(matrix))
    for item in OURS:
        applied = re.compile(rf"(?<![\w-])(`{item.id}`|{item.id} applied)")
        runs = [section for section in sections if applied.search(section.text)]
        module = item.id.replace("-", "_")
        sources = f"{config.repo_url}/blob/main"
        about = {"spans": spans[item.id], "runs": runs, "module": module, "sources": sources}
        newest = [row.name for row in matrix.rows if state_of(item, row) is State.PENDING][-1]
        add(item.id, "overlay.md.j2", item=item, **about, vllm=newest, changes=changes(item.id, newest))
    return files


@cache  # `mkdocs serve` builds often
def changes(overlay: str, release: str) -> tuple[PartChange, ...]:
    """Compute what the parts of an overlay change in a release.

    vLLM's code is read from the package index, since none of it is in this repository. Without it there is no site:
    a page that lacks what it is for would be published unseen.
    """
    (item,) = select(OURS, (overlay,))
    try:
        return Engine([item]).parts(reads_of(release).read, item)
    except Failure as failure:
        raise PluginError(f"vLLM {release}, of which a page shows the changes: {failure}") from failure


@cache
def reads_of(release: str) -> ReleaseReads:
    """Read the files of a release that any overlay names."""
    return ReleaseReads.opened(release, Engine(OURS).files)


def sections_of(text: str) -> Iterator[Section]:
    """Yield the sections of a document, with their anchors on the site."""
    _, *pieces = re.split(r"^##+ (.*)\n", text, flags=re.MULTILINE)
    for title, body in zip(pieces[::2], pieces[1::2], strict=True):
        yield Section(title, slugify(title, "-"), body)


def spans_of(item: Catalogued, rows: tuple[Row, ...]) -> Iterator[Span]:
    """Yield the states of an overlay: as recorded in the matrix, with the reasons that the overlay declares."""

    def facts(row: Row) -> tuple[State, str]:
        (declared,) = (what for span, what in item.overlay.releases.items() if SpecifierSet(span).contains(row.name))
        return state_of(item, row), declared.partition(": ")[2]

    for (state, why), group in groupby(rows, facts):
        yield Span(named(group), state, why)


def pending_on(item: Catalogued, rows: tuple[Row, ...]) -> Iterator[str]:
    """Yield the ranges of releases that need an overlay."""
    for state, group in groupby(rows, partial(state_of, item)):
        if state is State.PENDING:
            yield named(group)


def state_of(item: Catalogued, row: Row) -> State:
    """Return the recorded state of an overlay on a release."""
    (state,) = (cell.verdict.state for cell in row.cells if cell.verdict.id == item.id)
    return state


def named(rows: Iterable[Row]) -> str:
    """Name neighboring releases by the first and the last."""
    first, *others = (row.name for row in rows)
    return f"{first} to {others[-1]}" if others else first


def shown(symptom: str) -> str:
    """Format an error message as code."""
    return f"`{symptom}`" if ERROR.match(symptom) else symptom.replace("<", "&lt;")


def escaped(text: str) -> str:
    """Escape what Markdown would read as markup in a reason, except for code in backticks."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"[*_<\[]", r"\\\g<0>", piece) for piece in pieces[::2]]
    return "`".join(pieces)


def linked(text: str) -> str:
    """Link pull requests and issues: `owner/repository#1`, and `#1234` of vLLM."""

    def link(found: re.Match[str]) -> str:
        repository, number = found[1] or "vllm-project/vllm", found[2] or found[3]
        return f"[{found[0]}](https://github.com/{repository}/pull/{number})"

    return REFERENCE.sub(link, text)

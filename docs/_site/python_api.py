"""A hook of the site: the reference of what overlays and programs import, which mkdocstrings makes of the sources."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


class Section(NamedTuple):
    """Names of a module that belong together.

    Attributes:
        title: the heading.
        module: where users import the names from.
        names: separated by spaces.
        about: what they have in common, in Markdown.
        alone: whether their methods are the engine's business, and not shown.
    """

    title: str
    module: str
    names: str
    about: str
    alone: bool = False


SECTIONS = (
    Section(
        "What an overlay is",
        "vpatch",
        "Overlay Part Shape Edits Probe probe Use Need",
        "A module of the package that the entry point `vpatch.overlays` names has one variable `overlay`.",
    ),
    Section(
        "Places",
        "vpatch",
        "File Block Folder Companion",
        "Where an overlay looks. The methods return edits and predicates, and read no file.",
    ),
    Section(
        "Edits",
        "vpatch",
        "Patch AddFunction AddFile EnsureImport",
        "What the methods of `File`, `Block` and `Companion` return. [A hunk](writing-overlays.md#a-hunk) has signs.",
        alone=True,
    ),
    Section(
        "Predicates",
        "vpatch",
        "Predicate Contains Defines Takes Sets Lists Imports HasFile HasFolder All AnyOf Not Unclear",
        "Questions to a tree, answered from its bytes alone: yes, no or unknown. `a & b`, `a | b` and `~a` combine "
        'them. `a.means("words")` adds what users read if it holds: "this vLLM has no TurboQuant KV cache".',
        alone=True,
    ),
    Section(
        "Tests",
        "vpatch.testing",
        "Case check patches release State",
        "For pytest: cases of an overlay, or of patch files, on real releases.",
    ),
    Section(
        "Verbs",
        "vpatch",
        "status diff apply revert verify patches Result Diff Changed Failure Refused Problem",
        "For programs: the commands of the same names, [from Python](python.md).",
    ),
)

ALONE = ("    options:", "      members: false", "      inherited_members: false")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the page."""
    content = "\n".join(page(Path(config.config_file_path).parent, f"{config.repo_url}/blob/main"))
    files.append(File.generated(config, "python-api.md", content=content))
    return files


def page(root: Path, address: str) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from ("# Python API", "", "What you import in an overlay, in its tests, and in a program that patches vLLM.")
    yield from ("[Write an overlay](writing-overlays.md) explains the words by an example.", "")
    for section in SECTIONS:
        links = (f"[`{file}`]({address}/{file})" for file in sources(section, root))
        yield from (f"## {section.title}", "", f"{section.about} Source: {', '.join(links)}.", "")
        for name in section.names.split():
            yield from (f"::: {section.module}.{name}", *ALONE * section.alone, "")


def sources(section: Section, root: Path) -> Iterator[str]:
    """Yield the files that define the names of a section, relative to the repository."""
    home = import_module(section.module)
    modules = (getattr(getattr(home, name), "__module__", None) for name in section.names.split())
    for module in dict.fromkeys(filter(None, modules)):
        yield Path(str(sys.modules[module].__file__)).relative_to(root).as_posix()

"""The documentation as a site: it builds, loads nothing from elsewhere, and has what overlays and commands say."""

from __future__ import annotations

import json
import re
from functools import partial
from html import unescape
from itertools import groupby
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import click
import pytest
import vpatch
import vpatch.testing
from ruamel.yaml import YAML
from vpatch.cli.main import program
from vpatch.core.catalogue import discover
from vpatch.core.overlay import Catalogued

from tests.docs.conftest import REPOSITORY, Page, mkdocs, read
from tests.docs.test_python_api import NAMES
from tests.paths import ROOT, copy_sources
from tests.releases import FACTS, RELEASES, fact, pending

pytestmark = pytest.mark.deep  # the site takes ten seconds to build

OVERLAYS = [item for item in discover() if item.id in FACTS]
BESIDE = re.compile(rf"{re.escape(REPOSITORY)}/(blob|tree)/main/([^#]+)")


def plain(text: str) -> str:
    """Remove what a page shows in another way: spaces, the backticks of code, and the hyphens of a list."""
    return re.sub(r"(?m)^- |[\s`]+", "", text)


def test_every_page_loads_only_files_of_the_site(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    loaded = [(path, address) for path in pages for address in Page(path).loads]
    for path, address in loaded:
        target = urlsplit(urljoin(f"https://here/{path.relative_to(site.parent)}", address))
        assert target.netloc == "here", f"{path.name} loads {address}"
        assert (site.parent / target.path[1:]).is_file(), f"{path.name} loads {address}"
    for sheet in sorted(site.rglob("*.css")):
        for address in re.findall(r"url\(\s*[\"']?([^\"')]+)|@import\s*[\"']([^\"']+)", sheet.read_text()):
            assert not re.match(r"(https?:)?//", "".join(address)), f"{sheet.name} loads {address}"

    assert len(pages) > 15
    assert len(loaded) > 5 * len(pages)


def test_links_to_other_files_of_the_repository_lead_there(site: Path) -> None:
    found = [
        match.groups() for path in site.rglob("*.html") for one in Page(path).links if (match := BESIDE.match(one))
    ]

    for kind, name in found:
        assert (ROOT / name).is_dir() if kind == "tree" else (ROOT / name).is_file(), name
    assert {f"patches/vpatch_overlays/{item.id.replace('-', '_')}.py" for item in OVERLAYS} <= {
        name for _, name in found
    }
    assert {"../overlays/", "../command-line/"} <= {*read(site, "getting-started").links}, "as on the site"


def test_no_file_but_pages_is_published(site: Path) -> None:
    others = {path.suffix for path in site.rglob("*") if path.is_file() and "assets" not in path.parts}

    assert others == {".html", ".css", ".js", ".json", ".png", ".svg", ".xml", ".gz"}
    assert [path.name for path in site.rglob("*.json")] == ["search_index.json"]


@pytest.mark.deep
def test_a_broken_link_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a copy of the documents, with a page of broken links only, and of the sources whose docstrings are a page."""
    broken = ("missing.md", "plan.md#missing", "../builder/missing.py", "/plan.md")
    copy_sources(tmp_path, ("mkdocs.yml", "pyproject.toml", "docs", "builder", "patches"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/builder:{tmp_path}/patches")
    (tmp_path / "docs/mutants.md").write_text("\n".join(f"[a]({link})" for link in broken))
    ran = mkdocs(tmp_path / "mkdocs.yml", tmp_path / "site")

    assert ran.returncode == 1
    warned = re.findall(r"WARNING -  Doc file 'mutants.md' contains an? (?:absolute )?link '(.*?)'", ran.stderr)
    assert sorted(warned) == sorted(broken)


def test_symptoms_are_found_in_the_index_and_by_the_search(site: Path) -> None:
    search = json.loads((site / "search/search_index.json").read_text())["docs"]
    texts = [plain(unescape(one["text"])) for one in search if one["location"].startswith("overlays/")]
    found = (site / "overlays/index.html").read_text().partition('id="all-overlays"')[0]
    rows = {plain(unescape(re.sub(r"<[^>]+>", "", row))) for row in re.findall(r"<tr>(.*?)</tr>", found, re.DOTALL)}

    for item in OVERLAYS:
        runs = [[*run] for state, run in groupby(RELEASES, partial(fact, item.id)) if state == "pending"]
        needed = ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else run[0] for run in runs)
        assert any(plain(item.overlay.symptoms[0]) in text for text in texts)
        for symptom in item.overlay.symptoms:
            assert plain(f"{symptom}{item.id}{needed}") in rows
    assert len(rows) == sum(len(item.overlay.symptoms) for item in OVERLAYS) + 1


@pytest.mark.parametrize("item", OVERLAYS, ids=lambda item: item.id)
def test_the_page_of_an_overlay(site: Path, item: Catalogued) -> None:
    page, overlay = read(site, f"overlays/{item.id}"), item.overlay
    html = (site / f"overlays/{item.id}/index.html").read_text()
    text = plain(page.text)

    parts = [overlay.summary, item.why, *overlay.symptoms, f"vpatch revert --overlay {item.id}"]
    parts += [file for part in overlay.parts for shape in part.shapes for file in shape.files]
    parts += [f"{what.partition(': ')[0]}{what.partition(': ')[2]}" for what in overlay.releases.values()]
    for words in parts:
        assert plain(words) in text, words
    assert ("opt-in: vpatch apply applies it only if you name it" in page.text) is overlay.opt_in
    assert f"Changes in vLLM {pending(item.id)[-1]}" in page.text
    for part in overlay.parts:
        assert f'>{part.name}<a class="headerlink"' in html
    added = [
        plain(unescape(re.sub(r"<[^>]+>", "", line))) for line in re.findall(r'<span class="gi">(.*)</span>', html)
    ]
    assert any(line.endswith(plain(f"# vpatch: {item.id}")) for line in added)
    assert all("/_vpatch/" not in line for line in added if line.startswith("+++")), "modules are named, not printed"
    links = [f"https://github.com/{link.replace('#', '/pull/')}" for link in overlay.upstream]
    assert {*links, *page.links} == {*page.links}
    evidence = [link.partition("#")[2] for link in page.links if link.startswith("../../validation/#")]
    anchors = (site / "validation/index.html").read_text()
    assert evidence
    assert all(f'id="{anchor}"' in anchors for anchor in evidence)
    found: dict[str, str] = {}
    for first, last, state in re.findall(r"<tr>\s*<td>([\d.]+)(?: to ([\d.]+))?</td>\s*<td>(\w+)</td>", html):
        found |= dict.fromkeys(RELEASES[RELEASES.index(first) : RELEASES.index(last or first) + 1], state)
    assert found == {release: fact(item.id, release) for release in RELEASES}


def test_the_reference_has_every_option(site: Path) -> None:
    page = (site / "command-line/index.html").read_text()
    context = click.Context(program)
    for name in program.list_commands(context):
        command = program.get_command(context, name)
        assert command
        section = page.partition(f'id="vpatch-{name}"')[2].partition("<h2")[0]
        text = plain(unescape(re.sub(r"<[^>]+>", "", section)))
        assert plain(command.help or "").replace("\b", "") in text
        options = [one for one in command.params if isinstance(one, click.Option)]
        assert options
        for option in options:
            assert plain(", ".join(option.opts)) in text, f"{name} {option.name}"
            assert plain(option.help or "") in text, f"{name} {option.name}"


def test_every_link_within_the_site_leads_to_a_place_of_it(site: Path) -> None:
    """Also those that hooks and plugins make, which `mkdocs --strict` does not check."""
    links = [(path, link) for path in sorted(site.rglob("*.html")) for link in Page(path).links]
    places = {path: {"", *re.findall(r'\bid="?([^">\s]+)', path.read_text())} for path in site.rglob("*.html")}
    broken, count = [], 0
    for path, link in links:
        target = urlsplit(urljoin(f"https://here/{path.relative_to(site.parent)}", link))
        if target.netloc == "here" and "404.html" not in path.name:
            count += 1
            found = site.parent / unquote(target.path[1:])
            page = found / "index.html" if found.is_dir() else found
            if not page.is_file() or unquote(target.fragment) not in places.get(page, {""}):
                broken.append(f"{path.relative_to(site)}: {link}")

    assert broken == []
    assert count > 3000


def test_every_public_name_is_there_once(site: Path) -> None:
    html = (site / "python-api/index.html").read_text()
    headings = re.findall(r'<h3 id="(vpatch[\w.]+)" class="doc', html)

    public = [f"{one.__name__}.{name}" for one in (vpatch, vpatch.testing) for name in one.__all__]
    assert sorted(f"{module}.{name}" for module, name, _ in NAMES) == sorted(public)
    assert headings == [f"{module}.{name}" for module, name, _ in NAMES]
    assert len(public) > 40


def test_the_reference_has_types_defaults_and_errors(site: Path) -> None:
    html = (site / "python-api/index.html").read_text()
    text = " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())

    for words in ("count : int = 1", "Refused \u2013 an overlay is drifted or in conflict", "tree ( TreeLike"):
        assert words.replace(" ", "") in text.replace(" ", ""), words
    assert not re.search(r'id="vpatch\.[\w.]+\._[a-z]', html), "of a private name"


def test_the_navigation_has_every_page_once() -> None:
    """Pages on overlays are added by their hook. Reports of runs are not published."""
    config = YAML(typ="safe").load((ROOT / "mkdocs.yml").read_text())
    pages = re.findall(r"[\w/-]+\.md", json.dumps(config["nav"]))
    files = (f"/{path.relative_to(ROOT / 'docs')}" for path in (ROOT / "docs").rglob("*.md"))
    written = [file[1:] for file in files if not file.startswith(tuple(config["exclude_docs"].split()))]

    assert sorted(pages) == sorted([*written, "overlays/index.md", "command-line.md", "errors.md", "python-api.md"])

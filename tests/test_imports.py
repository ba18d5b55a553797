"""Imports between rooms go in one direction; slow, optional and foreign packages are imported only where allowed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import vpatch

from tests.conftest import Trees
from tests.paths import ROOT

TOOL, CONTENT = ROOT / "builder/vpatch", ROOT / "patches/vpatch_overlays"

# Each module imports only rooms above its own line; rooms on one line do not import each other.
LEVELS = (
    ("errors", "foreign", "guest", "locking", "trial", "wrapping"),
    ("gpu", "installation", "manifest", "processes", "script", "settings", "stamps"),
    ("core", "net"),
    ("known", "project", "tree", "release"),
    ("results",),
    ("api",),
    ("image", "matrix", "plan", "doctor", "run"),
    ("porting",),
    ("testing",),
    ("calls", "cli", "vpatch"),
    ("__main__",),
)
# The same order inside `core`.
CORE = (
    ("cst", "listing", "sources", "verdict", "core"),
    ("syntax", "marks"),
    ("changes", "lists", "matching", "nesting", "landing.flow"),
    ("landing.binding",),
    ("landing.definitions",),
    ("parse", "landing.interfaces", "landing.nested"),
    ("layout", "parsed", "select"),
    ("rewrite",),
    ("workspace",),
    ("overlay",),
    ("calls", "landing.companions"),
    ("landing.lookup",),
    ("landing.fit",),
    ("edits", "predicates", "landing.check", "landing"),
    ("judge", "patch_file"),
    ("authoring", "engine", "shapes"),
    ("catalogue",),
)

# And inside `plan`.
PLAN = (
    ("plan", "deployment", "checkpoint_files"),
    ("container",),
    ("architectures", "commands", "defaults", "latent", "needs", "quantization", "startup_log"),
    ("activations", "matrices", "refusals"),
    ("kv_cache", "memory", "weights"),
    ("checkpoint", "fit"),
    ("cautions", "log_comparison", "models", "verdict"),
    ("pasted", "rendering"),
)


# Which modules may import packages beyond the standard library, and which may do so at module level.
EXTRAS = {
    "git": {"tree.checkout", "matrix.commits", "matrix.trees"},
    "jedi": {"calls.resolve"},
    "parso": {"calls.resolve"},
    "requests": {"net", "release", "image"},
    "urllib3": {"net", "image.registry"},
    "pypi_simple": {"release"},
    "docker": {"image"},
    "jsonschema": {"image"},
    "oras": {"image.registry"},
    "cyclonedx": {"image.sbom"},
    "packageurl": {"image.sbom"},
    "elftools": {"gpu.fatbin", "image.checks"},
    "zstandard": {"image.registry"},
    "jinja2": {"matrix"},
    "huggingface_hub": {"plan.models"},
    "ruamel": {"plan.commands"},
    "unidiff": {"porting.diffs"},
    "merge3": {"porting.merging"},
}
CALLERS = {"pytest": {"testing"}}  # as EXTRAS, of what a caller has
OUTSIDE = {
    *("click", "fcntl", "glob", "http", "mmap", "os", "pathlib", "requests", "rich", "shutil", "socket", "subprocess"),
    *("sys", "tempfile", "urllib", "urllib3"),
}
LATE = {"git", "huggingface_hub", "jinja2", "rich", "ruamel", "libcst", "merge3", "unidiff"}


def modules(top: Path) -> dict[str, Path]:
    """Map every module below `top` by its name relative to it."""
    paths = sorted(path.relative_to(top).with_suffix("") for path in top.rglob("*.py"))
    return {".".join(path.parts).removesuffix("__init__").strip("."): top / f"{path}.py" for path in paths}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def imports(node: ast.AST, *, late: bool, typing: bool = False) -> Iterator[str]:
    """Yield the names that a module imports; `late` includes imports in functions, `typing` those for type checkers."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse) if not typing:
                yield from imports(ast.Module(orelse, []), late=late)
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.ImportFrom():
                raise AssertionError("a relative import")
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not late:
                continue
            case _:
                yield from imports(child, late=late, typing=typing)


OURS = modules(TOOL)


def within(imported: str) -> str | None:
    """Return the module of vpatch that an import names, relative to the package; None for any other package."""
    top, _, rest = imported.partition(".")
    if top != "vpatch":
        return None
    while rest and rest not in OURS:
        rest = rest.rpartition(".")[0]
    return rest


@cache
def used_by(name: str, *, typing: bool = False) -> set[str]:
    """Return vpatch's modules that a module imports anywhere."""
    found = {within(imported) for imported in imports(parsed(OURS[name]), late=True, typing=typing)}
    return {other for other in found if other is not None and other != name}


def test_imports_point_one_way() -> None:
    """Between the rooms, and inside `core` and `plan`. Nothing in `core` touches a disk or a network."""
    for inside, levels in (("", LEVELS), ("core", CORE), ("plan", PLAN)):
        level = {name: number for number, names in enumerate(levels) for name in names}
        place = {name: placed(name, inside) for name in OURS if not inside or room(name) == inside}
        assert {*place.values()} == level.keys()
        for name, own in place.items():
            used = {place[other] for other in used_by(name) if other in place} - {own}
            assert not {other for other in used if level[other] >= level[own]}, name
    for name in (name for name in OURS if room(name) == "core"):
        anywhere = {imported.partition(".")[0] for imported in imports(parsed(OURS[name]), late=True)}
        # `importlib.resources` reads what ships with an overlay: its companions and probes.
        assert not anywhere & OUTSIDE, name


def room(name: str) -> str:
    """Return the name that a module has in LEVELS."""
    return name.partition(".")[0] or "vpatch"


def placed(name: str, inside: str) -> str:
    """Return the name that a module has in the levels of a room, or among the rooms."""
    if not inside:
        return room(name)
    rest = name.partition(".")[2] or inside
    return "edits" if rest.startswith("edits.") else rest


def test_no_circle() -> None:
    graph = {name: used_by(name, typing=True) for name in OURS}
    done: set[str] = set()
    while ready := {name for name in graph if name not in done and graph[name] <= done}:
        done |= ready

    assert graph.keys() - done == set()


def test_the_tool_knows_no_overlay_and_few_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    runtime = {re.match(r"[\w-]+", requirement)[0] for requirement in project["dependencies"]}  # type: ignore[index]
    for name in OURS:
        imports_few(name, runtime)


def imports_few(name: str, runtime: set[str]) -> None:
    """Assert that a module imports only what it may."""
    tree = parsed(OURS[name])

    early = {imported.partition(".")[0] for imported in imports(tree, late=False)} - sys.stdlib_module_names
    anywhere = {imported.partition(".")[0] for imported in imports(tree, late=True)} - sys.stdlib_module_names
    allowed = {**EXTRAS, **CALLERS}.items()
    extras = {extra for extra, users in allowed if any(f"{name}.".startswith(f"{user}.") for user in users)}
    if name.startswith("guest"):  # it runs inside vLLM, where vpatch may be missing
        own = {"vpatch"} if name == "guest.check" else set()  # run as text, behind the modules that it imports
        assert (early - own, anywhere - {"prometheus_client"} - own) == (set(), set())
        assert {room(other) for other in used_by(name)} <= {"guest"}
        return
    assert "vpatch_overlays" not in anywhere
    assert anywhere <= runtime | extras | {"vpatch"}
    assert not early & LATE, "it is slow, or an extra: import it where it is needed"
    assert not name.startswith("tree") or early <= {"vpatch"}, "the writer leans on nothing"


def test_an_extra_is_declared() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {"gitpython": "git", "pypi-simple": "pypi_simple", "pyelftools": "elftools"}
    declared = " ".join(
        names.get(re.split("[>=]", one)[0], one)
        for name in ("calls", "fetch", "git", "image", "import", "matrix", "plan")
        for one in extras[name]
    )
    assert all(extra in declared for extra in EXTRAS)


def test_a_message_names_an_extra_that_brings_the_module() -> None:
    """And `all`, which it names where a tool makes the environment anew, has every extra of users."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    everything = {*extras["all"][0].removeprefix("vpatch[").removesuffix("]").split(",")}
    distributions = {"git": "gitpython", "pypi_simple": "pypi-simple"}
    named: set[tuple[str, str]] = set()
    for path in OURS.values():
        for block in (one for one in ast.walk(parsed(path)) if isinstance(one, ast.Try | ast.With)):
            about = block.handlers if isinstance(block, ast.Try) else block.items
            found = re.findall(r"(?:how_to_add|needing)\('(\w+)'", "".join(map(ast.unparse, about)))
            tried = imports(ast.Module(block.body, []), late=True)
            named |= {(extra, name.partition(".")[0]) for name in tried for extra in found}
    assert {extra for extra, _ in named} == everything - {"image"}  # by `extra_required`
    for extra, module in named:
        assert module == "vpatch" or distributions.get(module, module) in " ".join(extras[extra])
    assert {*extras} - everything == {"all", "docs", "mutation", "test"}


CONTENT_MODULES = modules(CONTENT)


def test_overlays_import_public_names_only() -> None:
    for name in CONTENT_MODULES:
        imports_public_names(name)


def imports_public_names(name: str) -> None:
    used = list(imports(parsed(CONTENT_MODULES[name]), late=True))
    if name.startswith("companions"):  # companions run inside vLLM, where vpatch may be missing
        allowed = sys.stdlib_module_names | {"vllm", "torch"}
        assert {imported.partition(".")[0] for imported in used} <= allowed
        return
    if name.startswith("probes"):  # probes run there too, and import modules of their own package
        allowed = sys.stdlib_module_names | {"vllm", "torch", "safetensors", "xgrammar"}
        own = {i for i in used if i.startswith("vpatch_overlays.probes.")}
        assert {imported.partition(".")[0] for imported in {*used} - own} <= allowed
        return

    used = [i for i in used if not i.startswith("vpatch_overlays._")]  # code that overlays share
    assert [i for i in used if i.partition(".")[0] not in {"vpatch", *sys.stdlib_module_names}] == []
    assert [i for i in used if i.startswith("vpatch") and i.removeprefix("vpatch.") not in vpatch.__all__] == []


@pytest.mark.parametrize(
    ("command", "needs", "without"),
    [
        ("cli.run", "run.launch", "core.engine"),  # a start that remembers its plan
        ("cli.plan", "tree.environment", "tree.guard"),  # which is for those who write
    ],
)
def test_a_command_begins_without(command: str, needs: str, without: str) -> None:
    early, new = set[str](), {command}
    while new:
        early |= new
        found = {within(imported) for name in new for imported in imports(parsed(OURS[name]), late=False)}
        new = {name for name in found if name} - early

    assert needs in early
    assert without not in early


def test_no_two_classes_have_one_name() -> None:
    nodes = (node for path in OURS.values() for node in ast.walk(parsed(path)))
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))

    assert {name for name, count in names.items() if count > 1} == set()


def test_public_names_exist() -> None:
    assert sorted(vpatch.__all__) == vpatch.__all__
    assert all(hasattr(vpatch, name) for name in vpatch.__all__)


LOADED = """
import os, sys
from vpatch.cli import main

for command in sys.argv[1:]:
    if os.fork() == 0:
        sys.argv = ["vpatch", *command.split()]
        try:
            main()
        except SystemExit as end:
            print(end.code, *sys.modules, file=sys.stderr)
            os._exit(0)
    os.wait()
"""
ELSEWHERE = re.compile(r"vpatch\.(doctor|farm|image|matrix|net|plan|porting|processes|release|run)\b")


def test_a_command_loads_what_it_needs(linked: Trees) -> None:
    """libcst takes a quarter of a second: a command that parses nothing does without. The catalogue needs no engine."""
    tree, only = linked("0.20.2"), "--overlay turboquant-skip-list"
    lean = ("list -q", "show -q turboquant-hybrid", "--help", "--version", "fetch --help", "apply -h")
    commands = (*lean, f"apply -q {tree} {only}", f"revert -q {tree}")
    words = (sys.executable, "-c", LOADED, *commands)
    ran = subprocess.run(words, capture_output=True, text=True, check=True).stderr.splitlines()

    assert [line.partition(" ")[0] for line in ran] == ["0"] * len(commands)
    loaded = {command: set(line.split()) for command, line in zip(commands, ran, strict=True)}
    parsing = [command for command, modules in loaded.items() if "libcst" in modules]
    assert parsing == list(commands[len(lean) : -1])
    for command in commands[len(lean) :]:
        assert list(filter(ELSEWHERE.match, loaded[command])) == [], command

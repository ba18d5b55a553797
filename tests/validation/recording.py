"""Record what one commit of vpatch prints and writes, for `tests.validation.equality` to compare."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import docker

from tests.archives import unpack
from tests.image.servers import docker_engine, docker_registry
from tests.image.standin import BASE, SITE, archive, imported, python_root
from tests.paths import ROOT
from tests.releases import tree_of

Step = dict[str, Any]  # of one command: `exit`, `out`, `err`; `files`: what differs from the pristine release
Record = dict[str, Step]  # by the label of the command

COPY = "the pristine copy"  # a label beside those of the commands
SOURCES = ("builder", "patches")
COMMANDS = (
    *("fetch", "status", "diff", "apply", "revert", "verify", "list", "show", "matrix", "cache", "plan"),
    *("build", "test", "inspect", "tag"),
)

_INHERITED = re.compile("PATH|TMPDIR|(PIP|UV|SSL|REQUESTS)_.*|.*_proxy", re.IGNORECASE)
_FIXED = {"COLUMNS": "200", "LANG": "C.UTF-8", "LOGNAME": "equality", "SOURCE_DATE_EPOCH": "1767225600", "TZ": "UTC"}
_IMPORTED = "import vpatch, vpatch_overlays; print(vpatch.__file__, vpatch_overlays.__file__, sep='\\n')"
_SECONDS = re.compile(r"\d+(\.\d+)? s\b")
_HASHES = re.compile(rb'sha256=[\w-]+,\d+|"[0-9a-f]{64}"')


class Program:
    """The command line of one commit, and the folder that it works in."""

    def __init__(self, commit: str | None, work: Path) -> None:
        """Copy the sources of a commit (None: of the working tree) into `work`.

        Raises:
            RuntimeError: Python would import another vpatch.
        """
        self.work = work
        work.mkdir()
        _copy_sources(commit, work / "source")
        self.environment = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)} | _FIXED
        self.environment["HOME"] = str(work / "home")
        self.environment["XDG_CACHE_HOME"] = str(work / "cache")
        self.environment["PYTHONPATH"] = os.pathsep.join(str(work / "source" / folder) for folder in SOURCES)
        python = [sys.executable, "-c", _IMPORTED]
        asked = subprocess.run(python, cwd=work, env=self.environment, check=True, capture_output=True, text=True)
        for file in asked.stdout.splitlines():
            if not Path(file).is_relative_to(work / "source"):
                raise RuntimeError(f"{file} is imported, which is not of the commit")

    def run(self, *arguments: str | Path, **environment: str) -> Step:
        """Run a command; replace its folder and the seconds that it prints by placeholders."""
        ran = subprocess.run(
            [sys.executable, "-m", "vpatch", *map(str, arguments)],
            cwd=self.work,
            env={**self.environment, **environment},
            umask=0o022,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        out, err = (text.replace(str(self.work), "/WORK") for text in (ran.stdout, ran.stderr))
        step: Step = {"exit": ran.returncode, "out": out, "err": _SECONDS.sub("_ s", err)}
        if "--json" in arguments and out.startswith("{"):
            step["out"] = json.loads(out)
            step["out"].pop("seconds", None)
        return step

    def selections(self) -> dict[str, list[str]]:
        """Return the selections of overlays to try, each as options by its name."""
        every = [one["id"] for one in self.run("list", "--json")["out"]["overlays"]]
        return {"default": [], "all": _named(*every), **{overlay: _named(overlay) for overlay in every}}

    def pristine(self, version: str, folder: str) -> Path:
        """Copy a release, so that no bug of a commit under test reaches the one that is kept."""
        return shutil.copytree(tree_of(version), self.work / folder / version)


def _copy_sources(commit: str | None, folder: Path) -> None:
    if commit is None:
        for source in SOURCES:
            shutil.copytree(ROOT / source, folder / source, ignore=shutil.ignore_patterns("__pycache__"))
        return
    git = subprocess.Popen(["git", "-C", str(ROOT), "archive", commit, *SOURCES], stdout=subprocess.PIPE)
    with git, tarfile.open(fileobj=git.stdout, mode="r|") as tar:
        unpack(tar, folder)


def _named(*overlays: str) -> list[str]:
    return [word for overlay in overlays for word in ("--overlay", overlay)]


def catalogue(program: Program) -> Record:
    """Record `--help` of every command, and the catalogue."""
    asked = [["--help"], *([command, "--help"] for command in COMMANDS), ["list", "--json"]]
    every = program.run("list", "--json")["out"]["overlays"]
    asked += [["show", one["id"], "--json"] for one in every]
    return {" ".join(words): program.run(*words) for words in asked}


def plan(program: Program) -> Record:
    """Record the plan of every preset."""
    record = {"plan --list --json": program.run("plan", "--list", "--json")}
    for preset in record["plan --list --json"]["out"]["presets"]:
        words = ["plan", "--preset", preset["name"], "--json"]
        record[" ".join(words)] = program.run(*words)
    return record


def matrix(program: Program, versions: Sequence[str]) -> Record:
    """Record the matrix of releases, read from folders and from the package index."""
    trees = [word for version in versions for word in ("--tree", str(program.pristine(version, "matrix")))]
    wheels = [word for version in versions for word in ("--vllm", version)]
    return {
        "matrix --tree ... --json": program.run("matrix", *trees, "--json"),
        "matrix --vllm ... --json": program.run("matrix", *wheels, "--json"),
    }


class Engine(NamedTuple):
    """A Docker engine with a stand-in for vLLM's image."""

    address: str
    client: Any  # docker's stubs leave much untyped
    base_id: str


@contextmanager
def engine_with_base(folder: Path) -> Iterator[Engine]:
    """Start an engine, and make the base image in it."""
    python_root(folder / "root")
    tar = archive(folder / "base.tar", (folder / "root", ""), (tree_of("0.20.2"), SITE), edit=_undated)
    (folder / "engine").mkdir()
    with docker_engine(folder / "engine") as address:
        client: Any = docker.DockerClient(base_url=address)
        yield Engine(address, client, imported(client, tar, BASE))
        client.close()


def _undated(member: tarfile.TarInfo) -> None:
    member.mtime = 0


def build(program: Program, engine: Engine) -> Record:
    """Record images built on the base, by the engine and in a registry.

    Placeholders replace the IDs of images: the base is made anew in every run, with a time of its own.
    """
    every = program.selections()["all"]
    found = program.run("status", "--json", *every, program.pristine("0.20.2", "build"))["out"]["overlays"]
    fitting = _named(*(one["id"] for one in found if one["state"] != "not_applicable"))
    ids = {engine.base_id: "BASE"}
    record: Record = {}
    for selection, options in {"default": [], "all": every, "fitting": fitting}.items():
        record |= {f"{selection}: {label}": step for label, step in _by_engine(program, engine, options, ids).items()}
    record |= {f"registry: {label}": step for label, step in _in_registry(program, engine, ids).items()}
    text = json.dumps(record)
    for digest, name in ids.items():
        text = text.replace(digest.removeprefix("sha256:"), name)
    replaced: Record = json.loads(text)
    return replaced


def _by_engine(program: Program, engine: Engine, options: Sequence[str], ids: dict[str, str]) -> Record:
    tag, host = "equality:x", {"DOCKER_HOST": engine.address}
    made = program.run("build", "--base", BASE, *options, "--tag", tag, "--json", **host)
    if made["exit"]:
        return {"build --json": made}
    tested, seen = (program.run(command, tag, "--json", **host) for command in ("test", "inspect"))
    image, history = engine.client.api.inspect_image(tag), engine.client.api.history(tag)[0]
    ids[image["Id"]] = "IMAGE"
    made["image"] = {
        "provenance": json.loads(image["Config"]["Labels"].pop("io.vpatch.overlays")),
        "config": image["Config"],
        "created": image["Created"],
        "layer": image["RootFS"]["Layers"][-1],
        "command": history["CreatedBy"],
        "size": history["Size"],
    }
    engine.client.api.remove_image(tag, force=True)
    return {"build --json": made, "test --json": tested, "inspect --json": seen}


def _in_registry(program: Program, engine: Engine, ids: dict[str, str]) -> Record:
    with docker_registry(program.work / "registry", "") as host:
        base, tag = f"{host}/{BASE}", f"{host}/equality:x"
        engine.client.api.tag(BASE, base)
        engine.client.images.push(base)
        engine.client.api.remove_image(base)
        made = program.run("build", "--registry", "--base", base, "--tag", tag, "--json")
        seen = program.run("inspect", tag, "--json")
    ids[host] = "REGISTRY"
    if made["exit"] == 0:
        ids |= {made["out"][name]["digest"]: name.upper() for name in ("base", "image")}
    return {"build --json": made, "inspect --json": seen}


def release(program: Program, version: str) -> Record:
    """Record each selection of overlays on a release: apply, apply again, revert each overlay alone, revert."""
    pristine = program.pristine(version, "pristine")
    tree, applied = (program.work / folder / version for folder in ("trees", "applied"))
    applied.parent.mkdir(exist_ok=True)
    record: Record = {}
    for selection, options in program.selections().items():

        def run(label: str, *words: str, selection: str = selection) -> Step:
            ran = program.run(*words, tree)
            record[f"{selection}: {label}"] = {**ran, "files": changes(pristine, tree)}
            return ran

        _link_all(pristine, tree)
        run("status --json", "status", "--json", *options)
        run("diff", "diff", *options)
        made = run("apply --json", "apply", "--json", *options)
        run("verify --json", "verify", "--json", *options)
        run("apply --json (again)", "apply", "--json", *options)
        tree.rename(applied)
        overlays = made["out"]["overlays"] if isinstance(made["out"], dict) else []
        done = [one["id"] for one in overlays if one["state"] == "applied"]
        for words in (*(["revert", "--overlay", overlay, "--json"] for overlay in done), ["revert", "--json"]):
            _link_all(applied, tree)
            run(" ".join(words), *words)
            shutil.rmtree(tree)
        shutil.rmtree(applied)
    # The trees share their files with this copy: a write into a file, in place of a new one, shows here.
    record[COPY] = {"files": changes(tree_of(version), pristine)}
    shutil.rmtree(pristine)
    return record


def _link_all(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=os.link)


def changes(pristine: Path, tree: Path) -> dict[str, Mapping[str, str] | None]:
    """Return the files and folders of a tree that differ from the pristine ones; None for one that is gone."""
    before, after = ({str(path.relative_to(top)): path.lstat() for path in top.rglob("*")} for top in (pristine, tree))
    changed: dict[str, Mapping[str, str] | None] = dict.fromkeys(sorted(before.keys() - after.keys()))
    for name in sorted(after):
        linked = name in before and os.path.samestat(before[name], after[name])
        if not linked and not _equal(pristine / name, tree / name):
            changed[name] = _description(tree / name)
    return changed


def _equal(one: Path, other: Path) -> bool:
    if not one.exists() or one.lstat().st_mode != other.lstat().st_mode:
        return False
    return one.is_dir() or one.read_bytes() == other.read_bytes()


def _description(path: Path) -> Mapping[str, str]:
    mode = f"{path.lstat().st_mode:o}"
    return {"mode": mode, **_hashes(path.name, path.read_bytes())} if path.is_file() else {"mode": mode}


@lru_cache(256)  # most commands leave the same few files
def _hashes(name: str, data: bytes) -> Mapping[str, str]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "form": form(name, data)}


def form(name: str, data: bytes) -> str:
    """Hash what stays equal when only comments and docstrings change, in this file or in files that it lists.

    For a Python file, that is the syntax tree; for any other file, the text without hashes and sizes.
    """
    if name.endswith(".py"):
        module = ast.parse(data)
        for node in ast.walk(module):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
        data = ast.dump(module).encode()
    else:
        data = _HASHES.sub(b"...", data)
    return hashlib.sha256(data).hexdigest()[:32]

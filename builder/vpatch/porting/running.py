"""Make a patch file of what a command changes in a copy of vLLM: any patcher, which vpatch need not understand."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from vpatch.core.overlay import DATA
from vpatch.errors import Failure, Problem, cause, naming, raise_all
from vpatch.foreign import read_regular
from vpatch.porting.bases import base_in
from vpatch.porting.importing import Imported, of_bytes
from vpatch.porting.kept import FAILED, Fate, listed
from vpatch.porting.letters import name_of
from vpatch.porting.scratch import VARIABLE, contents, run_in
from vpatch.tree.locate import Tree

_SCRIPTS = (".py", ".sh", ".bash", ".pl", ".rb")
_LONGEST = 80  # characters of a command in a message
_BACKUP = re.compile(r"\.py(?:~|\.(?:orig|bak|old|save))$")  # as `sed -i.bak` and `patch` leave them


def of_command(command: str, tree: Tree, name: str | None = None, *, python_only: bool = False) -> Imported:
    """Run a command in a copy of a vLLM, and make a patch file of the modules and data files that it changes.

    Args:
        command: what `sh -c` runs.
        tree: the vLLM, which must not change.
        name: the id of the overlay; None: of the script's or the first module's name.
        python_only: leave out all but modules.

    Raises:
        Failure: the command fails, or changes nothing, or what no overlay can have, or `tree` itself.
    """
    base, where = base_in(tree), _shown(command)
    with naming("cannot read", str(tree.root)):
        before = dict(contents(tree.root, ["vllm", *([tree.dist_info] if tree.dist_info else [])]))
    with TemporaryDirectory(prefix="vpatch-run-") as folder:
        site = Path(os.path.realpath(folder))
        with naming("cannot copy vLLM", folder):
            for file, data in before.items():  # written anew: a link would lead a command that writes in place to vLLM
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                (site / file).write_bytes(data)
        if why := run_in(site, command):
            raise Failure(Problem(FAILED, where, why, hint=_about_paths(command)))
        with naming("cannot read the copy of vLLM", folder, "COMMAND may change what is in it"):
            after = dict(contents(site, sorted(path.name for path in site.iterdir())))
    _check_untouched(tree, before, where)
    changed = {file: after.get(file) for file in sorted({*before, *after}) if before.get(file) != after.get(file)}
    modules, others = _sorted(changed, tree.dist_info or "", before, python_only=python_only)
    left_out = [*_sentences(others, Fate.DATA if python_only else Fate.OTHER)]
    if not python_only:
        raise_all(Problem(FAILED, *one, hint="`--python-only` leaves it out") for one in left_out)
    if not modules:
        raise Failure(Problem(FAILED, where, "it changes no file of its copy of vLLM", hint=_about_paths(command)))
    script = _script(command, modules)
    source = script or Path(modules[0]).name
    name_ = name or name_of("", Path(source).stem.replace("_", " ")) or "changed"
    sentences = [f"{files}: {why}" for files, why in left_out]
    made = of_bytes(name_, f"The changes of {source}", {file: changed[file] for file in modules}, base, sentences)
    remarks = [] if name or script else [f"it is called {name_} after {modules[0]}: `--name` gives it another name"]
    return replace(made, remarks=(*made.remarks, *remarks))


def _about_paths(command: str) -> str:
    """Return how to name a file of the current folder, if a command names one that its copy of vLLM cannot have."""
    for odd in _words(command):
        if odd.startswith(("/", "vllm/")) or not os.path.isfile(odd):  # noqa: PTH113 - for a Path, it may be too long
            continue
        return f'it runs in a copy of vLLM: name your file as "$OLDPWD/{odd}"'
    return ""


def _shown(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _words(command: str) -> Sequence[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quote without its end, which a shell may still take, as in a here-document
        return command.split()


def _check_untouched(tree: Tree, before: Mapping[str, bytes], where: str) -> None:
    """Raise if a vLLM is no longer what was copied: a command with a path of its own changed the wrong one."""
    for file, data in before.items():
        try:
            now = read_regular(tree.root / file)
        except OSError as error:
            why = cause(error)
        else:
            why = "it changed" if now != data else ""
        if why:
            hint = f"let the command find vLLM by ${VARIABLE}"
            problem = f"{file} of {tree.root}: {why} while the command ran, which was to change only its copy"
            raise Failure(Problem(FAILED, where, problem, hint=hint))


def _sorted(
    changed: Iterable[str], dist_info: str, before: Collection[str], *, python_only: bool
) -> tuple[list[str], list[str]]:
    """Return the changed files of vLLM that a patch file can have, and other changed files that matter."""
    modules, others = list[str](), list[str]()
    for file in changed:
        if file.startswith(f"{dist_info}/") or (_BACKUP.search(file) and file not in before):
            continue
        module = file.startswith("vllm/") and file.endswith(".py")
        (modules if module or (DATA.fullmatch(file) and not python_only) else others).append(file)
    return modules, others


def _sentences(others: Sequence[str], of_vllm: Fate) -> Iterator[tuple[str, str]]:
    """Yield the files that are left out, and why; `of_vllm` says it of those in vLLM."""
    inside, beside = ([file for file in others if file.startswith("vllm/") is wanted] for wanted in (True, False))
    for files, fate in ((inside, of_vllm), (beside, Fate.PACKAGE)):
        if files:
            yield listed(files), str(fate.value)


def _script(command: str, modules: Collection[str]) -> str:
    """Return the name of the script that a command runs; "" if it runs none."""
    for word in _words(command):
        if word.endswith(_SCRIPTS) and not any(word.endswith(file) for file in modules):
            return Path(word).name
    return ""

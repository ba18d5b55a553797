"""Whether the files of a patched vLLM are whole: `vpatch verify` and the tests of an image run the same check.

The interpreters of images run this file as text, behind `marshalled`, `record` and `ask`: it imports the standard
library only. vpatch itself runs it on a tree, and on the files of an image in a registry.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

if __name__ != "__main__":  # else those files were run before this one
    from vpatch.guest.ask import module_of, origin
    from vpatch.guest.marshalled import is_of
    from vpatch.guest.record import Record, parse

_MOST = 1 << 26  # bytes of a file

Read = Callable[[str], bytes | None]
Names = Callable[[str], Sequence[str]]
Twins = Callable[[str, bytes], Iterable[tuple[str, bool | None]]]
"""Returns the bytecode of a module, given with its source, by path: whether it is of this source; None: undecided."""


class Fault(NamedTuple):
    """What is wrong with a file.

    `kind` is "syntax", "stale", or, of RECORD, "unlisted", "missing" or "untrue". `decided` is False for bytecode of
    another interpreter, which this one cannot read.
    """

    kind: str
    path: str
    why: str
    decided: bool = True


def faults(
    read: Read,
    modules: Collection[str],
    listed: Collection[str],
    rows: Record,
    twins: Twins,
    error: Callable[[bytes, str], str] | None = None,
) -> Iterator[Fault]:
    """Check the files of a patched vLLM, by paths relative to the folder that holds `vllm/`.

    Args:
        read: returns a file's bytes, None without one.
        modules: the modules that overlays changed or added: they compile, and their bytecode is of them.
        listed: files of which RECORD has to be true; none in a source checkout.
        rows: RECORD.
        twins: finds bytecode.
        error: returns why a module does not compile; default: `syntax_error`.
    """
    contents = {path: read(path) for path in (*modules, *listed)}
    for path in modules:
        if why := (error or syntax_error)(contents[path] or b"", path):
            yield Fault("syntax", path, why)
    for path in listed:
        row, content = rows.row(path), contents[path]
        if row is None:
            yield Fault("unlisted", path, "uninstalling would leave it behind")
        elif content is None:
            yield Fault("missing", path, "RECORD has it")
        elif not row.is_true_of(content):
            yield Fault("untrue", path, "its hash or size is not that of the file")
    why = "python would run it, and it was not compiled from the source beside it"
    for path in modules:
        for twin, is_its in twins(path, contents[path] or b""):
            if not is_its:
                yield Fault("stale", twin, why, decided=is_its is not None)


def syntax_error(source: bytes, path: str) -> str:
    """Return why a module does not compile with this Python; "" if it does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return str(error)
    except (RecursionError, MemoryError):
        return "nested too deeply"
    return ""


def twins_in(names: Iterable[str], stem: str) -> list[str]:
    """Return those of the names in a `__pycache__` that are bytecode of the module `stem`, of any interpreter."""
    ours = re.compile(re.escape(stem) + r"\.[^.]+(\.opt-[^.]*)?\.pyc").fullmatch
    return sorted(filter(ours, names))


def read_file(path: str) -> bytes | None:
    """Return a file's bytes, None without one, or of a pipe, a device or a file that no module is as large as."""
    with suppress(FileNotFoundError, NotADirectoryError):
        of = os.stat(path)  # noqa: PTH116 - pathlib takes time
        if stat.S_ISREG(of.st_mode) and of.st_size <= _MOST:
            with open(path, "rb") as file:  # noqa: PTH123 - as above
                return file.read()
    return None


def list_names(folder: str) -> Sequence[str]:
    """Return the names in a folder, none for a missing one."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(os.listdir(folder))  # noqa: PTH208 - as above
    return ()


def check_tree(
    root: str,
    dist_info: str,
    provenance: str,
    read: Read = read_file,
    names: Names = list_names,
    error: Callable[[bytes, str], str] | None = None,
) -> Iterator[tuple[str, bool | None, str]]:
    """Compare the folder of an image that holds `vllm/` with its provenance.

    `read` and `names` get paths that start with `root`; `error` is as in `faults`. Yield each check's name, its answer
    (None: undecided) and the reason.
    """

    def twins(path: str, source: bytes) -> Iterator[tuple[str, bool | None]]:
        # The times of an image's files say nothing: whoever unpacks it may set them.
        folder, _, name = path.rpartition("/")
        cache = f"{folder}/__pycache__"
        for twin in twins_in(names(f"{root}/{cache}"), name[: -len(".py")]):
            yield f"{cache}/{twin}", is_of(read(f"{root}/{cache}/{twin}") or b"", twin, source)

    files: dict[str, Any] = json.loads(provenance)["files"]
    own, record = f"{dist_info}/vpatch-image.json", f"{dist_info}/RECORD"
    contents = {path: read(f"{root}/{path}") for path in (*files, own, record)}
    wrong = [path for path in files if _sha256(contents[path]) not in files[path]["after"]]
    wrong += [] if contents[own] == provenance.encode() else [own]
    yield "files", not wrong, _reason(wrong, "is not what was built", f"{len(files)} files are as planned")
    try:
        rows = parse(contents[record] or b"")
    except ValueError:
        rows = Record(())
    modules = [path for path in files if path.endswith(".py")]
    found = list(faults(contents.get, modules, [*files, own], rows, twins, error))
    broken = [f"{fault.path}: {fault.why}" for fault in found if fault.kind == "syntax"]
    yield "compile", not broken, _reason(broken, "", f"{len(modules)} modules compile")
    yield ("bytecode", *_of_bytecode([fault for fault in found if fault.kind == "stale"]))
    untrue = [fault.path for fault in found if fault.kind in ("unlisted", "missing", "untrue")]
    yield "record", not untrue, _reason(untrue, "has no true row in RECORD", "RECORD is true of them")


def _of_bytecode(found: Sequence[Fault]) -> tuple[bool | None, str]:
    if stale := [fault.path for fault in found if fault.decided]:
        return False, _reason(stale, "is not compiled from the source beside it", "")
    if found:
        return None, _reason([fault.path for fault in found], "is of another interpreter: not told", "")
    return True, "no stale bytecode"


def _reason(wrong: Sequence[str], what: str, fine: str) -> str:
    return "; ".join(f"{one} {what}".strip() for one in wrong) or fine


def _sha256(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def imported(root: str, files: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the modules that this interpreter would not import, or not compile: by file, ("import" or "syntax", why).

    None of them is imported.
    """
    found = {}
    for file in files:
        place = origin(module_of(file))
        if place is None or os.path.realpath(place) != os.path.realpath(f"{root}/{file}"):
            found[file] = ("import", f"{sys.executable} would import {place or 'no such module'}")
        elif why := syntax_error(read_file(place) or b"", place):
            found[file] = ("syntax", f"{sys.executable}: {why}")
    return found


def check_interpreter(root: str, modules: Sequence[str]) -> tuple[str, bool, str]:
    """Check that this interpreter would import exactly these modules."""
    wrong = [f"{path}: {why}" for path, (kind, why) in imported(root, modules).items() if kind == "import"]
    return "interpreter", not wrong, _reason(wrong, "", f"{sys.executable} imports exactly these")


def answer_files(question: str) -> None:
    """Print the answers on the tree in `question`, `{"root": ..., "dist_info": ..., "provenance": ...}`, as JSON."""
    asked: Mapping[str, str] = json.loads(question)
    # As a server is started: without the current folder.
    sys.path[:] = [path for path in sys.path if path]
    modules = [path for path in json.loads(asked["provenance"])["files"] if path.endswith(".py")]
    answers = [*check_tree(asked["root"], asked["dist_info"], asked["provenance"])]
    sys.stdout.write(json.dumps([*answers, check_interpreter(asked["root"], modules)]) + "\n")


def answer_imported(root: str, files: str) -> None:
    """Print what `imported` returns as JSON; so are the `files`."""
    sys.stdout.write(json.dumps(imported(root, json.loads(files))) + "\n")

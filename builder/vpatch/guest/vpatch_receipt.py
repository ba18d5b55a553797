"""Prove which overlays this process runs, in each process of vLLM.

`vpatch run` copies this file into its farms, where vLLM calls `register` as a general plugin. The overlay `receipt`
adds it to vLLM, as `vllm/_vpatch/vpatch_receipt.py`, where vLLM calls `hold_receipt`. Nothing of vpatch but the modules
beside it may be installed there: it needs the standard library only.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

FARM = Path(__file__).absolute().parent.resolve()
MANIFEST = "vpatch.json"  # the name of what a farm says of itself
SCHEMA = 4
DIGEST = "VPATCH_RUN"  # the variable that names the digest that a process was started for

_HASHES = ("files", "replaced", "applied")  # of a manifest: by file, its sha256
_WRITTEN = ("vpatch-image.json", "vpatch/provenance.json")  # in a dist-info: what `build` and `apply` wrote
_MARK = re.compile(rb"#\s*vpatch:\s*([a-z0-9]+(?:-[a-z0-9]+)*)")
_INFO = re.compile(r"vllm[-_][^/]+\.dist-info")
_ROW = re.compile(rb"^(vllm/[^,\r\n]+\.py),([^,\r\n]*)", re.MULTILINE)  # of RECORD; no module has a comma in its name
_MOST = 1 << 24  # bytes of a file of code
_claim = importlib.import_module(f"{__name__.rpartition('.')[0]}.vpatch_claim".lstrip("."))  # of a farm, or of vLLM
_held: int | None = None  # a descriptor: vpatch finds it in /proc/PID/fd, where titles of processes cannot destroy it
_proved = ""  # the digest, as it was then: the folder may be another farm's by now


def register() -> None:
    """Compare this process with what it was started for, log the result, and hold the receipt until it ends.

    Raises:
        RuntimeError: it runs other code, or the farm cannot be read. vLLM then ends the process.
    """
    global _held, _proved
    if _held is not None:
        return
    told = _told()
    changed = [": ".join(one) for one in differences(told, FARM)]
    if wrong := [*foreign(told), *changed, *_elsewhere(told), *misled(told, os.environ.get(DIGEST, ""))]:
        raise RuntimeError(f"vpatch: this process does not run what was asked for: {'; '.join(wrong[:5])}")
    _held, _proved = _claim.hold(told, FARM), str(told["digest"])
    _claim.log(told)
    _claim.export(told)


def hold_receipt() -> None:
    """Hold a receipt of what `vpatch apply` or `vpatch build` wrote to this vLLM, until the process ends.

    It never raises. If a file is not as it was written, there is no receipt, and vLLM's log says why.
    """
    global _held, _proved
    try:
        root = Path(__file__).absolute().parents[2]  # in a farm, the folder of this file may be a link
        if _held is not None or (root / MANIFEST).exists():  # a farm, which has a receipt of its own
            return
        told = written_to(root)
        if wrong := [*misled(told, os.environ.get(DIGEST, ""))]:
            raise ValueError(wrong[0])
        _held, _proved = _claim.hold(told, None), str(told["digest"])
        _claim.log(told)
        _claim.export(told)
    except Exception as error:  # whatever it is, it must not end a server
        what = "no receipt" if _held is None else "no metric"
        logging.getLogger("vllm.vpatch").warning("vpatch: process %d has %s: %s", os.getpid(), what, error)


def digest() -> str:
    """Return the digest of what this process runs.

    Raises:
        RuntimeError: as `register`; or `hold_receipt` found no proof.
    """
    if FARM.name != "_vpatch":
        register()
    elif not _proved:
        raise RuntimeError("vpatch: this process has no receipt; vLLM's log says why")
    return _proved


class Proof:
    """A base for vLLM's workers: `--worker-extension-cls vpatch_receipt.Proof`.

    A worker that does not find the farm cannot import it, and does not start.
    """

    def vpatch_digest(self) -> str:
        """Return the digest of what this worker runs, to `LLM.collective_rpc("vpatch_digest")`."""
        return digest()


def parsed(manifest: bytes) -> Mapping[str, Any]:
    """Return what a farm says of itself.

    Raises:
        ValueError: it is not a manifest of this form, or its digest is not that of what it names.
    """
    told: dict[str, Any] = json.loads(manifest)
    if not isinstance(told, dict) or told.get("schema") != SCHEMA or not _is_whole(told):  # type: ignore[redundant-expr]
        raise ValueError("not a manifest of this version of vpatch")
    if any(Path(file).is_absolute() or ".." in Path(file).parts for key in _HASHES for file in told[key]):
        raise ValueError("it names a file elsewhere")
    if told.get("digest") != combined({**told["applied"], **told["files"]}, told["release"]):
        raise ValueError("its digest is not that of the files and the release that it names")
    return told


def _is_whole(told: Mapping[str, Any]) -> bool:
    release: Any = told.get("release")
    overlays = told.get("overlays")
    tables = [release, *(told.get(key) for key in _HASHES)]
    if not all(isinstance(one, dict) and all(isinstance(text, str) for text in one.values()) for one in tables):
        return False
    names = isinstance(overlays, list) and all(isinstance(name, str) for name in overlays)
    known = release.keys() == {"info", "modules"} and (not release["info"] or _INFO.fullmatch(release["info"]))
    return names and bool(known) and isinstance(told.get("root"), str)


def written_to(root: Path) -> Mapping[str, Any]:
    """Return a manifest, as `parsed` does, of what `vpatch apply` and `vpatch build` wrote to an installed vLLM.

    Args:
        root: the folder that holds `vllm/`.

    Raises:
        OSError: a file cannot be read.
        ValueError: nothing was written there, a file is not as it was written, or one was added that no record names.
    """
    after: dict[str, list[str]] = {}  # in an image, `build` may have changed what `apply` wrote, or `apply` added to it
    patches: dict[str, str] = {}
    infos = set[str]()
    for name in _WRITTEN:
        for kept in root.glob(f"vllm[-_]*.dist-info/{name}"):
            info = kept.relative_to(root).parts[0]
            if not (root / info / "METADATA").is_file():  # left of a vLLM that was removed
                continue
            infos.add(info)
            record = json.loads(kept.read_bytes())
            for file, known in record["files"].items():
                after.setdefault(file, []).extend(known["after"])
            patches |= {one["id"]: one["sha256"] for one in record.get("overlays") or () if "sha256" in one}
    if not after:
        raise ValueError(f"no dist-info in {root} tells what vpatch wrote")
    if len(infos) > 1:
        raise ValueError(f"more than one dist-info tells what vpatch wrote: {', '.join(sorted(infos))}")
    added = {path.relative_to(root).as_posix() for path in (root / "vllm/_vpatch").glob("*.py")}
    if unknown := sorted(added - after.keys()):
        raise ValueError(f"vpatch's record lacks what an earlier run wrote: {', '.join(unknown[:5])}")
    data = {file: (root / file).read_bytes() for file in sorted(after)}
    hashes = {file: _sha256(content) for file, content in data.items()}
    if wrong := [file for file, known in hashes.items() if known not in after[file]]:
        raise ValueError(f"changed since vpatch wrote them: {', '.join(wrong[:5])}")
    overlays = sorted({name.decode() for content in data.values() for name in _MARK.findall(content)})
    release = _release_at(root, infos.pop(), hashes)
    about = {"schema": SCHEMA, "digest": combined(hashes, release), "overlays": overlays, "root": str(root)}
    about["patches"] = {name: known for name, known in patches.items() if name in overlays}
    return {**about, "farm": False, "release": release, "files": {}, "replaced": {}, "applied": hashes}


def combined(hashes: Mapping[str, str], release: Mapping[str, str]) -> str:
    """Return the digest of a release, and of the files that overlays changed or added, by the sha256 of each."""
    name = release["info"].partition(".dist-info")[0]
    lines = [f"{name}\0{release['modules']}\n", *(f"{file}\0{known}\n" for file, known in sorted(hashes.items()))]
    return _sha256("".join(lines).encode())


def release_of(info: str, record: bytes | None, changed: Collection[str]) -> dict[str, str]:
    """Return what tells a release from others: the same for the pristine vLLM and with overlays applied to it.

    Args:
        info: the name of its dist-info, which has the version; "" if it has none.
        record: its RECORD, which lists the sha256 of each module; None if it has none.
        changed: the modules that overlays change or add, whose rows differ once they are applied.
    """
    skipped = {file.encode() for file in changed}
    lines = [b"%s\0%s\n" % row for row in sorted(_ROW.findall(record or b"")) if row[0] not in skipped]
    return {"info": info, "modules": _sha256(b"".join(lines)) if lines else ""}


def _read(file: Path) -> bytes:
    about = file.stat()
    if not stat.S_ISREG(about.st_mode) or about.st_size > _MOST:
        raise OSError("it is no file of code")
    return file.read_bytes()


def differences(
    told: Mapping[str, Any], farm: Path, read: Callable[[Path], bytes] = _read
) -> Iterator[tuple[str, str]]:
    """Yield the files that are not as a manifest says, each with the cause: of the farm, and of its vLLM.

    Args:
        told: the manifest.
        farm: the folder of the farm.
        read: returns the content of a file; another one for the files that another process sees.
    """
    for path, is_right in _expected(told, farm):
        try:
            if not is_right(read(path)):
                yield str(path), "it has changed"
        except OSError as error:
            yield str(path), (error.strerror or str(error)).lower()


def _expected(told: Mapping[str, Any], farm: Path) -> Iterator[tuple[Path, Callable[[bytes], bool]]]:
    """Yield each file that a manifest is about, with what its content has to hold to."""
    files, applied, release, installed = told["files"], told["applied"], told["release"], Path(told["root"])
    yield from ((farm / file, _one_of(known)) for file, known in files.items())
    # A later `vpatch apply` of the same overlays puts the farm's bytes in place of the replaced ones.
    yield from ((installed / file, _one_of(known, files.get(file, known))) for file, known in told["replaced"].items())
    yield from ((installed / file, _one_of(known)) for file, known in applied.items())
    if release["modules"]:
        changed = {*files, *applied}
        yield installed / release["info"] / "RECORD", lambda data: release_of(release["info"], data, changed) == release


def _one_of(*known: str) -> Callable[[bytes], bool]:
    return lambda data: _sha256(data) in known


def _release_at(root: Path, info: str, changed: Collection[str]) -> dict[str, str]:
    record = root / info / "RECORD"
    return release_of(info, _read(record) if record.exists() else None, changed)


def foreign(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if this interpreter is of another environment, which has inherited the farm on PYTHONPATH."""
    info, changed = told["release"]["info"], {*told["files"], *told["applied"]}
    guest = importlib.import_module("vpatch_stock")  # of the farm; `hold_receipt` does without
    yield from guest.foreign(told, FARM, MANIFEST, lambda root: _release_at(root, info, changed))


def misled(told: Mapping[str, Any], asked: str) -> Iterator[str]:
    """Yield a line if a process was started for another digest; "" if its environment names none."""
    if not told["digest"].startswith(asked):
        yield f"started for {asked[:12]}, and finds {told['digest'][:12]}"


def _told() -> Mapping[str, Any]:
    try:
        return parsed((FARM / MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise RuntimeError(f"vpatch: this process cannot prove what it runs: {FARM / MANIFEST}: {error}") from error


def _elsewhere(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield the modules that this process has loaded from other files than the farm's."""
    for file in ("vllm/__init__.py", *told["files"], *told["applied"]):
        name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if (module := sys.modules.get(name)) is not None:
            loaded = getattr(module, "__file__", None)
            if not loaded or _place(loaded) != _place(FARM / file):
                yield f"{name} comes from {loaded or 'no file'}"


def _place(file: str | Path) -> str:
    """Return a path without links on the way to the file, which may be a link itself: the farm has some."""
    return os.path.join(os.path.realpath(os.path.dirname(file)), os.path.basename(file))  # noqa: PTH118, PTH119, PTH120


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

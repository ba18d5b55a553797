"""Python environments, read by their files: nothing of them is run, so what only their start-up code knows is unknown.

So it is safe to examine an environment of another user, on a share or in a cloned repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from vpatch.errors import Failure, Problem
from vpatch.foreign import parse_json, read_regular

PROJECT = (".venv", "venv")  # what projects call their environment, the usual name first
NONE = " has none"
_MOST = 1 << 18  # bytes of a `.pth`, `pyvenv.cfg` or `direct_url.json`
_CODE = ("import ", "import\t")  # Python runs the lines of a `.pth` file that begin so


def import_root(prefix: Path) -> Path | None:
    """Return the folder from which the interpreter of an environment imports `vllm`; None if no file shows it.

    Args:
        prefix: the folder of the environment.

    Raises:
        Failure: there is more than one.
    """
    for sites in (own_sites(prefix), _base_sites(prefix)):
        roots = sorted({root for site in sites if (root := _root_of(site))})
        if len(roots) > 1:
            raise Failure(Problem("more than one vllm", str(prefix), ", ".join(map(str, roots))))
        if roots:
            return roots[0]
    return None


def absence(prefix: Path, python: Path | str) -> str:
    """Return why no vLLM is found in an environment, to follow its name."""
    if not _is_hidden(prefix):
        return NONE
    return f": only its start-up code finds its vllm, and vpatch does not run that; if you trust it: --python {python}"


def prefix_of(root: Path) -> Path | None:
    """Return the environment whose site-packages or dist-packages folder this is, by its place alone; else None."""
    found = re.fullmatch(r"(.*)/lib(?:64)?/python3[.\d]*/(?:site|dist)-packages", str(root))
    return Path(found[1] or "/") if found else None


def interpreter_in(prefix: Path) -> Path | None:
    """Return the interpreter of an environment, which may be anything that has its name; None if it has none."""
    names = [site.parent.name for site in own_sites(prefix)]
    names = ["python", *names] if (prefix / "pyvenv.cfg").is_file() else [*names, "python3", "python"]
    folders = [prefix, *([Path("/usr")] if prefix == Path("/usr/local") else [])]  # Debian's Python also reads that one
    found = (folder / "bin" / name for folder in folders for name in dict.fromkeys(names))
    return next((python.absolute() for python in found if python.is_file()), None)


def program_of(place: Path) -> Path | None:
    """Return the interpreter that the user names by TREE, or that belongs to it; None if none is known."""
    if place.is_file():
        return place.absolute()
    prefix = prefix_of(place.resolve())
    return interpreter_in(place) or (interpreter_in(prefix) if prefix else None)


def version_of(prefix: Path) -> str:
    """Return the version of an environment's Python as its files have it, such as "3.12.3" or "3.12"; "" if unknown."""
    settings = _settings(prefix)
    found = re.match(r"3\.\d+(\.\d+)?", settings.get("version", settings.get("version_info", "")))
    if found:
        return found[0]
    names = {site.parent.name.removeprefix("python") for site in own_sites(prefix)} - {"3"}
    return names.pop() if len(names) == 1 else ""


def settings_in(text: str) -> dict[str, str]:
    """Parse a `pyvenv.cfg` (PEP 405), as Python's `site` does."""
    lines = (line.partition("=") for line in text.splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def imports_from_base(settings: Mapping[str, str]) -> bool:
    """Whether a virtual environment also imports from the Python that it was made from."""
    return settings.get("include-system-site-packages", "").lower() == "true"


def own_sites(prefix: Path) -> list[Path]:
    """List an environment's own folders for packages, resolved."""
    found = [path for kind in ("site", "dist") for path in sorted(prefix.glob(f"lib*/python3*/{kind}-packages"))]
    return list(dict.fromkeys(path.resolve() for path in found if path.is_dir()))


def search_path(prefix: Path) -> list[Path]:
    """List the folders that an environment's interpreter imports packages from, in order."""
    sites = [*own_sites(prefix), *_base_sites(prefix)]
    return list(dict.fromkeys([*sites, *(folder for site in sites for folder in _linked(site))]))


def editable_source(direct_url: str | bytes | None) -> Path | None:
    """Return the folder that a package is installed from for editing, by its `direct_url.json`; None for others."""
    try:
        document = parse_json(direct_url or "{}", _MOST)
        folder = Path(unquote(urlsplit(document["url"]).path))
        return folder if document["dir_info"]["editable"] and folder.is_absolute() else None
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _is_hidden(prefix: Path) -> bool:
    """Whether an environment without a vLLM in its files may have one that its start-up code finds."""
    for site in (*own_sites(prefix), *_base_sites(prefix)):
        if any((info / "METADATA").is_file() for info in site.glob("vllm-*.dist-info")):
            return True
        if any(line.startswith(_CODE) and "vllm" in line for _, line in _lines(site)):
            return True
    return False


def _root_of(site: Path) -> Path | None:
    if (site / "vllm").is_dir():
        return site
    infos = sorted(site.glob("vllm[-_]*.dist-info"))
    edited = (editable_source(_text(info / "direct_url.json")) for info in infos)
    folders = (*_linked(site), *filter(None, edited))
    return next((folder.resolve() for folder in folders if (folder / "vllm/__init__.py").is_file()), None)


def _linked(site: Path) -> Iterator[Path]:
    """Yield the folders that the `.pth` files of a site name."""
    for pth, line in _lines(site):
        folder = pth.parent / line
        if not line.startswith(_CODE) and folder.is_dir():
            yield folder.resolve()


def _lines(site: Path) -> Iterator[tuple[Path, str]]:
    for pth in sorted(path for path in site.glob("*.pth") if not path.name.startswith(".")):
        for line in _text(pth).splitlines():
            if line.strip() and not line.startswith("#"):
                yield pth, line.rstrip()


def _base_sites(prefix: Path) -> list[Path]:
    """List the folders of the Python that a virtual environment was made from, if it imports from them."""
    settings = _settings(prefix)
    if not imports_from_base(settings) or not settings.get("home"):
        return []
    base = Path(settings["home"]).parent
    return [*own_sites(base), *(own_sites(base / "local") if base == Path("/usr") else [])]


def _settings(prefix: Path) -> dict[str, str]:
    return settings_in(_text(prefix / "pyvenv.cfg"))


def _text(file: Path) -> str:
    """Return the text of a file; "" if it is no file that can be read."""
    try:
        return read_regular(file, _MOST).decode("utf-8-sig", "surrogateescape")
    except OSError:
        return ""

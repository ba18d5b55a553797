"""Find the vLLM that an image's interpreter imports, from the image's files and configuration alone.

The order is that of Python's `getpath` and `site`: the folder that it is started in, PYTHONPATH, packages of a virtual
environment, of the user, of the installation; each of the last three with the folders that its `.pth` files name.
Nothing of the image is started here. What code decides (`sitecustomize`, the code in `.pth` files) is not seen; the
tests of an image ask its interpreter.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from vpatch.errors import Failure, Problem
from vpatch.image.config import Base
from vpatch.image.filesystem import Files, Kind, Place
from vpatch.tree import sites

_MINORS = tuple(range(10, 15))  # the minor versions of Python that vLLM's releases name
# Where images usually have virtual environments, conda and Python; others are found by PATH and the image's command.
_USUAL_PREFIXES = ("opt/venv", "opt/conda", "usr/local", "usr")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_LINKS = 40  # as in Linux
_ROOT = ("", "0", "root")  # the user
_CODE = ("import ", "import\t")  # how a line of a `.pth` file begins that `site` executes

Names = Callable[[str], Sequence[str]]
Folders = Sequence[str]


def resolve(path: str, link: Callable[[str], str | None]) -> str:
    """Return a path without the links in it; `link` returns the target of the one at a path, None without one."""
    done, rest, followed = "", path.split("/"), 0
    while rest:
        part, *rest = rest
        if part in ("", "."):
            continue
        here = posixpath.dirname(done) if part == ".." else f"{done}/{part}".lstrip("/")
        target = None if part == ".." else link(here)
        if target is None:
            done = here
            continue
        followed += 1
        if followed > _MAX_LINKS:
            return here  # the kernel gives up, too: nothing is found there
        done, rest = "" if target.startswith("/") else done, [*target.split("/"), *rest]
    return done


def pythonpath(image: Base) -> list[str]:
    """Return the folders of PYTHONPATH; relative ones are below the folder that containers start in."""
    named = image.env.get("PYTHONPATH", "")
    return [posixpath.join("/", image.workdir, folder) for folder in named.split(":")] if named else []


def find_vllm(files: Files, image: Base, python: str | None = None, names: Names = lambda _: ()) -> Place:
    """Find the one vLLM that the image's interpreter would import, or that the interpreter `python` in it would.

    Args:
        files: the image's files.
        image: its configuration.
        python: the interpreter's path; None: any that the image may be meant to run.
        names: lists a folder, to find `.pth` files. By default they are not looked for: an engine would send all of
            site-packages.

    Raises:
        Failure: the image has no vLLM, or its files do not determine which one Python imports.
    """
    search = _Search(files, image, names)
    steps = [*(search.of_interpreter(python) if python else search.of_image())]
    found = [search.imported(folders) for folders in steps]
    # The interpreter takes the first; without its name, a second one would mislead whoever inspects the image.
    there = next(filter(None, found), []) if python else list(dict.fromkeys(path for step in found for path in step))
    if not there:
        looked = ", ".join(dict.fromkeys(f"/{folder}" for step in steps for folder in step if folder))
        cause = f"looked in {looked or 'no site-packages at all'}"
        raise Failure(Problem("no vllm", image.ref, cause, hint="name its interpreter with --python"))
    if len(there) > 1:
        both = " and ".join(f"/{path}" for path in there)
        how = "with its version, as in python3.12" if python else "with --python"
        raise Failure(Problem("more than one vllm", image.ref, f"{both}: name an interpreter in the image {how}"))
    root, name = posixpath.split(there[0])
    if name != "vllm" or not root:
        raise Failure(Problem("cannot patch", image.ref, f"vllm is /{there[0]}, no package in a folder of packages"))
    return Place(root, _dist_info(files, root, image.ref))


class _Search:
    """The folders in which an interpreter of an image looks: in steps, each of folders of which one is searched."""

    def __init__(self, files: Files, image: Base, names: Names) -> None:
        self._files, self._image, self._names = files, image, names

    def of_image(self) -> Iterator[Folders]:
        """Yield the folders of every interpreter that the image may be meant to run."""
        yield [self._at(self._image.workdir)]
        yield [self._at(folder) for folder in pythonpath(self._image)]
        yield from self._with_pth(self._of_user(_MINORS))
        for prefix in self._prefixes():
            yield from self._of_prefix(prefix, _MINORS)

    def of_interpreter(self, python: str) -> Iterator[Folders]:
        """Yield the folders of one interpreter, in its order."""
        program, option, *_ = (*self._image.command, "", "")
        runs_module = re.fullmatch(r"python[\d.]*", posixpath.basename(program)) and option in ("-m", "-c")
        if runs_module and not self._image.env.get("PYTHONSAFEPATH"):  # it imports from the current folder first
            yield [self._at(self._image.workdir)]
        yield from ([self._at(folder)] for folder in pythonpath(self._image))
        real = self._at(python)
        version = re.fullmatch(r"python3\.(\d+)", posixpath.basename(real))
        minors = (int(version[1]),) if version else _MINORS
        prefix = posixpath.dirname(posixpath.dirname(real))
        # Only the path as it is named counts: a link to the interpreter of an environment is not of the environment.
        above = posixpath.dirname(posixpath.dirname(posixpath.join("/", python)))
        settings = self._text(f"{above}/pyvenv.cfg")
        if settings is not None:
            yield from self._of_prefix(self._at(above), minors)
            chosen = sites.settings_in(settings)
            if not sites.imports_from_base(chosen):
                return
            prefix = self._at(posixpath.dirname(chosen["home"])) if chosen.get("home") else prefix
        yield from self._with_pth(self._of_user(minors))
        for one in ("usr/local", "usr") if prefix == "usr" else (prefix,):  # Debian's reads both
            yield from self._of_prefix(one, minors)

    def imported(self, folders: Iterable[str]) -> list[str]:
        """Return what `import vllm` finds in each of the folders that has one: a package, or a module."""
        found = []
        for folder in folders:
            package = self._at(f"{folder}/vllm")
            if self._files.kind(f"{package}/__init__.py") is not None:
                found.append(package)
            elif self._files.kind(module := self._at(f"{folder}/vllm.py")) is Kind.FILE:
                found.append(module)
        return list(dict.fromkeys(found))

    def _at(self, path: str) -> str:
        return resolve(path, self._link)

    def _link(self, path: str) -> str | None:
        # An engine answers the one question much faster than the other.
        here = self._files.entry(path) if self._files.kind(path) is Kind.LINK else None
        return here.target if here else None

    def _text(self, path: str) -> str | None:
        at = self._at(path)
        content = self._files.read(at) if self._files.kind(at) is Kind.FILE else None
        return None if content is None else content.decode("utf-8", "replace")

    def _prefixes(self) -> list[str]:
        env, command = self._image.env, self._image.command[:1]
        programs = [posixpath.dirname(one) for one in command if one.startswith("/")]
        folders = [*programs, *env.get("PATH", _DEFAULT_PATH).split(":")]
        above = [posixpath.dirname(one) for one in folders if one.startswith("/") and one.endswith(("/bin", "/sbin"))]
        named = [env[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name, "").startswith("/")]
        known = dict.fromkeys(map(self._at, (*named, *above, *_USUAL_PREFIXES)))
        return [prefix for prefix in known if prefix and self._files.kind(prefix) is Kind.FOLDER]

    def _of_prefix(self, prefix: str, minors: Iterable[int]) -> Iterator[Folders]:
        for library in dict.fromkeys(self._at(f"{prefix}/{name}") for name in ("lib", "lib64")):
            if self._files.kind(library) is Kind.FOLDER:
                there = self._versions(library, minors)
                yield from self._with_pth([f"{folder}/site-packages" for folder in there])
                yield from self._with_pth([f"{folder}/dist-packages" for folder in there])
                if self._files.kind(debian := f"{library}/python3/dist-packages") is Kind.FOLDER:
                    yield from self._with_pth([debian])

    def _of_user(self, minors: Iterable[int]) -> Folders:
        env = self._image.env
        base = env.get("PYTHONUSERBASE") or f"{env.get('HOME') or self._home()}/.local"
        library = self._at(posixpath.join("/", self._image.workdir, base, "lib"))
        there = () if env.get("PYTHONNOUSERSITE") else self._versions(library, minors)
        return [f"{folder}/site-packages" for folder in there]

    def _versions(self, library: str, minors: Iterable[int]) -> Folders:
        if self._files.kind(library) is not Kind.FOLDER:
            return ()
        versions = (f"{library}/python3.{minor}" for minor in minors)
        return [folder for folder in versions if self._files.kind(folder) is Kind.FOLDER]

    def _home(self) -> str:
        user = self._image.user.partition(":")[0]
        number = "0" if user in _ROOT else user
        for line in (self._text("etc/passwd") or "").splitlines():
            fields = line.split(":")
            if len(fields) > 5 and (fields[2] == number or fields[0] == user):
                return fields[5]
        return "/root" if user in _ROOT else "/"

    def _with_pth(self, folders: Iterable[str]) -> Iterator[Folders]:
        """Yield site folders, then those that their `.pth` files name."""
        sites = [*map(self._at, folders)]
        yield sites
        for path in (f"{site}/{name}" for site in sites for name in sorted(self._names(site)) if name.endswith(".pth")):
            for line in map(str.rstrip, (self._text(path) or "").splitlines()):
                if not line.startswith(_CODE):
                    if line and not line.startswith("#"):
                        yield [self._at(posixpath.join("/", posixpath.dirname(path), line))]
                elif "vllm" in line.casefold():
                    why = f"/{path} runs code that decides it"
                    hint = "build with an engine, whose tests ask the interpreter"
                    raise Failure(Problem("which vllm is not known", self._image.ref, why, hint=hint))


def _dist_info(files: Files, root: str, name: str) -> str:
    # The version in vLLM names it: to list a folder, an engine sends all that is below it.
    content = files.read(f"{root}/vllm/_version.py") or b""
    if version := re.search(rb"^__version__ = .*?'([^']+)'", content, re.MULTILINE):
        guess = f"vllm-{version[1].decode(errors='replace')}.dist-info"
        if files.kind(f"{root}/{guess}/RECORD") is not None:
            return guess
    named = [one for one in files.names(root) if re.fullmatch(r"vllm-.+\.dist-info", one)]
    # One without METADATA is no installation, see `tree.upgrade`.
    infos = [one for one in named if files.kind(f"{root}/{one}/METADATA") is not None]
    if len(infos) != 1:
        cause = f"{' and '.join(infos)}: remove the wrong one" if infos else "vllm/ has no dist-info beside it"
        raise Failure(Problem("more than one vllm" if infos else "no dist-info", f"{name}: /{root}", cause))
    return infos[0]

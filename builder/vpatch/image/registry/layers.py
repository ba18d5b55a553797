"""The file system of an image in a registry, read with as few of its layers as a question needs; and vLLM in it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from io import BytesIO
from itertools import chain
from typing import IO, Any

from vpatch.errors import Failure, Problem
from vpatch.image.config import Base, steps_of
from vpatch.image.filesystem import Entry, Files, Kind, Limits, Place, read_record
from vpatch.image.registry.image import RemoteImage
from vpatch.image.registry.repository import Descriptor, read_blob, retry
from vpatch.image.registry.tar import BadLayerError, Copy, LayerView, Spent, read_layer, read_paths
from vpatch.image.search import find_vllm, pythonpath, resolve
from vpatch.net import megabytes, size
from vpatch.net.ranges import Progress

SMALL = 1 << 20  # bytes of a layer that is read rather than skipped

_INFO = re.compile(r"(?P<root>.+)/vllm-[^/]+\.dist-info/RECORD")
_SOURCE = re.compile(r".*/vllm/.*\.py|.*/vllm-[^/]+\.dist-info/.*|.*-packages/[^/]+\.pth|(.*/)?pyvenv\.cfg|etc/passwd")
_IMPORTABLE = re.compile(r".+-packages/vllm(/__init__)?\.py")
_OF_USER = re.compile(r"(.+/)?\.local/lib/python3\.\d+/site-packages/vllm/__init__\.py")
_COMPILED = re.compile(r".*/vllm/.*\.so")
# The engine's own builder and BuildKit: only their history is trusted to describe all of a layer. Not of ADD, which
# unpacks archives, whose links can lead anywhere.
_COPIED = re.compile(r"COPY .*\s(?P<buildkit>/\S*) # buildkit|.*#\(nop\) +COPY .* in (?P<classic>/\S*)\s*")
# Links in every distribution with a merged /usr, which give one folder two names. No other links are considered.
_MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")


class UnreadError(Failure):
    """A layer has to be read, and is larger than what may be."""


class LayeredFiles(Files):
    """The files of `image` in the layers that `descend` and `locate` have reached; lower ones do not exist yet.

    Once `listed` is set, those files are searched in all layers, and so are mode and owner of every folder. Only files
    that `keep` accepts keep their bytes. A layer is read once and as a whole, or twice if a kept file is a hard link to
    one that was not kept. A layer that was passed over is read as soon as a question concerns it, so no answer is wrong
    because of it. `known` are layers that were read for another image, by digest. Layers whose numbers are in `skipped`
    count as empty. Of the others, at most `most` bytes are read, packed; what needs more raises `UnreadError`.
    """

    def __init__(
        self,
        image: RemoteImage,
        keep: Callable[[Entry], bool],
        *,
        known: Mapping[str, LayerView] | None = None,
        progress: Progress | None = None,
        most: int | None = None,
    ) -> None:
        self.bytes_read, self._planned = 0, 0
        self.layers_read: list[Descriptor] = []
        self.listed: frozenset[str] | None = None
        self.skipped: set[int] = set()
        self._most = most
        self._image, self._keep, self._progress, self._usage = image, keep, progress, Spent()
        self._matches: dict[Callable[[str], object], tuple[set[str], dict[str, bool]]] = {}
        self.views = dict(known or {})  # the layers that were read, by digest: an image may have one many times
        self._diff_ids: dict[str, str] = {}
        self._depth = len(image.layers)  # the lowest layer reached
        self._destinations = destinations(image.config, len(image.layers))
        self._confirmed: dict[int, bool] = {}

    def descend(self, *folders: str) -> bool:
        """Read the next lower layer that may concern one of the `folders`, if any are given; False at the bottom."""
        while self._depth:
            self._depth -= 1
            if self._depth in self.skipped:
                return True
            if not folders or any(self._may_have(self._depth, folder) for folder in folders):
                self._view(self._depth)
                return True
        return False

    def locate(self, path: str) -> Entry | None:
        """Descend until a layer has or removes `path`, if need be to the bottom; then return what is there."""
        while not any(path in view.entries or view.hides(path) for view in self._above(path)) and self.descend(path):
            continue
        return entry_in(self._above(path), path)

    def reach(self, path: str) -> None:
        """Descend until it is known what is at `path`, through the links on the way; if need be to the bottom."""

        def link(at: str) -> str | None:
            here = self.entry(at) or self.locate(at)
            return here.target if here and here.kind is Kind.LINK else None

        resolve(path, link)

    def matching(self, wanted: Callable[[str], object]) -> list[str]:
        """Return the paths, sorted, of all entries that are wanted. A second call searches new layers only."""
        done, seen = self._matches.setdefault(wanted, (set(), {}))
        new = {layer.digest for layer in self._image.layers[self._depth :]} & self.views.keys() - done
        for path in chain.from_iterable(filter(wanted, self.views[digest].entries) for digest in new):
            if path not in seen:
                seen[path] = self.entry(path) is not None  # no lower layer changes that
            if len(seen) > Limits.RECORDS:
                raise self.failure(f"more than {Limits.RECORDS} places in its layers look like a vLLM")
        done |= new
        return sorted(path for path, there in seen.items() if there)

    def entry(self, path: str) -> Entry | None:
        """Return the entry at `path`."""
        found = self.locate(path) if path in (self.listed or ()) else entry_in(self._above(path), path)
        # A layer need not list the folders of its files; a lower one has their mode and owner.
        while self.listed is not None and found and not any(path in view.entries for view in self._above(path)):
            if not self.descend(path):
                break
            found = entry_in(self._above(path), path)
        return found

    def read(self, path: str) -> bytes | None:
        """Return a file's bytes."""
        if not isinstance(kept := self._kept(path), Copy):
            return kept
        if kept.size > Limits.SOURCE:
            raise self.failure(f"{path} has {kept.size:,} bytes, and may have {size(Limits.SOURCE)}")
        with kept.open() as file:
            return file.read()

    def open(self, path: str) -> IO[bytes] | None:
        """Open a file; the caller closes it."""
        if isinstance(kept := self._kept(path), Copy):
            return kept.open()
        return None if kept is None else BytesIO(kept)

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names in a folder, sorted."""
        for path in self.listed or ():
            if path.startswith(f"{folder}/"):
                self.locate(path)
        return names_in(self._above(folder), folder)

    def affords(self, layer: Descriptor) -> bool:
        """Whether a layer may be read, too."""
        return self._most is None or layer.digest in self.views or self._planned + layer.size <= self._most

    def failure(self, why: str) -> Failure:
        """Return the failure that the image cannot be read."""
        return self._image.repository.failure(why)

    def _kept(self, path: str) -> bytes | Copy | None:
        if (found := self.entry(path)) is None:
            return None
        if found.kind is not Kind.FILE:
            raise self.failure(f"{path} is a {found.kind.value}")
        view = next(view for view in self._above(path) if path in view.entries)
        if path not in view.contents:
            raise self.failure(f"the bytes of {path} were not kept")
        return view.contents[path]

    def _above(self, path: str) -> Iterator[LayerView]:
        for number in range(len(self._image.layers) - 1, self._depth - 1, -1):
            if number in self.skipped:
                continue
            if self._image.layers[number].digest in self.views or self._may_have(number, path):
                yield self._view(number)

    def _may_have(self, number: int, path: str) -> bool:
        destination = self._destinations[number]
        if destination is None or self._image.layers[number].size <= SMALL or _overlap(destination, path):
            return True
        if number not in self._confirmed:
            self._confirmed[number] = self._begins_in(self._image.layers[number], destination)
        return not self._confirmed[number]

    def _begins_in(self, layer: Descriptor, destination: str) -> bool:
        """Whether a layer's first file is in the folder that it was copied to, and not where a link there leads."""
        folder = _unmerged(destination)
        try:
            with closing(read_blob(self._image.repository, layer, self._received)) as blob:
                paths = map(_unmerged, read_paths(blob, self._usage.copy()))
                first = next((path for path in paths if not f"{folder}/".startswith(f"{path}/".lstrip("/"))), folder)
                return _overlap(first, folder)
        except (BadLayerError, Failure):
            return False  # it is read, and fails with the reason

    def _view(self, number: int) -> LayerView:
        layer, diff_id = self._image.layers[number], self._image.diff_ids[number]
        if layer.digest not in self.views:
            view, self._diff_ids[layer.digest] = self._scan(layer, self._keep)
            if missing := set(view.linked.values()):
                found = self._scan(layer, lambda entry: entry.path in missing)[0].contents
                view.contents |= {path: found[source] for path, source in view.linked.items() if source in found}
            self.views[layer.digest] = view
        if self._diff_ids.get(layer.digest, diff_id) != diff_id:
            raise self.failure(f"the layer {layer.digest} is not what its diffID says")
        return self.views[layer.digest]

    def _scan(self, layer: Descriptor, keep: Callable[[Entry], bool]) -> tuple[LayerView, str]:
        if not self.affords(layer):
            what = f"the layer {layer.digest} was not read"
            why = f"{megabytes(layer.size)}, and vpatch reads at most {megabytes(self._most or 0)} of an image"
            raise UnreadError(Problem(what, str(self._image.ref), why))
        self._planned += layer.size
        self.layers_read.append(layer)

        def read() -> tuple[LayerView, str]:
            usage = self._usage.copy()  # a blob that was cut is read again from its beginning
            with closing(read_blob(self._image.repository, layer, self._received)) as blob:
                found = read_layer(blob, keep, usage)
            self._usage = usage
            return found

        try:
            return retry(read)
        except BadLayerError as error:
            raise self.failure(f"the layer {layer.digest} {error}") from error

    def _received(self, count: int) -> None:
        self.bytes_read += count
        if self._progress:
            self._progress(self.bytes_read, max(self._planned, self.bytes_read))


def entry_in(views: Iterable[LayerView], path: str) -> Entry | None:
    """Return the entry at `path` in stacked layers, given from the top; None if they have none."""
    folder = None
    for view in views:
        if found := view.entries.get(path):
            return found if folder is None or found.kind is Kind.FOLDER else folder
        if path in view.children:  # a tar need not list the folders of its files
            folder = folder or Entry(path, Kind.FOLDER, 0o755, 0, 0, 0)
        if view.hides(path):
            break
    return folder


def names_in(views: Iterable[LayerView], folder: str) -> tuple[str, ...]:
    """Return the names in a folder, sorted, in stacked layers, given from the top."""
    names: set[str] = set()
    removed: set[str] = set()
    for view in views:
        names |= view.children.get(folder, set()) - removed
        removed |= view.removed_in(folder)
        if view.hides_content(folder):
            break
    return tuple(sorted(names))


def destinations(config: Mapping[str, Any], layers: int) -> tuple[str | None, ...]:
    """Return for each layer, from the lowest, the path it was copied to; None if its history does not prove one."""
    paths: list[str | None] = []
    for step in steps_of(config, layers):
        # The pattern takes long for a long line that is made for it.
        found = _COPIED.fullmatch(step) if len(step) <= Limits.PATH else None
        path = found and (found["buildkit"] or found["classic"])
        paths.append(path if path and "$" not in path else None)
    return tuple(paths)


def _overlap(one: str, other: str) -> bool:
    one, other = f"{_unmerged(one)}/".lstrip("/"), f"{_unmerged(other)}/".lstrip("/")
    return one.startswith(other) or other.startswith(one)


def _unmerged(path: str) -> str:
    path = posixpath.normpath(f"/{path}").strip("/")
    return f"usr/{path}" if path.partition("/")[0] in _MERGED else path


def is_wanted(entry: Entry, *, compiled: bool = False) -> bool:
    """Whether an entry is one of vLLM's Python files or in its dist-info; or, if `compiled`, a compiled extension."""
    return bool(_SOURCE.fullmatch(entry.path) or (compiled and _COMPILED.fullmatch(entry.path)))


def open_vllm(layers: LayeredFiles, base: Base, python: str | None) -> Place:
    """Read layers from the top until one has a vLLM with its dist-info; a second one further down is not noticed.

    Lower layers are read for what decides between two, for what PYTHONPATH names, and for the home of a user who has
    vLLM there.
    """
    while not _roots(layers):
        if not layers.descend():
            raise Failure(Problem("no vllm", base.ref, "none of its layers has one with its dist-info"))
    for folder in pythonpath(base):
        layers.reach(f"{folder}/vllm/__init__.py")
    if not base.env.get("HOME") and layers.matching(_OF_USER.fullmatch):
        layers.reach("etc/passwd")
    # A link, a `.pth` file or the settings of an environment may lie anywhere.
    while len({*_roots(layers), *map(posixpath.dirname, _modules(layers))}) > 1 and layers.descend():
        continue
    vllm = find_vllm(layers, base, python, layers.names)
    found = read_record(layers, vllm)
    layers.listed = frozenset(f"{vllm.root}/{row.path}" for row in (found.rows if found else ()))
    return vllm


def _modules(layers: LayeredFiles) -> Iterator[str]:
    return (path.removesuffix("/__init__.py") for path in layers.matching(_IMPORTABLE.fullmatch))


def _roots(layers: LayeredFiles) -> list[str]:
    infos = layers.matching(_INFO.fullmatch)
    if len(infos) > Limits.VLLMS:
        raise layers.failure(f"more than {Limits.VLLMS} places in it look like a vLLM")
    roots = [found["root"] for path in infos if (found := _INFO.fullmatch(path))]
    return [root for root in roots if layers.entry(f"{root}/vllm/__init__.py") is not None]

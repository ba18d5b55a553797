"""The file system of an image in a registry, of which no more layers are read than a question needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from itertools import chain
from typing import IO

from vpatch.errors import Failure
from vpatch.image import limits
from vpatch.image.limits import Spent
from vpatch.image.model import Entry, Kind
from vpatch.image.registry.descriptors import Descriptor, stream
from vpatch.image.registry.history import destinations, related
from vpatch.image.registry.pulled import RemoteImage
from vpatch.image.registry.repository import persist
from vpatch.image.registry.tars import BadLayerError, read_layer
from vpatch.image.registry.view import View, entry_in, names_in
from vpatch.net.ranges import Progress

SMALL = 1 << 20  # bytes of a layer that is sooner read than proven to be of no use


class LayeredFiles:
    """The files of `image`, as far down as `deeper` and `settle` have gone: what lies lower is not there yet.

    `keep` says of which files the bytes are to be had, all others are passed over. A layer is read once, or twice
    where a file to be kept is a hard link to one that was not, and as a whole. One that was passed over is read as
    soon as a question concerns it, so that no answer is wrong because of it. `bytes_read` counts what was received,
    `layers_read` what of. `known` are layers that were read for another image, by digest.
    """

    def __init__(
        self,
        image: RemoteImage,
        keep: Callable[[Entry], bool],
        *,
        known: Mapping[str, View] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.bytes_read = 0
        self.layers_read: list[Descriptor] = []
        self._image, self._keep, self._progress = image, keep, progress
        self._planned = 0
        self._spent = Spent()
        self._scanned: dict[str, tuple[View, str]] = {}  # by digest: an image may have a layer many times
        self._found: dict[Callable[[str], bool], tuple[set[int], dict[str, bool]]] = {}
        numbers = {layer.digest: number for number, layer in enumerate(image.layers)}
        self._views = {numbers[digest]: view for digest, view in (known or {}).items() if digest in numbers}
        self._depth = len(image.layers)  # of the lowest layer that was gone down to
        self._destinations = destinations(image.config, len(image.layers))

    @property
    def views(self) -> Mapping[str, View]:
        """What was read, by the digest of the layer."""
        return {self._image.layers[number].digest: view for number, view in self._views.items()}

    def deeper(self, *folders: str) -> bool:
        """Go down to the next layer and read it; False at the bottom.

        With `folders`, layers are passed over that the image's history proves to have nothing in, above or below them.

        Raises:
            Failure: the layer cannot be read, is damaged or not to be trusted.
        """
        while self._depth:
            self._depth -= 1
            if not folders or any(self._may_have(self._depth, folder) for folder in folders):
                self._view(self._depth)
                return True
        return False

    def settle(self, path: str) -> Entry | None:
        """Go down until a layer has `path` or takes it away, which may be to the bottom; then say what is there.

        Raises:
            Failure: a layer cannot be read, is damaged or not to be trusted.
        """
        while not any(path in view.entries or view.hides(path) for view in self._above(path)) and self.deeper(path):
            continue
        return self.entry(path)

    def found(self, wanted: Callable[[str], bool]) -> list[str]:
        """The paths, sorted, of all entries that are wanted. Asked again, it looks into new layers only.

        Raises:
            Failure: a layer cannot be read, is damaged or not to be trusted; or more than `limits.RECORDS` entries are
                wanted, those included that layers above hide.
        """
        done, seen = self._found.setdefault(wanted, (set(), {}))
        new = {number for number in self._views if number >= self._depth} - done
        for path in chain.from_iterable(filter(wanted, self._views[number].entries) for number in new):
            if path not in seen:
                seen[path] = self.entry(path) is not None  # no layer further down changes that
            if len(seen) > limits.RECORDS:
                raise self.failure(f"more than {limits.RECORDS} places in its layers look like a vLLM")
        done |= new
        return sorted(path for path, there in seen.items() if there)

    def entry(self, path: str) -> Entry | None:
        """Say what is at `path`, None where nothing is."""
        return entry_in(self._above(path), path)

    def kind(self, path: str) -> Kind | None:
        """Say of what kind the entry at `path` is."""
        here = self.entry(path)
        return here.kind if here else None

    def is_guess(self, path: str) -> bool:
        """Say whether what is known of a folder is only that something is in it."""
        return not any(path in view.entries for view in self._above(path))

    def read(self, path: str) -> bytes | None:
        """Give a file's bytes, None where there is no file.

        Raises:
            Failure: it is no plain file, or was not to be kept; a layer cannot be read.
        """
        view = self._having(path)
        if view is None:
            return None
        if path in view.contents:
            return view.contents[path]
        if view.entries[path].size > limits.SOURCE:
            told = f"{view.entries[path].size:,} bytes, and may have {limits.size(limits.SOURCE)}"
            raise self.failure(f"{path} has {told}")
        with view.copy(path) as file:
            return file.read()

    def open(self, path: str) -> IO[bytes] | None:
        """Give a file too large to be read at once, to be closed; None where there is no file.

        Raises:
            Failure: it is no plain file, or was not to be kept; a layer cannot be read.
        """
        view = self._having(path)
        return None if view is None else BytesIO(view.contents[path]) if path in view.contents else view.copy(path)

    def failure(self, why: str) -> Failure:
        """The failure that says why the image cannot be read."""
        return self._image.repository.failure(why)

    def names(self, folder: str) -> tuple[str, ...]:
        """Give the names in a folder, sorted; none where there is no folder."""
        return names_in(self._above(folder), folder)

    def _having(self, path: str) -> View | None:
        """Give the layer that has a file's bytes, None where there is no file."""
        found = self.entry(path)
        if found is None:
            return None
        if found.kind is not Kind.FILE:
            raise self.failure(f"{path} is a {found.kind.value}")
        view = next(view for view in self._above(path) if path in view.entries)
        if path not in view.contents and path not in view.copies:
            raise self.failure(f"the bytes of {path} were not kept")
        return view

    def _above(self, path: str) -> Iterator[View]:
        """Give the layers that may have `path`, from the top, as far down as was gone."""
        for number in range(len(self._image.layers) - 1, self._depth - 1, -1):
            if number in self._views or self._may_have(number, path):
                yield self._view(number)

    def _may_have(self, number: int, path: str) -> bool:
        destination = self._destinations[number]
        small = self._image.layers[number].size <= SMALL
        return destination is None or small or related(destination, path)

    def _view(self, number: int) -> View:
        if number not in self._views:
            layer = self._image.layers[number]
            if layer.digest not in self._scanned:
                view, diff_id = self._scan(layer, self._keep)
                if missing := set(view.linked.values()):
                    again, _ = self._scan(layer, lambda entry: entry.path in missing)
                    view.take(again)
                self._scanned[layer.digest] = view, diff_id
            self._views[number], diff_id = self._scanned[layer.digest]
            if diff_id != self._image.diff_ids[number]:
                raise self.failure(f"the layer {layer.digest} is not what its diffID says")
        return self._views[number]

    def _scan(self, layer: Descriptor, keep: Callable[[Entry], bool]) -> tuple[View, str]:
        self._planned += layer.size
        self.layers_read.append(layer)
        try:
            return persist(lambda: self._read(layer, keep))
        except BadLayerError as error:
            raise self.failure(f"the layer {layer.digest} {error}") from error

    def _read(self, layer: Descriptor, keep: Callable[[Entry], bool]) -> tuple[View, str]:
        spent = replace(self._spent)  # a blob that is cut is begun anew
        with closing(stream(self._image.repository, layer, self._hear)) as blob:
            found = read_layer(blob, keep, spent)
        self._spent = spent
        return found

    def _hear(self, count: int) -> None:
        self.bytes_read += count
        if self._progress:
            self._progress(self.bytes_read, max(self._planned, self.bytes_read))

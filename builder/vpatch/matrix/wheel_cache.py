"""What the cache has of a wheel: its RECORD, by which each of its files is found and checked."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from vpatch.matrix.cache import WHEELS, Cache, DamagedError
from vpatch.release.wheel import Sums


@dataclass(frozen=True)
class Shelf:
    """What a cache has of the wheel with this sha256, whose file name is `wheel`. `notes` tell what was damaged."""

    cache: Cache
    sha256: str
    wheel: str
    notes: list[str] = field(default_factory=list)

    def record(self) -> tuple[bytes, int] | None:
        """Give the wheel's RECORD and its size in bytes, None where nothing is known of it.

        Raises:
            Failure: the cache cannot be read.
        """
        try:
            note = self.cache.note(WHEELS, self.sha256)
            record = None if note is None else self.cache.get(note["record"])
        except DamagedError:
            self._tell("RECORD")
            return None
        return None if note is None or record is None else (record, note["size"])

    def files(self, wanted: Collection[str], sums: Sums) -> dict[str, bytes]:
        """Give those of the wanted files that are there, each as RECORD, whose `sums` these are, says.

        Raises:
            Failure: the cache cannot be read.
        """
        found = {}
        for name in sorted({*wanted} & sums.keys()):
            address = _address(sums[name][0])
            try:
                data = self.cache.get(address) if address else None
            except DamagedError:
                self._tell(name)
                continue
            if data is not None and str(len(data)) == sums[name][1]:
                found[name] = data
        return found

    def keep(self, record: bytes, size: int, files: Mapping[str, bytes]) -> None:
        """Keep what came of the wheel, of `size` bytes, once all of it was checked. The note goes last.

        Raises:
            Failure: the cache cannot be written.
        """
        for data in files.values():
            self.cache.put(data)
        note = {"record": self.cache.put(record), "file": self.wheel, "size": size}
        self.cache.put_note(WHEELS, self.sha256, note)

    def _tell(self, name: str) -> None:
        self.notes.append(f"damaged in the cache, fetched again: {name} of {self.wheel}")


def _address(said: str) -> str | None:
    """Give the sha256 that RECORD says as the cache has it, None where RECORD says none."""
    algorithm, _, digest = said.partition("=")
    try:
        raw = urlsafe_b64decode(f"{digest}=")
    except ValueError:
        return None
    return raw.hex() if algorithm == "sha256" and len(raw) == 32 else None

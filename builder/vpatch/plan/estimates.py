"""A number of bytes that is known, or estimated with bounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vpatch.plan import GIB


@dataclass(frozen=True)
class Estimate:
    """A number of bytes: most likely, at least, at most."""

    likely: int
    least: int
    most: int

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.likely + other.likely, self.least + other.least, self.most + other.most)

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(self.likely - other.likely, self.least - other.most, self.most - other.least)

    @property
    def exact(self) -> bool:
        """Whether it has no margin."""
        return self.least == self.most


@dataclass(frozen=True)
class Item:
    """Something that takes memory of a GPU; if it is not `counted`, it comes on top of vLLM's share."""

    name: str
    size: Estimate
    because: str
    counted: bool = True


def exactly(size: int) -> Estimate:
    """Return a computed size as an estimate without a margin."""
    return Estimate(size, size, size)


def within(likely: float, least: float, most: float) -> Estimate:
    """Return an estimate given in GiB."""
    return Estimate(int(likely * GIB), int(least * GIB), int(most * GIB))


def added(items: Iterable[Item]) -> Estimate:
    """Return the sum of the items' sizes."""
    return sum((item.size for item in items), exactly(0))

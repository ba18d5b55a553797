"""What `plan` takes as values: numbers as vLLM spells them, versions; and what a shell completes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import click
from packaging.version import InvalidVersion, Version

from vpatch.plan.defaults import GPUS, presets
from vpatch.plan.deployment import KV_TYPES, MOST, RELEASES

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def release_named(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Version | None:
    """Read a version of vLLM, with the third number that releases and their images have."""
    try:
        version = Version(value) if value else None
    except InvalidVersion as error:
        raise click.BadParameter(f"{value!r} is not a version of vLLM") from error
    return Version(f"{version}.0") if version and re.fullmatch(r"\d+\.\d+", str(version)) else version


class Number(click.ParamType):  # type: ignore[type-arg]
    """A number from `least` on, above it if that is 0, up to `most`; `--help` does not show these bounds."""

    name = "number"

    def __init__(self, least: float, most: float) -> None:
        self.range = click.FloatRange(least, most, min_open=not least)
        self.range.name = self.name  # in its messages

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail for one that is out of range, or no number."""
        found = self.range.convert(value, param, ctx)
        if math.isnan(found):  # it is neither below nor above a bound
            self.fail(f"{value!r} is not a number", param, ctx)
        return found


class Count(click.ParamType):  # type: ignore[type-arg]
    """A whole number as vLLM takes it: 25600, 25.6k (thousands) or 25K (of 1,024), and so for M, G and T."""

    name = "number"

    def __init__(self, least: int = 1, most: int = MOST, *, auto: bool = False) -> None:
        self.range, self.auto = click.IntRange(least, most), auto
        self.range.name = self.name  # in its messages

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or `auto` where that is a value; fail for one that is out of range, or not whole."""
        if self.auto and value in ("auto", "-1"):
            return "auto"
        if isinstance(value, str) and (parts := re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)([kKmMgGtT])", value)):
            power = "kmgt".index(parts[2].lower()) + 1
            size = Decimal(parts[1]) * (1000 if parts[2].islower() else 1024) ** power
            if size % 1:
                self.fail(f"{value!r} is not a whole number", param, ctx)
            value = int(size)
        return self.range.convert(value, param, ctx)


def _one_of(names: Callable[[], list[str]]) -> Complete:
    """Return what completes a name by its beginning, in any case."""
    return lambda _context, _parameter, typed: [one for one in names() if one.lower().startswith(typed.lower())]


complete_preset = _one_of(lambda: [one.name for one in presets()])
# Without spaces, which the shell would take for the ends of words; `gpu` reads any spelling.
complete_gpu = _one_of(lambda: sorted(one.name.lower().removeprefix("rtx ").replace(" ", "-") for one in GPUS))
complete_kv_type = _one_of(lambda: list(KV_TYPES))
complete_release = _one_of(lambda: [str(one) for one in reversed(RELEASES)])

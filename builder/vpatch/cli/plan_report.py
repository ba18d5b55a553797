"""What `plan` reports: the presets, or a plan, whose bar of memory has colors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import click

from vpatch.cli.output import Grid, Report
from vpatch.cli.wording import Line
from vpatch.plan.cautions import Caution
from vpatch.plan.defaults import Preset
from vpatch.plan.rendering import FILLS, FREE, as_object, lines, page
from vpatch.plan.verdict import Plan

_HUES = ("blue", "cyan", "magenta", "yellow", "green")  # of the first parts, then brighter ones
COLORS: Mapping[str, str] = {
    **dict(zip(FILLS, (*_HUES, *(f"bright_{hue}" for hue in _HUES)), strict=True)),
    FREE: "bright_black",
}
"""The color of each fill of the bar, and of the same sign in its legend."""


class _Painted(Line):
    """A line in which each fill of the bar has its color."""

    def styled(self, escaped: Callable[[str], str]) -> str:
        """Return the line with colors."""
        runs = ((color, "".join(signs)) for color, signs in groupby(self.text, COLORS.get))
        return "".join(click.style(escaped(text), fg=color) if color else escaped(text) for color, text in runs)


@dataclass(frozen=True, kw_only=True)
class PlanReport(Report):
    """The report of a plan.

    Attributes:
        plan: the plan.
        advised: the cautions; people see their texts beside the problems.
        commands: the commands to print, by name.
        brief: names of the commands that people see by default.
        verbose: whether they see all of it.
    """

    plan: Plan
    advised: Sequence[Caution]
    commands: Mapping[str, str]
    brief: Collection[str]
    verbose: bool

    def fields(self) -> Mapping[str, Any]:
        """Return the plan and all commands."""
        return as_object(self.plan, self.advised, self.commands)

    def shown(self, width: int | None) -> Iterable[Line]:
        """Return a page for a terminal, whose lines are broken already, else one fact a line."""
        commands = {name: text for name, text in self.commands.items() if self.verbose or name in self.brief}
        if width is None:
            return map(Line, lines(self.plan, commands, verbose=self.verbose))
        return map(_Painted, page(self.plan, commands, width, verbose=self.verbose))


@dataclass(frozen=True, kw_only=True)
class PresetsReport(Report):
    """The report of `plan --list`."""

    presets: Sequence[Preset]

    def fields(self) -> Mapping[str, Any]:
        """Return the presets."""
        names = ("name", "summary", "source", "model", "vllm")
        return {"presets": [{name: str(getattr(one, name)) for name in names} for one in self.presets]}

    def shown(self, width: int | None) -> Iterable[Line] | Grid:
        """Return a table for a terminal, else a line for each."""
        if width is None:
            return [Line(f"{one.name}: {one.summary}") for one in self.presets]
        return Grid([("preset", "what"), *((one.name, one.summary) for one in self.presets)])

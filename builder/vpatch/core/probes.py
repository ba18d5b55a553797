"""Probes as the scripts that an image's interpreter is given, which has neither vpatch nor the overlays."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files as resources

from vpatch.core.overlay import Probe

CARRIED = """
module = sys.modules[{name!r}] = types.ModuleType({name!r})
exec(compile({text!r}, {file!r}, "exec"), vars(module))
"""
RUN = """
exec(compile({text!r}, {file!r}, "exec"), {{"__name__": "__main__"}})
"""


def probe(package: str, name: str, *, gpu: bool = False) -> Probe:
    """Give the probe that is the module `name` of `package`, real and tested Python; see `Probe`.

    It is run as `__main__`. Other modules of the package that it imports, as `from package.other import ...` at the
    beginning of a line, come with it.
    """
    parts = ("import sys, types", *_carried(package, name, {}).values(), _said(RUN, package, name))
    return Probe(name, "\n".join(parts), gpu)


def _carried(package: str, name: str, found: dict[str, str]) -> dict[str, str]:
    """Give, in an order in which they can be run, what defines the modules of the package that a module imports."""
    for other in re.findall(rf"^from {re.escape(package)}\.(\w+) import ", _text(package, name), re.MULTILINE):
        if other not in found:
            _carried(package, other, found)
            found[other] = _said(CARRIED, package, other)
    return found


def _said(form: str, package: str, name: str) -> str:
    return form.format(name=f"{package}.{name}", text=_text(package, name), file=f"{name}.py").strip()


@cache
def _text(package: str, name: str) -> str:
    return (resources(package) / f"{name}.py").read_text("utf-8")

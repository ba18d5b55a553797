"""The reference of the Python API: what the docstring of each public name says of its arguments.

`test_site.py` has the page.
"""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Iterator
from functools import reduce
from importlib import import_module
from typing import Any

import pytest
import vpatch

from tests.paths import ROOT

SECTIONS = runpy.run_path(str(ROOT / "docs/_site/python_api.py"))["SECTIONS"]
NAMES = [(one.module, name, one.alone) for one in SECTIONS for name in one.names.split()]
WITHOUT = {"Edits", "Predicate", "State"}  # an alias, a protocol and an enumeration


def documented(module: str, name: str, *, alone: bool) -> Iterator[tuple[str, Any, str]]:
    """Yield a public name, its definition and its docstring; and the public methods of a class, unless `alone`."""
    found = getattr(import_module(module), name)
    bases = [base for base in found.__mro__ if base.__module__.startswith("vpatch.")] if inspect.isclass(found) else []
    yield name, found, "\n".join(inspect.getdoc(base) or "" for base in bases or [found])
    for key, one in [item for base in bases for item in vars(base).items()] * (not alone):
        what = one.fget if isinstance(one, property) else getattr(one, "__func__", one)
        if not key.startswith("_") and inspect.isfunction(what):
            yield f"{name}.{key}", what, inspect.getdoc(one) or ""


@pytest.mark.parametrize(("module", "name", "alone"), [one for one in NAMES if one[1] not in WITHOUT])
def test_a_docstring_names_each_argument(module: str, name: str, *, alone: bool) -> None:
    """By itself, or by the words "as of `status`"; `Block` has those that all its methods take."""
    for where, what, doc in documented(module, name, alone=alone):
        others = [*re.findall(r"as of `([\w.]+)`", doc), *(["Block"] if where.startswith("Block.") else [])]
        docs = [doc, *(inspect.getdoc(reduce(getattr, other.split("."), vpatch)) or "" for other in others)]
        found = (pair for one in docs for pair in re.findall(r"`~?(\w+)`|^ *(\w+): ", one, re.MULTILINE))
        named = {word for pair in found for word in pair}
        arguments = set(inspect.signature(what).parameters) - {"self", "cls"}
        assert doc, where
        assert arguments - named == set(), where

"""EnsureImport: places, imports of upstream, and any order of overlays."""

from __future__ import annotations

import pytest
from vpatch import EnsureImport, File
from vpatch.core.overlay import Edit
from vpatch.core.verdict import State

from tests.snippets import FILE, changes, drifts, in_any_order, module, overlay, verdict


def ensure(statement: str, scope: str = "", *, typing_only: bool = False) -> EnsureImport:
    return EnsureImport(FILE, statement, scope, typing_only=typing_only)


FUTURE = File(FILE).defer_annotations()


PLACED = {
    "behind the imports": ("import a|+import b|x = 1", ensure("import b")),
    "behind the docstring": ('"""Doc."""|+import b|x = 1', ensure("import b")),
    "docstring only": ('"""Doc."""|+from b import c as d', ensure("from b import c as d")),
    "empty module": ("+import b", ensure("import b")),
    "comments only": ("# Licence|+import b", ensure("import b")),
    "in a function": ('def f():|    """Doc."""|    import a|+    import b|    x', ensure("import b", "f")),
    "in a guard": ("if TYPE_CHECKING:|    import a|+    import b", ensure("import b", typing_only=True)),
    "in a new guard": ("import a|>|+if TYPE_CHECKING:|+    import b|x = 1", ensure("import b", typing_only=True)),
    "in a guard behind its flag": (
        "import a|try: pass|finally: pass|from typing import TYPE_CHECKING|>|+if TYPE_CHECKING:|+    import b|x = 1",
        ensure("import b", typing_only=True),
    ),
    "beside a submodule": ("import a.b|+import a.c", ensure("import a.c")),
    "more than is there": ("from a import b|+from a import b, c", ensure("from a import b, c")),
    "future": ("+from __future__ import annotations|import a", FUTURE),
    "future, docstring": ('"""Doc."""||+from __future__ import annotations|>|import a', FUTURE),
    "future as an import": (
        "+from __future__ import annotations|import a",
        ensure("from __future__ import annotations"),
    ),
}


@pytest.mark.parametrize(("change", "edit"), PLACED.values(), ids=PLACED)
def test_the_place_of_an_import(change: str, edit: Edit) -> None:
    changes(change, edit)


@pytest.mark.parametrize(
    ("source", "edit"),
    [
        ("import b\n", ensure("import b")),
        ("import a, b as c, d\n", ensure("import b as c")),
        ("from a import (\n    b,\n    c,\n)\n", ensure("from a import c")),
        ("x = 1\nfrom a import b\n", ensure("from a import b")),
        ("def f():\n    from a import b\n", ensure("from a import b", "f")),
        ("if TYPE_CHECKING:\n    import b\n", ensure("import b", typing_only=True)),
        ("if TYPE_CHECKING:\n    import a\nif TYPE_CHECKING:\n    import b\n", ensure("import b", typing_only=True)),
        ("import b\n", ensure("import b", typing_only=True)),
        ("from __future__ import division, annotations\n", FUTURE),
    ],
)
def test_an_import_of_upstream_is_enough(source: str, edit: Edit) -> None:
    assert verdict(module(source), overlay(edit)).state is State.MERGED


@pytest.mark.parametrize(
    ("source", "edit", "message"),
    [
        ("from a import b\n", ensure("import b"), "'b' is already bound by `from a import b`"),
        ("from a import c, b as d\n", ensure("from a import d"), "'d' is already bound by `from a import b as d`"),
        ("def b(): ...\n", ensure("import b"), "'b' is already bound by `def b(): ...`"),
        ("b = None\n", ensure("import b"), "'b' is already bound by `b = None`"),
        ("b: int = 1\n", ensure("import b"), "'b' is already bound by `b: int = 1`"),
        ("def f(): x\n", ensure("import b", "f"), "its block is on the line of its header"),
        ("if TYPE_CHECKING: import a\n", ensure("import b", typing_only=True), "on the line of its header"),
        ("def f():\n    x\ndef f():\n    y\n", ensure("import b", "f"), "'f' is defined 2 times, 1 expected"),
        ("from a import *\n", ensure("import b", "f"), "no 'f' here"),
    ],
)
def test_it_drifts(source: str, edit: Edit, message: str) -> None:
    drifts(source, edit, message)


FIRST = (ensure("import b"), ensure("from . import z"), FUTURE, ensure("import t", typing_only=True))
SECOND = (ensure("import c"), ensure("import b"), FUTURE, ensure("import s", typing_only=True))
THIRD = (ensure("import a.d"), ensure("from Z import y"), ensure("import b", typing_only=True))


@pytest.mark.parametrize("source", ["", '"""Doc."""\n', "import os\n\nx = 1\n", "if TYPE_CHECKING:\n    import o\n"])
@pytest.mark.parametrize("pair", [(FIRST, SECOND), (FIRST, THIRD)], ids=["shared", "typing"])
def test_the_order_of_two_overlays_does_not_matter(source: str, pair: tuple[tuple[Edit, ...], ...]) -> None:
    one, two = (overlay(*edits, name=name) for edits, name in zip(pair, ("one", "two"), strict=True))

    in_any_order(module(source), one, two)

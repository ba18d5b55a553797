"""What an overlay's code takes from vLLM, compared with its list: a table of changes of upstream's, with messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vpatch import AddFile, EnsureImport
from vpatch.core.calls import Call, Calls, Taken
from vpatch.core.engine import Engine
from vpatch.core.landing.lookup import Lookup
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State, Verdict
from vpatch.core.workspace import Workspace

from tests.snippets import FILE, overlay

OPS, BASE, FIX = "vllm/ops.py", "vllm/base.py", "vllm/_vpatch/fix.py"
IMPORTS = "from dataclasses import dataclass\nfrom typing import ClassVar\n\nfrom vllm.base import Base\n"
SCALE = "def scale(x, by, *, out=None):\n    return x * by\n"
LAYER = """
class Layer(Base):
    def __init__(self, size, heads=1):
        self.size = size

    def shard(self, rank, ranks):
        return rank, ranks

    @property
    def width(self):
        return 1
"""
BASES = "class Base:\n    depth: int = 1\n    size: int\n\n    def load(self, weights): ...\n"
OPTIONS = "@dataclass\nclass Options:\n    size: int\n    bits: int = 8\n    kept: ClassVar[int] = 1\n"


def call(given: str, *interfaces: str, ignored: bool = False, optional: bool = False) -> Call:
    return Call((given,), dict.fromkeys(interfaces, ()), ignored=ignored, optional=optional)


TAKEN = Taken(
    calls={
        f"{OPS} scale": call("(_, by=_)", "function (x, by, *, out=...) -> value"),
        f"{OPS} Layer": call("(self, size=_)", "class (self, size, heads=...)"),
        f"{OPS} Layer.shard": call("(self, rank=_, ranks=_)", "method (self, rank, ranks) -> 2 values"),
        f"{OPS} Layer.load": call("(self, _)", "method (self, weights)", ignored=True),
        f"{OPS} Options": call("(self, size=_)", "class (self, size, bits=...)"),
    },
    overrides={f"{OPS} Base.load": call("self, weights", "method (self, weights)")},
    reads={f"{OPS} Layer": ("depth", "size", "width")},
    imports=("vllm.ops.Layer", "vllm.ops.scale"),
)
CALLS = Calls((), {}, {(OPS, BASE): ()}, {FIX: TAKEN, "part 1.0": Taken()})


def fixed(calls: Calls | None = CALLS) -> Catalogued:
    edits = AddFile(FIX, "fix = 1\n"), EnsureImport(FILE, "from vllm._vpatch.fix import fix")
    return replace(overlay(*edits), calls=calls)


def ops(*changes: tuple[str, str]) -> dict[str, bytes]:
    """Return the tree, after replacements in its sources."""
    files = {
        FILE: "def f(): ...\n",
        OPS: f"{IMPORTS}\n\n{SCALE}\n{LAYER}\n\n{OPTIONS}",
        BASE: BASES,
    }
    for old, new in changes:
        assert sum(text.count(old) for text in files.values()) == 1, old
        files = {file: text.replace(old, new) for file, text in files.items()}
    return {file: text.encode() for file, text in files.items()}


def verdict(files: dict[str, bytes], calls: Calls | None = CALLS) -> Verdict:
    return Engine([fixed(calls)]).status(files.get)[0]


FITS = {
    "unchanged": (),
    "a new optional parameter": (("*, out=None", "*, out=None, dtype=None"),),
    "an optional parameter behind": (("rank, ranks):", "rank, ranks, shared=False):"),),
    "named arguments in another order": (("def shard(self, rank, ranks)", "def shard(self, ranks, rank)"),),
    "a default for a required one": (("x, by, *", "x, by=1, *"),),
    "annotations": (("x, by, *", "x: int, by: int, *"),),
    "a base that moves up": (
        ("    depth: int = 1\n", ""),
        ("        self.size = size\n", "        self.size = self.depth = size\n"),
    ),
    "another body": (("return x * by", "y = x\n    return y * by"),),
    "an alias": (("def scale", "def scale_by"), ("\n\nclass Layer", "scale = scale_by\n\nclass Layer")),
    "a branch at import": (
        ("def scale", "if 1 < 2:\n    def scale(x, by): raise NotImplementedError\nelse:\n  def scale"),
    ),
    "a new optional field": (("bits: int = 8", "bits: int = 8\n    signed: bool = True"),),
    "a decorator that keeps": (("def scale", "@functools.cache\ndef scale"),),
    "more that a method ignores": (("def load(self, weights): ...", "def load(self, weights): return weights"),),
}

MISFITS = {
    "swapped": ("x, by, *", "by, x, *", f"{OPS} (scale): line 7: argument 1 is `by`; fix.py passes `x` there"),
    "renamed": ("x, by, *", "x, factor, *", "does not take what fix.py passes: missing a required argument: 'factor'"),
    "removed": ("x, by, *", "x, *", "does not take what fix.py passes: got an unexpected keyword argument 'by'"),
    "inserted": ("x, by, *", "x, axis, by, *", "missing a required argument: 'axis'"),
    "keyword-only": ("x, by, *", "*, x, by", "too many positional arguments"),
    "required keyword": ("*, out=None", "*, out", "missing a required argument: 'out'"),
    "gone": ("def scale", "def scaled", f"{OPS} (scale): is gone, and fix.py calls it; nearest: `scaled`"),
    "coroutine": ("def scale", "async def scale", "is a coroutine function now, and fix.py takes it for a function"),
    "generator": ("return x * by", "yield x * by", "is a generator function now"),
    "property": (
        "    def shard",
        "    @property\n    def shard",
        "is a property now, and fix.py takes it for a method",
    ),
    "static": ("    def shard(self, ", "    @staticmethod\n    def shard(", "is a static method now"),
    "decorated": ("def scale", "@replaced\ndef scale", "has the decorator `@replaced`, which may replace it"),
    "returns a pair": ("return x * by", "return x * by, None", "returns 2 values; fix.py takes value"),
    "returns nothing": ("return x * by", "print(x * by)", "returns nothing; fix.py takes value"),
    "constructor": ("size, heads=1", "size, heads", "missing a required argument: 'heads'"),
    "field": ("size: int\n    bits", "length: int\n    bits", "missing a required argument: 'length'"),
    "attribute": ("self.size = size", "self.length = size", f"{OPS} (Layer): sets no `size`, which fix.py reads"),
    "an attribute that a base declares": (
        "self.size = size",
        "self.length = size",
        f"{OPS} (Layer): sets no `size`, which fix.py reads",
    ),
    "attribute of a base": ("depth: int = 1", "height: int = 1", "sets no `depth`, which fix.py reads"),
    "overridden": (
        "self, weights)",
        "self, weights, strict=False)",
        "takes `strict`, which is no parameter of the method of fix.py",
    ),
    "overridden, renamed": ("self, weights)", "self, tensors)", "argument 2 is `tensors`, and `weights` in the method"),
}


@pytest.mark.parametrize("changes", FITS.values(), ids=FITS)
def test_what_fits(changes: tuple[tuple[str, str], ...]) -> None:
    found = verdict(ops(*changes))

    assert found.state is State.PENDING, found.because


@pytest.mark.parametrize(("old", "new", "says"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit(old: str, new: str, says: str) -> None:
    found = verdict(ops((old, new)))

    assert found.state is State.DRIFTED
    assert says in "\n".join(map(str, found.problems))
    assert verdict(ops((old, new)), calls=None).state is State.PENDING


ELSEWHERE = {
    "moved, and imported back": (SCALE, "from vllm.base import scale\n", SCALE),
    "moved, under another name": (SCALE, "from vllm.base import scaled as scale\n", SCALE.replace("scale", "scaled")),
    "moved, with all names": (SCALE, "from vllm.base import *\n", SCALE),
    "moved, through the module": (SCALE, "import vllm.base\n\nscale = vllm.base.scale\n", SCALE),
    "made by __getattr__": (SCALE, 'def __getattr__(name):\n    return {"scale": 1}[name]\n', ""),
    "defined twice": (SCALE, f"def scale(): ...\n\n\n{SCALE}", ""),
    "of two releases": (
        SCALE,
        "try:\n    from vllm.base import scale\nexcept ImportError:\n    from vllm.other import scale\n",
        SCALE,
    ),
}


@pytest.mark.parametrize(("old", "new", "moved"), ELSEWHERE.values(), ids=ELSEWHERE)
@pytest.mark.parametrize("wrong", [False, True])
def test_a_definition_that_is_elsewhere(old: str, new: str, moved: str, *, wrong: bool) -> None:
    there = {"x, by, *": "by, x, *"} if wrong else {}
    for before, after in there.items():
        new, moved = new.replace(before, after), moved.replace(before, after)
    files = ops((old, new))
    files[BASE] += moved.encode()

    found = verdict(files)

    known = "__getattr__" in new  # nothing is known of what it returns
    assert found.state is (State.DRIFTED if wrong and not known else State.PENDING), found.because


NOT_THERE = {
    "for type checkers": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from vllm.base import scale\n",
    "in a circle": "from vllm.ops import scale\n",
    "deleted": f"{SCALE}del scale\n",
    "of a module that is gone": "from vllm.gone import scale\n",
}


@pytest.mark.parametrize("new", NOT_THERE.values(), ids=NOT_THERE)
def test_a_definition_that_is_not_there(new: str) -> None:
    found = verdict(ops((SCALE, new)))

    assert found.state is State.DRIFTED
    assert "is gone, and fix.py calls it" in found.because


def test_what_nobody_recorded_is_said() -> None:
    without = Calls((), {}, {}, {"part 1.0": Taken()})

    assert "nothing is recorded of what its code takes from vLLM" in verdict(ops(), calls=None).parts[0].notes[0]
    assert f"nothing is recorded of what {FIX} takes" in verdict(ops(), calls=without).parts[0].notes[0]


def test_a_new_body_is_noted() -> None:
    files = ops()
    (found,) = Lookup(Workspace(files.get)).find(f"{OPS} scale")
    digest = Lookup(Workspace(files.get)).digest(found)
    known = Call(("(_, by=_)",), {"function (x, by, *, out=...) -> value": (digest,)})
    calls = Calls((), {}, {}, {FIX: Taken(calls={f"{OPS} scale": known}), "part 1.0": Taken()})

    (same,) = verdict(files, calls).parts
    (new,) = verdict(ops(("return x * by", "return x * by * 1.0")), calls).parts
    (comment,) = verdict(ops(("    return x * by", "    # twice\n\n    return x * by")), calls).parts

    assert same.notes == comment.notes == ()
    assert new.notes == (f"`scale` of {OPS}, which it calls, is not one that the overlay was proved with",)

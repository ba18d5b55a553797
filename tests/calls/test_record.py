"""What is recorded of an overlay's code: calls, reads, imports and overridden methods, and what Jedi cannot resolve."""

from __future__ import annotations

from pathlib import Path

import pytest
from vpatch import AddFile, AddFunction
from vpatch.calls.merge import merged
from vpatch.calls.record import Recording, record
from vpatch.core.calls import Taken, parse, write
from vpatch.core.engine import Engine
from vpatch.core.workspace import Workspace
from vpatch.tree.locate import Tree

from tests.snippets import overlay

FIX, OPS = "vllm/_vpatch/fix.py", "vllm/ops.py"
VLLM = {
    "vllm/__init__.py": "",
    "vllm/config/__init__.py": "from vllm.config.all import Config\n",
    "vllm/config/all.py": """
from dataclasses import dataclass

@dataclass
class Cache:
    dtype: str
    blocks: int = 1

class Config:
    def __init__(self, cache: Cache):
        self.cache = cache
        self.anything = None
    @property
    def size(self) -> int:
        return 1
    @classmethod
    def default(cls) -> "Config":
        return cls(Cache("auto"))
""",
    "vllm/envs.py": 'LIMIT = 1\ndef __getattr__(name):\n    return {"VLLM_LATE": 1}[name]\n',
    OPS: """
import torch
from vllm.config import Config
from vllm.triton_utils import triton

@triton.jit
def kernel(x_ptr, SIZE):
    return

def scale(x: torch.Tensor, by: int, *, out=None) -> torch.Tensor:
    return x * by

class Base:
    def load(self, weights): ...

class Layer(Base):
    config: Config
    def __init__(self, config: Config):
        self.config = config
        self.weight: torch.Tensor = None
    def shard(self, rank: int) -> tuple[int, int]:
        return rank, rank
    def forward(self, x):
        return x
def build() -> Layer:
    return Layer(None)
""",
    "vllm/triton_utils/__init__.py": "import triton\n",
}
HEAD = """
from __future__ import annotations
from typing import TYPE_CHECKING, Any
import torch
if TYPE_CHECKING:
    from vllm.config import Config
    from vllm.ops import Layer
"""


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for file, text in VLLM.items():
        (path := tmp_path / "tree" / file).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(tmp_path / "tree", None, None)


def recorded(code: str, tree: Tree, *edits: AddFunction) -> Recording:
    item = overlay(AddFile(FIX, HEAD + code), *edits)
    (scratch := tree.root.parent / "scratch").mkdir()
    return record(Engine([item]), tree, scratch)


def shown(taken: Taken) -> set[str]:
    """Return what is taken, a line for each."""
    calls = {
        f"{place.rpartition('/')[2]}{given}{' ignored' * call.ignored}"
        for place, call in taken.calls.items()
        for given in call.given
    }
    reads = {f"{owner.rpartition('/')[2]}: {name}" for owner, names in taken.reads.items() for name in names}
    return calls | reads | set(taken.imports) | {f"overrides {place.rpartition('/')[2]}" for place in taken.overrides}


CASES = {
    "a function": (
        "def f(x: torch.Tensor):\n    from vllm.ops import scale\n    return scale(x, by=2)\n",
        {"ops.py scale(_, by=_)", "vllm.ops.scale"},
    ),
    "through a re-export": (
        "def f():\n    from vllm.config import Config\n    return Config(cache=None), Config.default()\n",
        {"__init__.py Config(self, cache=_)", "__init__.py Config.default(self)", "vllm.config.Config"},
    ),
    "of an annotated parameter": (
        "def f(layer: Layer):\n    layer.shard(rank=0)\n    return layer.config.cache.blocks\n",
        {
            "ops.py Layer.shard(self, rank=_) ignored",
            "ops.py Layer: config",
            "all.py Config: cache",
            "all.py Cache: blocks",
        },
    ),
    "of what a function returns": (
        "def f():\n    from vllm.ops import build\n    layer = build()\n    return layer.shard(1)\n",
        {"ops.py build()", "ops.py Layer.shard(self, _)", "vllm.ops.build"},
    ),
    "unbound": (
        "def f(layer: Any):\n    from vllm.ops import Layer\n    return Layer.shard(layer, rank=1)\n",
        {"ops.py Layer.shard(_, rank=_)", "vllm.ops.Layer"},
    ),
    "a property, and attributes": (
        "class Kept:\n    def __init__(self, config: Config):\n        self.config = config\n"
        "    def f(self):\n        return self.config.size, self.config.cache.dtype\n",
        {"all.py Config: size", "all.py Config: cache", "all.py Cache: dtype"},
    ),
    "of a module": (
        "from vllm import envs\ndef f():\n    return envs.LIMIT\n",
        {"vllm.envs", "vllm.envs.LIMIT"},
    ),
    "a kernel": (
        "def f(x):\n    from vllm.ops import kernel\n    kernel[(1,)](x, SIZE=1, num_warps=4)\n",
        {"ops.py kernel(_, SIZE=_) ignored", "vllm.ops.kernel"},
    ),
    "stars": (
        "def f(*x, **options):\n    from vllm.ops import scale\n    return scale(*x, **options), scale(*(x, 1))\n",
        {"ops.py scale(*_, **_)", "ops.py scale(_, _)", "vllm.ops.scale"},
    ),
    "an override": (
        "from vllm.ops import Base\nclass Mine(Base):\n    def load(self, weights):\n        super().load(weights)\n",
        {"overrides fix.py Base.load", "fix.py Base.load(self, _) ignored", "vllm.ops.Base"},
    ),
    "what may be absent": (
        "try:\n    from vllm.ops import scale\nexcept ImportError:\n    scale = None\n",
        set(),
    ),
}


@pytest.mark.parametrize(("code", "expected"), CASES.values(), ids=CASES)
def test_what_is_recorded(code: str, expected: set[str], tree: Tree) -> None:
    found = recorded(code, tree)

    assert shown(found.code["demo", FIX]) == expected
    assert not found.unresolved["demo"]


def test_inserted_code_is_recorded_by_shape(tree: Tree) -> None:
    new = "def twice(x):\n    return scale(x, by=2)\n"

    found = recorded("", tree, AddFunction(OPS, "", new))

    assert shown(found.code["demo", "part 1.0"]) == {"ops.py scale(_, by=_)"}


@pytest.mark.parametrize(
    ("code", "unresolved"),
    [
        ("def f(layer: Any):\n    return layer.forward(1)\n", ["`layer.forward`"]),
        ("def f(kind):\n    return kind(1)\n", ["`kind`"]),
        ("def f(config: Config):\n    return config.anything.go()\n", ["`config.anything.go`"]),
        ("def f(x: torch.Tensor):\n    y = x.view(1)\n    return (y + 1).to(2), [z.cpu() for z in y]\n", []),
        ("def f(layer: Layer):\n    return layer.weight.view(1)\n", []),
        (
            "import json\nROWS = {}\ndef f(text: str):\n    return json.loads(text.strip()), ROWS.items(), len(text)\n",
            [],
        ),
        ("def g() -> torch.Tensor: ...\ndef f():\n    return g().cpu()\n", []),
        (
            "def f(xs: list[torch.Tensor], y: 'torch.Tensor'):\n    with torch.no_grad() as mode:\n        mode.go()\n"
            "    for x in xs:\n        x.cpu()\n    return (-xs[0]).cpu(), (y if xs else y).cpu(), (z := y).cpu()\n",
            [],
        ),
        ("import logging\nclass Ours(logging.Logger): ...\nlog = Ours('')\ndef f():\n    log.warning(1)\n", []),
        ("async def f(x: Any):\n    return (await x).go()\n", ["`(await x).go`"]),
    ],
)
def test_a_call_that_cannot_be_resolved(code: str, unresolved: list[str], tree: Tree) -> None:
    found = recorded(code, tree)

    assert [one.partition(": ")[2] for one in found.unresolved["demo"]] == unresolved


def test_a_list_is_written_and_read(tree: Tree) -> None:
    code = "def f(layer: Layer):\n    from vllm.ops import scale\n    scale(layer.shard(0), by=1)\n"
    list_ = merged("demo", {"1.0": recorded(code, tree)}, {"1.0": tree.read})

    assert parse(write(list_)) == list_
    assert list_.files == (OPS,)
    assert list_.proved(f"{OPS} scale", Workspace(tree.read).digest)
    (tree.root / OPS).write_text("")
    assert not list_.proved(f"{OPS} scale", Workspace(tree.read).digest)

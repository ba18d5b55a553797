"""The harness of mutants itself: a rename changes no result, and what is called an override is one."""

from __future__ import annotations

from textwrap import indent
from typing import Any

import pytest

from tests.overlays.overrides import of_definition
from tests.overlays.renames import Variable, renamed, typing_only, variables

MODULE = """
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from os import sep
    from os import path
from os import path
from os.path import basename as late

@overload
def f(a: int): ...
@overload
def f(a: str): ...
def f(a):
    if a:
        low = a
        high = low + 1
    else:
        low = 0
        high = low + 2
    return high, [low for low in range(low)], late("x/y")

class Box:
    size = 1
    def __init__(self, size):
        self.size = self.grown(size)
    def grown(self, size): return size + self.step
    @property
    def step(self): return self._step
    @step.setter
    def step(self, step): self._step = step
    _step: int = 3
    def __call__(self): return self.size

RESULT = f(0), f(4), Box(2)(), path.basename("a/b")
"""


def result(text: str, **known: Any) -> Any:
    space: dict[str, Any] = {"__name__": "mutant", **known}
    exec(compile(text, "mutant", "exec", dont_inherit=True), space)  # noqa: S102 - our own text
    return space["RESULT"]


def test_a_rename_changes_no_result() -> None:
    """The drawn names include one that the module imports: libcst takes the first `low` for it, Python does not."""
    known, right = variables(MODULE), result(MODULE)
    assert {("local", "low"), ("local", "a"), ("attribute", "grown"), ("attribute", "step")} <= {
        (variable.kind, variable.name) for variable in known
    }
    for variable, spans in known.items():
        if variable.name != "RESULT":
            assert result(renamed(MODULE, spans, "vp_new")) == right, variable

    low = next(variable for variable in known if variable.name == "low" and variable.scope == "f")
    hidden = Variable("module", "", "overload")
    assert len(variables(renamed(MODULE, known[low], "overload"))[hidden]) == len(known[hidden])


def test_names_that_nothing_binds_when_code_runs() -> None:
    assert typing_only(MODULE) == {"sep"}


METHOD = "class A:\n    def f(self):\n        return 1\n    def g(self):\n        return 2\n"
NESTED = "def make(cls):\n    def f(self):\n        return 1\n    cls.f = f\n    return cls\n"
DEEP = "def make():\n" + indent(METHOD, "    ") + "    return A\n"


@pytest.mark.parametrize(
    ("text", "name", "made"),
    [
        (METHOD, "A.f", "RESULT = A().f()"),
        (NESTED, "make.f", "RESULT = make(type('A', (), {}))().f()"),
        (DEEP, "make.A.f", "RESULT = make()().f()"),
    ],
)
def test_a_harmful_override_replaces_the_definition(text: str, name: str, made: str) -> None:
    def other(*_: object) -> int:
        return 7

    def outcome(mutant: str) -> object:
        try:
            return result(f"{mutant}\n{made}\n", vp_other=other, vp_flag=True)
        except Exception as error:  # as of a name that is deleted
            return type(error)

    kinds = {"later-definition", "conditional", "deleted", "assigned", "dead-if"}
    some = {"setattr", "installed-another", "installed-and-replaced"}
    made_of = list(of_definition(f"import os\n{text}", name))
    seen = {one.kind: outcome(one.text) for one in made_of if one.kind in kinds | some}
    harmless = [outcome(one.text) for one in made_of if not one.harmful and "another" in one.kind]

    assert seen.keys() - some == kinds
    assert seen.keys() & some == ({"setattr"} if "A.f" in name else some - {"setattr"})
    assert 1 not in seen.values(), seen
    assert set(harmless) == {1}

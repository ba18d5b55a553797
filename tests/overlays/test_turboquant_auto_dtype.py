"""turboquant-auto-dtype on real releases: its states, what drifts, and the code that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from vpatch.testing import Case, State, check

from tests.overlays.tables import CACHE, CACHE_TYPES, WITHOUT_TURBOQUANT, drifted
from tests.releases import cases, tiered

ATTENTION = "vllm/model_executor/layers/attention/attention.py"
INTERFACE = "vllm/v1/kv_cache_interface.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"

CONDITION = "kv_cache_spec.kv_quant_mode == KVQuantMode.NONE"
UNQUANTIZED = f"if {CONDITION}\n"
SPEC = "TQFullAttentionSpec"
GUARDED = UNQUANTIZED.replace("\n", f" and not isinstance(kv_cache_spec, {SPEC})\n")
MODE = 'isinstance(kv_cache_dtype, str) and kv_cache_dtype.startswith("turboquant_")'
IMPORT = "    UniformTypeKVCacheSpecs,\n"
RESHAPE = "_reshape_kv_cache_tensors"
MISNAMED = f"no 'GPUModelRunner.{RESHAPE}' here; nearest: 'GPUModelRunner._reshape_kv_caches'"
PASSES = "kv_cache_spec.head_size,\n                        cache_dtype_str=self"
GETS_MODE = "kv_quant_mode=quant_mode,\n                tq_slot"

CASES = (
    *WITHOUT_TURBOQUANT,
    *(
        Case(release, State.NOT_APPLICABLE, says="cache_dtype_str=self.cache_config.cache_dtype)`")
        for release in ("0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0")
    ),
    *(Case(release, State.PENDING, says="5 changes") for release in ("0.25.0", "0.25.1", "0.26.0")),
    *(
        Case(release, State.MERGED, says="(vllm-project/vllm#50533): get_kv_quant_mode has")
        for release in ("0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
    ),
    *drifted(
        "0.26.0",
        RUNNER,
        (UNQUANTIZED, "if not kv_cache_spec.kv_quant_mode\n", f"`{CONDITION}` is not there"),
        (f"def {RESHAPE}(", "def _reshape_kv_caches(", MISNAMED),
        (IMPORT, f"{IMPORT}    MLAAttentionSpec as {SPEC},\n", f"'{SPEC}' is already bound"),
    ),
    # A broken tree is never taken for one without the feature, nor a changed one for one without the defect.
    Case(
        "0.18.0",
        State.DRIFTED,
        replace={CACHE: CACHE_TYPES, RUNNER: ("cache_dtype_str=self", "x=self")},
        says="CacheDType 0 times",
    ),
    *drifted("0.21.0", RUNNER, (PASSES, "cache_dtype_str=x", "KVQuantMode.NONE` is not there")),
    # Half of upstream's change is not merged: a mode that no spec gets, or a spec that gets no mode of its own.
    *drifted("0.27.1", ATTENTION, (GETS_MODE, "tq_slot", "does not match the 0.25 layout: get_kv_quant_mode has")),
    *drifted("0.27.0", INTERFACE, (MODE, "False", "does not match the 0.25 layout: Attention.get_kv")),
    *drifted("0.28.0", INTERFACE, (MODE, "False", f"has no `{SPEC}(...)`")),
)


@pytest.mark.parametrize("case", cases(CASES))
def test_case(case: Case, slim: Callable[[str], Path], tmp_path: Path) -> None:
    check(case, "turboquant-auto-dtype", tree=slim(case.release), scratch=tmp_path)


@pytest.mark.parametrize("release", tiered(["0.25.1", "0.26.0"]))
def test_only_the_condition_changes(release: str, slim: Callable[[str], Path], tmp_path: Path) -> None:
    source, imported = (slim(release) / RUNNER).read_text(), "from vllm.v1.kv_cache_interface import " + SPEC
    new = source.replace(UNQUANTIZED, GUARDED).replace("\nif TYPE_CHECKING:", f"\n{imported}\nif TYPE_CHECKING:")

    case = Case(release, State.PENDING, result={RUNNER: new})

    check(case, "turboquant-auto-dtype", tree=slim(release), scratch=tmp_path)


IN_PARENTHESES = (IMPORT, f"    {SPEC},\n{IMPORT}")
ALONE = ("\nif TYPE_CHECKING:", f"\nfrom vllm.v1.kv_cache_interface import {SPEC}\nif TYPE_CHECKING:")
CHOOSES = "                    layer_cache_dtype_str = (\n"
IN_FUNCTION = (CHOOSES, f"                    from vllm.v1.kv_cache_interface import {SPEC}\n\n{CHOOSES}")
NAMED = (IMPORT, f"{IMPORT})\nfrom vllm.v1 import (\n    kv_cache_interface,\n")
IS = f"isinstance(kv_cache_spec, {SPEC})"
CHOICE = """"auto"
                        if kv_cache_spec.kv_quant_mode == KVQuantMode.NONE
                        else getattr(
                            kv_cache_spec,
                            "cache_dtype_str",
                            None,
                        )
                        or self.cache_config.cache_dtype
"""
OTHER = "(getattr(kv_cache_spec, 'cache_dtype_str', None) or self.cache_config.cache_dtype)"


class ByHand(NamedTuple):
    """A guard added by hand to the 0.26.0 runner: this choice of a dtype and this import."""

    choice: str
    imported: tuple[str, str]

    def check(self, before: State, says: str, tree: Path, scratch: Path) -> None:
        """Check the overlay's state on a tree with this guard."""
        source = (tree / RUNNER).read_text()
        for old, new in ((CHOICE, f"{self.choice}\n"), self.imported):
            assert source.count(old) == 1
            source = source.replace(old, new)
        compile(source, RUNNER, "exec", dont_inherit=True)
        (tree / RUNNER).unlink()
        (tree / RUNNER).write_text(source)
        scratch.mkdir()
        check(Case("0.26.0", before, says=says), "turboquant-auto-dtype", tree=tree, scratch=scratch)


def guarded(condition: str, imported: tuple[str, str] = ALONE) -> ByHand:
    return ByHand(f'"auto" if {condition} else {OTHER}', imported)


EQUIVALENT = {
    "as in #47609": guarded(f"{CONDITION} and not {IS}", IN_PARENTHESES),
    "import on a line of its own": guarded(f"{CONDITION} and not {IS}"),
    "import in the function": guarded(f"{CONDITION} and not {IS}", IN_FUNCTION),
    "operands changed places": guarded(f"not {IS} and {CONDITION}"),
    "parentheses": guarded(f"(not ({IS})) and ({CONDITION})"),
    "comparison changed places": guarded(f"not {IS} and KVQuantMode.NONE == kv_cache_spec.kv_quant_mode"),
    "identity": guarded(f"kv_cache_spec.kv_quant_mode is KVQuantMode.NONE and not {IS}"),
    "one of several classes": guarded(f"{CONDITION} and not isinstance(kv_cache_spec, (MambaSpec, {SPEC}))"),
    "class by its module": guarded(f"{CONDITION} and not isinstance(kv_cache_spec, kv_cache_interface.{SPEC})", NAMED),
    "branches changed places": ByHand(
        f'{OTHER} if kv_cache_spec.kv_quant_mode != KVQuantMode.NONE or {IS} else "auto"', ALONE
    ),
    "class first": ByHand(f'{OTHER} if {IS} else "auto" if {CONDITION} else {OTHER}', ALONE),
}
# Each names the class but is wrong, or may be: vpatch cannot tell it from a correct guard.
UNCLEAR = {
    "not imported": guarded(f"{CONDITION} and not {IS}", (IMPORT, IMPORT)),
    "the opposite": guarded(f"{CONDITION} and {IS}"),
    "either": guarded(f"{CONDITION} or not {IS}"),
    "another class": guarded(f"{CONDITION} and not isinstance(kv_cache_spec, MambaSpec) or not {IS}"),
}


@pytest.mark.parametrize("name", EQUIVALENT)
def test_a_correct_guard_is_merged(name: str, linked: Callable[..., Path], tmp_path: Path) -> None:
    """A guard as in upstream's V2 runner, as proposed by vllm-project/vllm#49798, or written in another way."""
    says = f"{RESHAPE} has `{SPEC}`" if name != "class by its module" else ""

    EQUIVALENT[name].check(State.MERGED, says, linked("0.26.0"), tmp_path / "scratch")


@pytest.mark.parametrize("name", UNCLEAR)
def test_what_only_looks_like_a_guard_is_drifted(name: str, linked: Callable[..., Path], tmp_path: Path) -> None:
    says = f"does not match the 0.25 layout: GPUModelRunner.{RESHAPE} has `{SPEC}`"

    UNCLEAR[name].check(State.DRIFTED, says, linked("0.26.0"), tmp_path / "scratch")

"""turboquant-auto-dtype on real releases: its states, what drifts, and the code that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.testing import Case, State

from tests.overlays.tables import (
    CACHE,
    CACHE_TYPES,
    Change,
    check_edited,
    check_result,
    drifted,
    on,
    table,
)
from tests.releases import tiered

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
PASSES = "kv_cache_spec.head_size,\n                        cache_dtype_str=self"
GETS_MODE = "kv_quant_mode=quant_mode,\n                tq_slot"

CASES = (
    *on("<0.20", State.NOT_APPLICABLE, "lists no turboquant_*"),
    *on(">=0.20,<0.25", State.NOT_APPLICABLE, "cache_dtype_str=self.cache_config.cache_dtype)`"),
    *on(">=0.25,<0.27", State.PENDING, "5 changes"),
    *on(">=0.27", State.MERGED, "(vllm-project/vllm#50533): get_kv_quant_mode has"),
    *drifted(
        "0.26.0",
        RUNNER,
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

test_case = table("turboquant-auto-dtype", CASES)


@pytest.mark.parametrize("release", tiered(["0.25.1", "0.26.0"]))
def test_only_the_condition_changes(release: str, slim: Callable[[str], Path], tmp_path: Path) -> None:
    imported = "\nif TYPE_CHECKING:", f"\nfrom vllm.v1.kv_cache_interface import {SPEC}\nif TYPE_CHECKING:"
    changes = (UNQUANTIZED, GUARDED), imported

    check_result("turboquant-auto-dtype", release, slim(release), tmp_path, RUNNER, *changes)


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


def guarded(condition: str, imported: Change = ALONE) -> tuple[Change, Change]:
    """Return the changes of 0.26.0's runner for a guard that was added by hand."""
    return (CHOICE, f'"auto" if {condition} else {OTHER}\n'), imported


EQUIVALENT = {
    "as in #47609": guarded(f"{CONDITION} and not {IS}", IN_PARENTHESES),
    "import in the function": guarded(f"{CONDITION} and not {IS}", IN_FUNCTION),
    "one of several classes": guarded(f"{CONDITION} and not isinstance(kv_cache_spec, (MambaSpec, {SPEC}))"),
    "class by its module": guarded(f"{CONDITION} and not isinstance(kv_cache_spec, kv_cache_interface.{SPEC})", NAMED),
    "branches changed places": (
        (CHOICE, f'{OTHER} if kv_cache_spec.kv_quant_mode != KVQuantMode.NONE or {IS} else "auto"\n'),
        ALONE,
    ),
}
# Each names the class but is wrong, or may be: vpatch cannot tell it from a correct guard.
UNCLEAR = {
    "not imported": guarded(f"{CONDITION} and not {IS}", (IMPORT, IMPORT)),
    "the opposite": guarded(f"{CONDITION} and {IS}"),
    "another class": guarded(f"{CONDITION} and not isinstance(kv_cache_spec, MambaSpec) or not {IS}"),
}


@pytest.mark.deep
@pytest.mark.parametrize("name", [*EQUIVALENT, *UNCLEAR])
def test_a_correct_guard_is_merged_and_what_only_looks_like_one_is_drifted(
    name: str, linked: Callable[..., Path], tmp_path: Path
) -> None:
    """A guard as in upstream's V2 runner, as proposed by vllm-project/vllm#49798, or written in another way."""
    names = f"{RESHAPE} has `{SPEC}`" if name != "class by its module" else ""
    merged, drifted = State.MERGED, State.DRIFTED
    state, says = (merged, names) if name in EQUIVALENT else (drifted, f"the 0.25 layout: GPUModelRunner.{names}")

    case = Case("0.26.0", state, says=says)
    changes = (EQUIVALENT | UNCLEAR)[name]
    check_edited(case, "turboquant-auto-dtype", linked("0.26.0"), tmp_path / "scratch", RUNNER, *changes)

"""turboquant-auto-dtype on real releases: its states, what drifts, and what it makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.testing import Case, State, check

ATTENTION = "vllm/model_executor/layers/attention/attention.py"
CACHE = "vllm/config/cache.py"
INTERFACE = "vllm/v1/kv_cache_interface.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"

UNQUANTISED = "if kv_cache_spec.kv_quant_mode == KVQuantMode.NONE\n"
SPEC = "TQFullAttentionSpec"
GUARDED = UNQUANTISED.replace("\n", f" and not isinstance(kv_cache_spec, {SPEC})\n")
MODE = 'isinstance(kv_cache_dtype, str) and kv_cache_dtype.startswith("turboquant_")'
IMPORT = "    UniformTypeKVCacheSpecs,\n"

CASES = (
    *(
        Case(release, State.NOT_APPLICABLE, says="lists no turboquant_*")
        for release in ("0.18.0", "0.18.1", "0.19.0", "0.19.1")
    ),
    *(
        Case(release, State.NOT_APPLICABLE, says="cache_dtype_str=self.cache_config.cache_dtype)`")
        for release in ("0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0")
    ),
    *(Case(release, State.PENDING, says="2 of 2 changes") for release in ("0.25.0", "0.25.1", "0.26.0")),
    *(
        Case(release, State.MERGED, says="(vllm-project/vllm#50533): get_kv_quant_mode has")
        for release in ("0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
    ),
    Case(
        "0.26.0",
        State.DRIFTED,
        replace={RUNNER: (UNQUANTISED, "if not kv_cache_spec.kv_quant_mode\n")},
        says="`kv_cache_spec.kv_quant_mode == KVQuantMode.NONE` is not there",
    ),
    Case(
        "0.25.1",
        State.DRIFTED,
        replace={RUNNER: ("def _reshape_kv_cache_tensors(", "def _reshape_kv_caches(")},
        says="no 'GPUModelRunner._reshape_kv_cache_tensors' here; nearest: 'GPUModelRunner._reshape_kv_caches'",
    ),
    Case(
        "0.26.0",
        State.DRIFTED,
        replace={RUNNER: (IMPORT, f"{IMPORT}    MLAAttentionSpec as {SPEC},\n")},
        says="'TQFullAttentionSpec' is already bound",
    ),
    # A broken tree is never taken for one without the feature, nor a changed one for one without the defect.
    Case(
        "0.19.1",
        State.DRIFTED,
        replace={
            CACHE: ("CacheDType = Literal[", "CacheDTypes = Literal["),
            RUNNER: ("cache_dtype_str=self", "x=self"),
        },
        says="CacheDType 0 times",
    ),
    Case(
        "0.24.0",
        State.DRIFTED,
        replace={
            RUNNER: ("kv_cache_spec.head_size,\n                        cache_dtype_str=self", "cache_dtype_str=x")
        },
        says="KVQuantMode.NONE` is not there",
    ),
    # Half of upstream's change is not upstream's change: a mode that no spec gets, a spec that gets no mode of its own.
    Case(
        "0.27.1",
        State.DRIFTED,
        replace={ATTENTION: ("kv_quant_mode=quant_mode,\n                tq_slot", "tq_slot")},
        says="not as in 0.25: get_kv_quant_mode has",
    ),
    Case("0.27.0", State.DRIFTED, replace={INTERFACE: (MODE, "False")}, says="not as in 0.25: Attention.get_kv"),
    Case("0.28.0", State.DRIFTED, replace={INTERFACE: (MODE, "False")}, says="has no `TQFullAttentionSpec(...)`"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, pristine: Callable[[str], Path], tmp_path: Path) -> None:
    check(case, "turboquant-auto-dtype", tree=pristine(case.release), scratch=tmp_path)


@pytest.mark.parametrize("release", ["0.25.1", "0.26.0"])
def test_only_the_condition_changes(release: str, pristine: Callable[[str], Path], tmp_path: Path) -> None:
    source, imported = (pristine(release) / RUNNER).read_text(), "from vllm.v1.kv_cache_interface import " + SPEC
    new = source.replace(UNQUANTISED, GUARDED).replace("\nif TYPE_CHECKING:", f"\n{imported}\nif TYPE_CHECKING:")

    case = Case(release, State.PENDING, result={RUNNER: new})

    check(case, "turboquant-auto-dtype", tree=pristine(release), scratch=tmp_path)


def test_a_guard_that_is_there_is_left_alone(linked: Callable[..., Path], tmp_path: Path) -> None:
    """As in upstream's V2 runner, and as vllm-project/vllm#49798 proposes."""
    tree = linked("0.26.0")
    source = (tree / RUNNER).read_text().replace(UNQUANTISED, GUARDED).replace(IMPORT, f"    {SPEC},\n{IMPORT}")
    (tree / RUNNER).unlink()
    (tree / RUNNER).write_text(source)
    (tmp_path / "scratch").mkdir()

    case = Case("0.26.0", State.MERGED, says="the code is as the overlay would make it")

    check(case, "turboquant-auto-dtype", tree=tree, scratch=tmp_path / "scratch")

"""sm12x-deepgemm on real releases: its states by the sources that lie beside DeepGEMM, and the code that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.testing import Case, State, check

from tests.conftest import Program
from tests.overlays.deepgemm import SOURCES, add_sources, sources_of
from tests.releases import RELEASES, cases, fact, shown, tiered

Trees = Callable[..., Path]

ID = "sm12x-deepgemm"
CUDA = "vllm/platforms/cuda.py"

FAMILY = "or cls.is_device_capability_family(120)"
IMPORT = "\nlogger = init_logger(__name__)\n"
CLAIMS_NOTHING = "this vLLM claims no DeepGEMM on 12.x"
SHIPS = "this vLLM has DeepGEMM's sm120 kernels"
CANNOT_TELL = "not applied: no DeepGEMM folder here"

CASES = (
    *(
        Case(release, State.NOT_APPLICABLE, says=f"{CLAIMS_NOTHING}: {where} has `")
        for release, where in (
            *dict.fromkeys(("0.18.0", "0.18.1"), "is_deep_gemm_supported").items(),
            *((one, "CudaPlatformBase.support_deep_gemm") for one in RELEASES[2 : RELEASES.index("0.24.0")]),
        )
    ),
    *(Case(release, State.PENDING, says="3 changes") for release in ("0.24.0", "0.27.0", "0.27.1")),
    *(
        Case(release, State.NOT_APPLICABLE, says=f"{SHIPS}: {SOURCES}/ has sm120_")
        for release in RELEASES[RELEASES.index("0.25.0") :]
        if not release.startswith("0.27.")
    ),
    # Another claim than the known ones, where no source ships: a fix of another kind is not stacked upon.
    *(
        Case(release, State.DRIFTED, replace={CUDA: (old, new)}, says=says)
        for release in ("0.24.0", "0.27.1")
        for old, new, says in (
            (FAMILY, f"{FAMILY} and not cls.is_device_capability(121)", "is not there"),
            (FAMILY, f"or has_sm120_sources() and{FAMILY.removeprefix('or')}", "is not there"),
            (FAMILY, "or cls.has_device_capability(120)", "is not there"),
            ("def support_deep_gemm(", "def supports_deep_gemm(", "nearest: 'CudaPlatformBase.supports_deep_gemm'"),
            (IMPORT, f"{IMPORT}has_sm120_sources = None\n", "'has_sm120_sources' is already bound"),
        )
    ),
    Case(
        "0.24.0",
        State.DRIFTED,
        replace={"vllm/utils/import_utils.py": ("def _has_module(", "def _is_module(")},
        says="does not define _has_module",
    ),
    Case("0.23.0", State.DRIFTED, replace={CUDA: ("cls.is_device_capability_family(100)\n", "True\n")}, says="not"),
)


@pytest.mark.parametrize("case", cases(CASES))
def test_case(case: Case, linked: Trees, tmp_path: Path) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    tree = add_sources(linked(case.release), sources_of(case.release))

    check(case, ID, tree=tree, scratch=scratch)


def test_the_table_has_every_release() -> None:
    table = {case.release: case.before for case in reversed(CASES) if not case.replace}

    assert table == {release: State(fact(ID, release)) for release in RELEASES}


@pytest.mark.parametrize("release", tiered(RELEASES))
def test_a_tree_of_python_files_does_not_tell(release: str, slim: Trees, tmp_path: Path) -> None:
    says = CLAIMS_NOTHING if release < "0.24" else f"{CANNOT_TELL}: the tree does not have the folder {SOURCES}/, "

    check(Case(release, State(shown(ID, release)), says=says), ID, tree=slim(release), scratch=tmp_path)


# The first tier's releases lack the defect; by 0.26.0's code it would have it, too, if its wheel lacked the sources.
OTHERS = tuple(name for name in sources_of("0.26.0") if not name.startswith("sm120_"))
STOCK = """
            cls.is_device_capability(90)
            or cls.is_device_capability_family(100)
            or cls.is_device_capability_family(120)
"""
PATCHED = STOCK.replace(FAMILY, "or (cls.is_device_capability_family(120) and has_sm120_sources())")


@pytest.mark.parametrize("names", [OTHERS, ("sm90_x.cuh",), ("mma_sm120.hpp", "xsm120_y.cuh")], ids=len)
def test_only_the_claim_changes(names: tuple[str, ...], linked: Trees, tmp_path: Path) -> None:
    tree = add_sources(linked("0.26.0"), names)
    source = (tree / CUDA).read_text()
    assert source.count(STOCK) == 1
    imported = "from vllm._vpatch.sm12x_deepgemm import has_sm120_sources"
    anchor = "import vllm._C_stable_libtorch  # noqa\n"
    result = source.replace(STOCK, PATCHED).replace(anchor, f"{anchor}{imported}\n")
    (scratch := tmp_path / "scratch").mkdir()

    check(Case("0.26.0", State.PENDING, result={CUDA: result}), ID, tree=tree, scratch=scratch)


def test_one_source_tells(linked: Trees, tmp_path: Path) -> None:
    tree = add_sources(linked("0.26.0"), (*OTHERS, "sm120_x.cuh"))
    (scratch := tmp_path / "scratch").mkdir()

    check(Case("0.26.0", State.NOT_APPLICABLE, says=f"{SHIPS}: "), ID, tree=tree, scratch=scratch)


def test_a_tree_that_does_not_tell_is_patched_with_the_others(vpatch: Program, linked: Trees) -> None:
    tree = linked("0.26.0")

    named = vpatch("apply", tree, "--overlay", ID)
    assert named.code == 1
    assert CANNOT_TELL in named.out + named.err

    assert vpatch("apply", tree).code == 0


def test_what_is_applied_stays_applied(vpatch: Program, linked: Trees) -> None:
    """A source that is added later is for the companion to find, when vLLM runs."""
    tree = add_sources(linked("0.26.0"), OTHERS)
    assert vpatch("apply", tree, "--overlay", ID).code == 0

    add_sources(tree, ("sm120_x.cuh",))
    for _ in range(2):
        assert vpatch("apply", tree, "--overlay", ID, "--json").json["changed"] == []
        assert vpatch("verify", tree, "--overlay", ID).code == 0
        (tree / SOURCES / "sm120_x.cuh").unlink(missing_ok=True)

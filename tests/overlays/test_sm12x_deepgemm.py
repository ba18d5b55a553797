"""sm12x-deepgemm on real releases: its states by the sources that lie beside DeepGEMM, and the code that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.testing import Case, State, check

from tests.conftest import Program
from tests.loopback import IndexServer, index, settings
from tests.overlays.deepgemm import SOURCES, add_sources, sources_of
from tests.overlays.tables import check_result, drifted, on
from tests.releases import RELEASES, cases, shown, tiered
from tests.wheels import wheel_of

__all__ = ["index", "settings"]

Trees = Callable[..., Path]

ID = "sm12x-deepgemm"
CUDA = "vllm/platforms/cuda.py"

FAMILY = "or cls.is_device_capability_family(120)"
IMPORT = "\nlogger = init_logger(__name__)\n"
CLAIMS_NOTHING = "this vLLM claims no DeepGEMM on 12.x"
SHIPS = "this vLLM has DeepGEMM's sm120 kernels"
CANNOT_TELL = "no DeepGEMM folder to look into"

CASES = (
    *on("<0.19", State.NOT_APPLICABLE, f"{CLAIMS_NOTHING}: is_deep_gemm_supported has `"),
    *on(">=0.19,<0.24", State.NOT_APPLICABLE, f"{CLAIMS_NOTHING}: CudaPlatformBase.support_deep_gemm has `"),
    *on(">=0.24,<0.25", State.PENDING, "3 changes"),
    *on(">=0.25,<0.27", State.NOT_APPLICABLE, f"{SHIPS}: {SOURCES}/ has sm120_"),
    *on(">=0.27,<0.28", State.PENDING, "3 changes"),
    *on(">=0.28", State.NOT_APPLICABLE, f"{SHIPS}: {SOURCES}/ has sm120_"),
    # Another claim than the known ones, where no source ships: a fix of another kind is not stacked upon.
    *(
        case
        for release in ("0.24.0", "0.27.1")
        for case in drifted(
            release,
            CUDA,
            (FAMILY, f"{FAMILY} and not cls.is_device_capability(121)", "is not there"),
            (FAMILY, f"or has_sm120_sources() and{FAMILY.removeprefix('or')}", "is not there"),
            (FAMILY, "or cls.has_device_capability(120)", "is not there"),
            (IMPORT, f"{IMPORT}has_sm120_sources = None\n", "'has_sm120_sources' is already bound"),
        )
    ),
    *drifted(
        "0.24.0",
        "vllm/utils/import_utils.py",
        ("def _has_module(", "def _is_module(", "is gone, and sm12x_deepgemm.py calls it; nearest: `_is_module`"),
    ),
    *drifted("0.23.0", CUDA, ("cls.is_device_capability_family(100)\n", "True\n", "not")),
)


@pytest.mark.parametrize("case", cases(CASES))
def test_case(case: Case, linked: Trees, tmp_path: Path) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    tree = add_sources(linked(case.release), sources_of(case.release))

    check(case, ID, tree=tree, scratch=scratch)


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
def test_only_the_claim_changes_and_one_source_tells(names: tuple[str, ...], linked: Trees, tmp_path: Path) -> None:
    anchor = "import vllm._C_stable_libtorch  # noqa\n"
    imported = (anchor, f"{anchor}from vllm._vpatch.sm12x_deepgemm import has_sm120_sources\n")
    for name in ("without", "with"):
        (tmp_path / name).mkdir()

    tree = add_sources(linked("0.26.0"), names)
    check_result(ID, "0.26.0", tree, tmp_path / "without", CUDA, (STOCK, PATCHED), imported)
    add_sources(tree, ("sm120_x.cuh",))
    check(Case("0.26.0", State.NOT_APPLICABLE, says=f"{SHIPS}: "), ID, tree=tree, scratch=tmp_path / "with")


@pytest.mark.parametrize("ships", [True, False])
def test_a_fetched_tree_tells_what_the_wheel_does(
    vpatch: Program,
    index: IndexServer,
    linked: Trees,
    tmp_path: Path,
    ships: bool,  # noqa: FBT001 - of a table
) -> None:
    names = tuple(name for name in sources_of("0.33.0") if ships or not name.startswith("sm120_"))
    index.publish("vllm-0.33.0-py3-none-any.whl", wheel_of(add_sources(linked("0.33.0"), names)))
    fetched = tmp_path / "fetched"
    assert vpatch("fetch", "0.33.0", fetched).code == 0

    in_tree = vpatch("status", fetched, "--overlay", ID, "--json").json
    (in_wheel,) = vpatch("matrix", "--vllm", "0.33.0", "--overlay", ID, "--json").json["rows"]

    states = [found["overlays"][0]["state"] for found in (in_tree, in_wheel)]
    assert states == ["not_applicable" if ships else "pending"] * 2


@pytest.mark.deep
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

"""Trees with the names of DeepGEMM's sources, which fetched ones lack: those in the RECORD of the release's wheel."""

from __future__ import annotations

from pathlib import Path

from tests.releases import tree_of

SOURCES = "vllm/third_party/deep_gemm/include/deep_gemm/impls"


def sources_of(release: str) -> tuple[str, ...]:
    """Return the names of DeepGEMM's sources in a release's wheel."""
    (record,) = tree_of(release).glob("vllm-*.dist-info/RECORD")
    paths = (row.partition(",")[0] for row in record.read_text().splitlines())
    return tuple(sorted(path.removeprefix(f"{SOURCES}/") for path in paths if path.startswith(f"{SOURCES}/")))


def add_sources(tree: Path, names: tuple[str, ...]) -> Path:
    """Add empty sources to a tree, if any; return the tree."""
    for name in names:
        (tree / SOURCES).mkdir(parents=True, exist_ok=True)
        (tree / SOURCES / name).touch()
    return tree

"""What was done to an installed vLLM, by whatever means, becomes a patch file that does it again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from vpatch.core import nesting
from vpatch.guest.record import entry, parse, revise
from vpatch.porting.program import difference

from tests.conftest import Program, contents_of, untouched
from tests.porting.installed import HAND, LEFT, copied, edit, prioritized
from tests.releases import tiered, tree_of
from tests.tiers import deep

RELEASES = tiered(("0.20.2", "0.26.0", "0.33.0"), ("0.20.2",))
LESS = ("if src_level > tgt_level:", "if src_level >= tgt_level:")
SIX: Mapping[str, tuple[str, str]] = {
    LEFT: LESS,
    "vllm/v1/engine/llm_engine.py": (
        "        req_id = request.request_id\n",
        "        req_id = request.request_id\n        assert req_id\n",
    ),
    "vllm/model_executor/model_loader/utils.py": (
        'architectures = getattr(model_config.hf_config, "architectures", None) or []',
        'architectures = list(getattr(model_config.hf_config, "architectures", None) or [])',
    ),
    "vllm/v1/engine/output_processor.py": (
        "self.streaming_input = not update.final",
        "self.streaming_input = bool(not update.final)",
    ),
    "vllm/v1/executor/ray_utils.py": ('bundles = pg_data["bundles"]', 'bundles = pg_data.get("bundles", {})'),
    "vllm/utils/argparse_utils.py": (
        'index = args.index("--config")',
        'index = len(args) - 1 - args[::-1].index("--config")',
    ),
}
SCRIPT = """
import json, sys
from pathlib import Path
for name, (old, new) in json.loads(sys.argv[1]).items():
    path = Path(name)
    text = path.read_text()
    assert text.count(old) == 1, name
    path.unlink()  # it may be a hard link
    path.write_text(text.replace(old, new))
"""
COPIED = {
    "0.20.2": ("0.21.0", "vllm/config/load.py"),
    "0.26.0": ("0.27.0", "vllm/distributed/weight_transfer/factory.py"),
    "0.33.0": ("0.32.0", "vllm/config/lora.py"),
}


def by_script(tree: Path, release: str) -> None:
    import json

    subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(SIX)], cwd=tree, check=True)


def by_sed(tree: Path, release: str) -> None:
    subprocess.run(["sed", "-i", "s/if src_level > tgt_level:/if src_level >= tgt_level:/", LEFT], cwd=tree, check=True)


def by_copy(tree: Path, release: str) -> None:
    other, path = COPIED[release]
    (tree / path).unlink()
    shutil.copy(tree_of(other) / path, tree / path)


def by_hand(tree: Path, release: str) -> None:
    edit(tree, HAND, prioritized)


def as_a_fork(tree: Path, release: str) -> None:
    """Change modules as another wheel has them: RECORD lists what is there."""
    by_hand(tree, release)
    by_sed(tree, release)
    (record,) = tree.glob("*.dist-info/RECORD")
    rows = revise(parse(record.read_bytes()), {path: entry(path, (tree / path).read_bytes()) for path in (LEFT, HAND)})
    record.unlink()
    record.write_bytes(rows.serialize())


def changed(tree: Path, release: str) -> list[str]:
    """List the files that differ from those of the release."""
    old, new = contents_of(tree_of(release)), contents_of(tree)
    return sorted(
        path for path in old.keys() | new.keys() if old.get(path) != new.get(path) and path.startswith("vllm/")
    )


def proven(vpatch: Program, file: Path, tree: Path, release: str, scratch: Path) -> None:
    """Assert that a patch file makes of a pristine release what is in a tree; that it verifies, and can be undone."""
    fresh = copied(release, scratch / "fresh")
    before = contents_of(fresh)
    ours = ("--patches", file, "--overlay", file.stem)

    assert vpatch("apply", *ours, fresh).code == 0
    assert changed(fresh, release) == changed(tree, release)
    for path in changed(tree, release):
        texts = (nesting.decode((top / path).read_bytes())[0] for top in (fresh, tree, tree_of(release)))
        assert difference(*texts) == "", path
    assert vpatch("verify", *ours, fresh).code == 0
    assert vpatch("revert", fresh).code == 0
    assert contents_of(fresh) == before
    assert vpatch("status", *ours, tree, "--json").json["overlays"][0]["state"] == "merged"


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("means", [deep(by_script), deep(by_sed), deep(by_copy), deep(by_hand), as_a_fork])
def test_what_was_done(vpatch: Program, tmp_path: Path, release: str, means: Callable[[Path, str], None]) -> None:
    tree = copied(release, tmp_path / "tree")
    means(tree, release)

    with untouched(tree):
        ran = vpatch("capture", tree, "--pristine", tree_of(release), "-o", tmp_path / "patches", "--name", "ours")

    file = tmp_path / "patches/ours.vpatch"
    assert ran.code == 0, ran.err
    rows = [line.split() for line in ran.out.splitlines()]
    assert rows == [*([path, "changed"] for path in changed(tree, release)), [str(file)]]
    assert f"\nBase: {release}\n" in file.read_text()
    told = ran.err.splitlines()
    assert told[0] == f"vLLM {release} in {tree}"
    assert told[-1].startswith(f"Wrote {file}: {len(rows) - 1} module")
    assert told[-1].endswith(f". Once vLLM {release} is reinstalled: `vpatch apply --patches {file} {tree}`.")
    proven(vpatch, file, tree, release, tmp_path)

"""Packages beside a vLLM may hold pipes, devices and endless files: `doctor` reads them within bounds, or not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.cli.test_foreign_trees import HARMS, bounded
from tests.conftest import Ran
from tests.forks import output

SOME = {name: HARMS[name] for name in ("pipe", "device", "sparse", "folder", "loop", "deep object", "noise 1")}
METADATA = "Metadata-Version: 2.1\nName: {0}\nVersion: 1\n"
POINTS = "[vllm.general_plugins]\n{0} = {0}_code.plugin:register\n"


def package(site: Path, name: str, spoilt: str, harm: Callable[[Path], object]) -> None:
    """Install a plugin of vLLM with one file that is no file of text."""
    info, code = site / f"{name}-1.dist-info", site / f"{name}_code"
    info.mkdir()
    code.mkdir()
    texts = {info / "METADATA": METADATA, info / "entry_points.txt": POINTS, info / "direct_url.json": "{{}}"}
    for path, text in {**texts, code / "plugin.py": "x = 1\n"}.items():
        harm(path) if path.name == spoilt else path.write_text(text.format(name))


def test_files_of_other_packages(healthy: Path) -> None:
    (site,) = healthy.glob("lib/python3*/site-packages")
    for name, harm in SOME.items():
        for spoilt in ("METADATA", "entry_points.txt", "direct_url.json", "plugin.py"):
            package(site, f"{name}_{spoilt}".translate(str.maketrans(" .", "__")).lower(), spoilt, harm)
    (site / "torch").mkdir()
    os.mkfifo(site / "torch/version.py")
    os.mkfifo(site / "vllm/extension.so")

    ran = Ran(*output("doctor", "--json", "--python", healthy / "bin/python", first=bounded))

    assert (ran.code, ran.err) == (0, "")
    plugins = [one["what"] for one in ran.json["findings"] if one["name"] == "plugin"]
    assert len(plugins) == 2 * len(SOME)  # vLLM could not read the others either

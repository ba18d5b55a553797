"""Plugins of vLLM are read, never imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.conftest import Diagnose, Found, packages, put
from tests.hybrid import ATTENTION, INTERFACE

BOOM = "raise SystemExit('imported')\n"
REWRITES = """
    target = root / "v1/attention/backends/turboquant_attn.py"
    target.write_text(text)
"""
JOINS = """
    path = os.path.join(root, "backends", "turboquant_attn.py")
    with open(path, "w") as file:
        file.write(text)
"""
REPLACES = """
    import vllm.platforms.interface as interface
    interface.Platform.check = check
"""
READS = """
    print(open("v1/attention/backends/turboquant_attn.py").read())
"""


def plugin(root: Path, name: str, code: str, *, group: str = "general", value: str = "") -> None:
    value = value or f"{name}.boot:register"
    put(root / name / "__init__.py", BOOM)
    put(root / name / "boot.py", f"{BOOM}def register():\n    pass\n{code}")
    put(root / f"{name}-2.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
    put(
        root / f"{name}-2.0.dist-info/entry_points.txt",
        f"[vllm.{group}_plugins]\nfix = {value}\n[other]\nno = {name}\n",
    )


def one(found: list[Found]) -> Found:
    (only,) = found
    return only


def test_none(diagnose: Diagnose, healthy: Path) -> None:
    """vLLM's own plugins do not count."""
    found = one(diagnose(healthy, name="plugin"))

    assert (found["level"], found["what"]) == ("ok", "no other package has a plugin for vLLM")
    assert diagnose(healthy, name="plugins-selected") == []


@pytest.mark.parametrize("group", ["general", "platform"])
def test_a_plugin_that_minds_its_own_business(diagnose: Diagnose, healthy: Path, group: str) -> None:
    plugin(packages(healthy), "friend", READS, group=group)

    found = one(diagnose(healthy, name="plugin"))

    assert (found["level"], found["do"]) == ("note", "")
    assert found["what"] == "the plugin fix (friend.boot:register) of friend 2.0 runs in every process of vLLM"
    assert found["where"] == f"{packages(healthy)}/friend"


@pytest.mark.parametrize("code", [REWRITES, JOINS])
def test_a_plugin_that_may_rewrite_files(diagnose: Diagnose, healthy: Path, code: str) -> None:
    plugin(packages(healthy), "rival", code)

    found = one(diagnose(healthy, name="plugin"))

    assert found["level"] == "warning"
    assert f"rival 2.0 writes files and names {ATTENTION}, which overlays change: it may rewrite them" in found["what"]
    assert "`VLLM_PLUGINS= vllm serve ...`" in found["do"]


def test_a_plugin_that_may_replace_functions(diagnose: Diagnose, healthy: Path) -> None:
    plugin(packages(healthy), "rival", REPLACES)

    found = one(diagnose(healthy, name="plugin"))

    assert found["level"] == "warning"
    assert f"names {INTERFACE.removesuffix('.py').replace('/', '.')}, which overlays change" in found["what"]


def test_a_plugin_inside_of_vllm(diagnose: Diagnose, healthy: Path) -> None:
    root = packages(healthy)
    put(root / "vllm/_genesis/plugin.py", BOOM + REWRITES)
    plugin(root, "rival", "", value="vllm._genesis.plugin:register")

    found = one(diagnose(healthy, name="plugin"))

    assert (found["level"], found["where"]) == ("warning", f"{root}/vllm/_genesis")


@pytest.mark.parametrize("pth", [True, False])
def test_a_plugin_that_is_installed_for_editing(
    diagnose: Diagnose, healthy: Path, tmp_path: Path, *, pth: bool
) -> None:
    """Its folder is named by a `.pth` file, or only by a finder that its `.pth` file installs."""
    plugin(tmp_path / "src", "rival", REWRITES)
    root = packages(healthy)
    (tmp_path / "src/rival-2.0.dist-info").rename(root / "rival-2.0.dist-info")
    said = f'{{"url": "file://{tmp_path}", "dir_info": {{"editable": true}}}}'
    put(root / "rival-2.0.dist-info/direct_url.json", said)
    if pth:
        put(root / "rival.pth", f"{tmp_path}/src\n")

    found = one(diagnose(healthy, name="plugin"))

    assert (found["level"], found["where"]) == ("warning", f"{tmp_path}/src/rival")


def test_a_plugin_whose_code_is_gone(diagnose: Diagnose, healthy: Path) -> None:
    plugin(packages(healthy), "ghost", "", value="nowhere:register")

    found = one(diagnose(healthy, name="plugin"))

    assert (found["level"], found["where"]) == ("note", "")
    assert found["what"].endswith("its code was not found")


@pytest.mark.parametrize(("value", "told"), [("fix,other", "only the plugins fix,other"), ("", "no plugin")])
def test_the_selection(
    diagnose: Diagnose, healthy: Path, monkeypatch: pytest.MonkeyPatch, value: str, told: str
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", value)

    found = one(diagnose(healthy, name="plugins-selected"))

    assert (found["level"], found["what"]) == ("note", f"VLLM_PLUGINS is set in this shell: vLLM loads {told}")

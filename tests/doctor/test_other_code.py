"""Plugins of vLLM, code that runs before vLLM, and folders with another vLLM: read, never imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from vpatch.doctor import other_code
from vpatch.doctor.subject import Level

from tests.doctor.conftest import Examine, brief, packages, put
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
MODULE = INTERFACE.removesuffix(".py").replace("/", ".")
WRITES = f"writes files and names {ATTENTION}, which overlays change: it may rewrite them"
PATCHES = "import sys\nif 'vllm' in sys.modules:\n    pass\n"


def plugin(root: Path, name: str, code: str, *, group: str = "general", value: str = "") -> None:
    value = value or f"{name}.boot:register"
    put(root / name / "__init__.py", BOOM)
    put(root / name / "boot.py", f"{BOOM}def register():\n    pass\n{code}")
    put(root / f"{name}-2.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
    points = f"[vllm.{group}_plugins]\nfix = {value}\n[other]\nno = {name}\n"
    put(root / f"{name}-2.0.dist-info/entry_points.txt", points)


def test_plugins(examine: Examine, healthy: Path, tmp_path: Path) -> None:
    """vLLM's own plugins do not count, nor damaged metadata, which vLLM could not read either."""
    none = [("plugin", "ok", "no other package has a plugin for vLLM")]
    assert brief(other_code.plugins(examine(healthy))) == none
    root = packages(healthy)
    for name, damage in (("torn", b"\xff"), ("nameless", b"Version: 2.0\n")):
        plugin(root, name, REWRITES)
        put(root / f"{name}-2.0.dist-info/METADATA", damage)
    assert brief(other_code.plugins(examine(healthy))) == none

    expected = {  # by name: code, or entry point, level, text, and where it is
        "friend": (READS, "", "note", "runs in every process of vLLM", root / "friend"),
        "platform": (READS, "", "note", "runs in every process of vLLM", root / "platform"),
        "rewrites": (REWRITES, "", "warning", WRITES, root / "rewrites"),
        "joins": (JOINS, "", "warning", WRITES, root / "joins"),
        "replaces": (REPLACES, "", "warning", f"names {MODULE}, which overlays change", root / "replaces"),
        "inside": ("", "vllm._genesis.plugin:register", "warning", WRITES, root / "vllm/_genesis"),
        "ghost": ("", "nowhere:register", "note", "its code was not found", ""),
        "by_pth": (REWRITES, "", "warning", WRITES, tmp_path / "src/by_pth"),
        "by_finder": (REWRITES, "", "warning", WRITES, tmp_path / "found/src/by_finder"),
    }
    put(root / "vllm/_genesis/plugin.py", BOOM + REWRITES)
    for name, (code, value, *_) in expected.items():
        source = {"by_pth": tmp_path / "src", "by_finder": tmp_path / "found/src"}.get(name, root)
        plugin(source, name, code, group="platform" if name == "platform" else "general", value=value)
        if source != root:  # it is installed for editing: named by a `.pth` file, or by a finder that one installs
            (source / f"{name}-2.0.dist-info").rename(root / f"{name}-2.0.dist-info")
            origin = f'{{"url": "file://{source.parent}", "dir_info": {{"editable": true}}}}'
            put(root / f"{name}-2.0.dist-info/direct_url.json", origin)
    put(root / "by_pth.pth", f"{tmp_path}/src\n")

    found = {one.what.split(" of ", 1)[1].split()[0]: one for one in other_code.plugins(examine(healthy))}
    assert found.keys() == expected.keys()
    for name, (_, value, level, text, where) in expected.items():
        one = found[name]
        assert (one.level, one.where) == (level, (str(where),) if where else ()), name
        assert one.what.startswith(f"the plugin fix ({value or f'{name}.boot:register'}) of {name} 2.0 ")
        assert text in one.what
        assert ("`VLLM_PLUGINS= vllm serve ...`" in one.do) == (level == "warning")


@pytest.mark.parametrize(("value", "text"), [("fix,other", "only the plugins fix,other"), ("", "no plugin")])
def test_the_selection(examine: Examine, healthy: Path, monkeypatch: pytest.MonkeyPatch, value: str, text: str) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", value)
    selected, _ = brief(other_code.plugins(examine(healthy)))

    assert selected == ("plugins-selected", "note", f"VLLM_PLUGINS is set in this shell: vLLM loads {text}")


NOTHING = [("startup", "ok", "no start-up code mentions vllm, and no search path has another one")]


def test_start_up_code(examine: Examine, healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian has a `sitecustomize` of its own, so these come first by PYTHONPATH."""
    root = packages(healthy)
    config = healthy / "pyvenv.cfg"  # Python runs `usercustomize` only where it reads the user's site-packages
    put(config, config.read_text().replace("packages = false", "packages = true"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "first"))
    custom = [put(tmp_path / f"first/{name}.py", "x = 1\n") for name in ("sitecustomize", "usercustomize")]
    put(root / "coverage.pth", "import sys; sys.path\n")
    put(root / "plain.pth", f"{root.parent}\n# import vllm\n")
    put(root / "__editable__.vllm-0.20.2.pth", "import sys; 'vllm'\n")
    put(root / "vllm_plugin.pth", "import vllm_plugin_finder\n")
    put(root / "booting.py", PATCHES)
    assert brief(other_code.startup(examine(healthy))) == NOTHING

    lines = {"yy": "import os; vllm = 'vllm'", "zz": "import booting"}  # the line mentions it, or what it imports
    code = {put(file, PATCHES): file.name for file in custom}
    code |= {put(root / f"{name}.pth", f"{line}\n"): f"`{line}`" for name, line in lines.items()}
    found = list(other_code.startup(examine(healthy)))

    assert {one.where[0]: one.what for one in found} == {
        str(file): f"{name} runs when Python starts, and mentions vllm" for file, name in code.items()
    }
    assert {one.level for one in found} == {Level.WARNING}


def test_another_vllm(examine: Examine, healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By PYTHONPATH, by a `.pth` file, or in the current folder."""
    root, other, here = packages(healthy), tmp_path / "other", tmp_path / "here"
    for folder in (other, here):
        put(folder / "vllm/__init__.py", "")
    monkeypatch.setenv("PYTHONPATH", f"{root}:{other.parent}")
    monkeypatch.chdir(root)
    assert brief(other_code.startup(examine(healthy))) == NOTHING
    put(root / "zz.pth", f"{other}\n")
    monkeypatch.chdir(here)
    listed, current = other_code.startup(examine(healthy))
    monkeypatch.setenv("PYTHONPATH", f":{other}")
    first, _ = other_code.startup(examine(healthy))

    assert (listed.level, listed.where) == (Level.NOTE, (str(other),))
    assert (current.level, current.where) == (Level.WARNING, (str(here),))
    assert (first.level, first.where) == (Level.WARNING, (str(other),))
    assert "`env -u PYTHONPATH`" in first.do

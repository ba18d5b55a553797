"""What a job's runtime environment becomes, and what a worker refuses. `test_ray_cluster.py` has a real Ray."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from vpatch.guest import vpatch_ray
from vpatch.run.launch import ray_variables

UV = "ray._private.runtime_env.uv_runtime_env_hook"
CHECK = f"{vpatch_ray.__name__}.check"
OURS = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"


@pytest.fixture(autouse=True)
def farm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A farm whose digest begins with abc, for which this process was started."""
    monkeypatch.setattr(vpatch_ray, "FARM", tmp_path)
    monkeypatch.setenv("VPATCH_RUN", "abc")
    release = {"info": "", "modules": ""}
    told = {"digest": "abcdef", "root": str(tmp_path / "stock"), "release": release, "files": {}, "applied": {}}
    (tmp_path / "vpatch.json").write_text(json.dumps(told))
    (tmp_path / "stock/vllm").mkdir(parents=True)
    (tmp_path / "stock/vllm/__init__.py").touch()
    monkeypatch.syspath_prepend(Path(vpatch_ray.__file__).parent)  # a farm has all of it
    monkeypatch.syspath_prepend(tmp_path / "stock")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").touch()
    return tmp_path


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`module("name", hook=function)`: a module to import, for want of Ray, uv and a user's code."""

    def make(name: str, **members: object) -> None:
        made = ModuleType(name)
        vars(made).update(members)
        parts = name.split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
        monkeypatch.setitem(sys.modules, name, made)

    return make


def adding(name: str) -> Callable[[dict[str, Any] | None], dict[str, Any]]:
    return lambda given: {**(given or {}), name: True}


@pytest.mark.parametrize("given", [None, {}, {"env_vars": None}])
def test_workers_import_from_the_farm_first(given: dict[str, Any] | None, farm: Path) -> None:
    assert vpatch_ray.hook(given) == {
        "env_vars": {"PYTHONPATH": f"{farm}:${{PYTHONPATH}}", "VPATCH_RUN": "abc"},
        "worker_process_setup_hook": CHECK,
    }


@pytest.mark.parametrize(("path", "then"), [("/a:/b", ":/a:/b"), ("", "")])
def test_what_the_job_says_is_kept(path: str, then: str, farm: Path) -> None:
    """And a setup function that Ray has sent before."""
    given = {"env_vars": {"PYTHONPATH": path, "A": "b"}, "working_dir": "/w", "worker_process_setup_hook": "own.setup"}
    before = json.dumps(given)
    changed = vpatch_ray.hook(given)

    assert changed["env_vars"] == {"PYTHONPATH": f"{farm}{then}", "A": "b", "VPATCH_RUN": "abc"}
    assert (changed["working_dir"], changed["worker_process_setup_hook"]) == ("/w", "own.setup")
    assert json.dumps(given) == before
    assert "worker_process_setup_hook" not in vpatch_ray.hook({"env_vars": {OURS: "own.setup"}})


def hooks(given: dict[str, Any] | None = None) -> set[str]:
    return {*vpatch_ray.hook(given)} - {"env_vars", "worker_process_setup_hook"}


@pytest.mark.parametrize(
    ("before", "below_uv", "called"),
    [
        ({}, False, set()),
        ({}, True, {"uv"}),
        ({"RAY_RUNTIME_ENV_HOOK": "own.code.add"}, False, {"user"}),
        ({"RAY_RUNTIME_ENV_HOOK": "own.code.add"}, True, {"uv"}),  # as Ray does
        ({"RAY_RUNTIME_ENV_HOOK": "own.code.add", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}, True, {"user"}),
        ({"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}, True, set()),
        ({"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "True"}, True, {"uv"}),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_the_hook_that_ray_would_call_is_called(
    times: int,
    before: dict[str, str],
    below_uv: bool,  # noqa: FBT001
    called: set[str],
    module: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if `vpatch run` runs `vpatch run`."""
    module(UV, _get_uv_run_cmdline=lambda: ["uv", "run"] if below_uv else None, hook=adding("uv"))
    module("own.code", add=adding("user"))
    environment = {**before}
    for _ in range(times):
        environment |= ray_variables(environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert environment["RAY_RUNTIME_ENV_HOOK"] == "vpatch_ray.hook"
    assert environment["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == "0"
    assert hooks() == called


def test_a_ray_that_knows_no_uv(module: Callable[..., None]) -> None:
    module("ray._private.runtime_env")

    assert hooks() == set()


@pytest.mark.parametrize(
    ("name", "error"), [("nowhere.hook", ModuleNotFoundError), ("json.no_such_hook", AttributeError)]
)
def test_a_hook_that_is_not_there_is_no_silence(
    name: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VPATCH_RAY_HOOK", name)

    with pytest.raises(error, match=r"nowhere|no_such_hook"):
        vpatch_ray.hook(None)


@pytest.mark.parametrize(
    ("first", "asked", "message"),
    [
        (["FARM"], "abc", ""),
        (["FARM"], "", ""),
        ([], "abc", "this worker imports FARM/stock/vllm/__init__.py, not FARM/vllm/__init__.py"),
        (["OTHER", "FARM"], "abc", "this worker imports OTHER/vllm/__init__.py, not FARM/vllm"),
        (["FARM", "OTHER"], "abc", "another environment: .* for the vLLM in FARM/stock, .* in OTHER: "),
        (["FARM"], "0123456789abcdef", "started for 0123456789ab, and finds abcdef"),
    ],
)
def test_a_worker(
    first: list[str],
    asked: str,
    message: str,
    farm: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It passes only with the farm of its driver, and in the environment that the farm was made for."""
    other = tmp_path_factory.mktemp("other")
    (other / "vllm").mkdir()
    (other / "vllm/__init__.py").touch()
    for place in reversed(first):
        monkeypatch.syspath_prepend({"FARM": farm, "OTHER": other}[place])
    monkeypatch.setenv("VPATCH_RUN", asked)
    if message:
        with pytest.raises(RuntimeError, match=message.replace("FARM", str(farm)).replace("OTHER", str(other))):
            vpatch_ray.check()
    else:
        vpatch_ray.check()

"""Compose files are valid by compose's own schema, and every string in them is read back unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from vpatch.errors import Failure
from vpatch.installation import how_to_add
from vpatch.plan.commands import compose, docker
from vpatch.plan.defaults import presets

from tests.conftest import Program
from tests.loopback import listening
from tests.plan.examples import bare_deployment, bare_model, preset_deployment
from tests.tiers import deep

OVERLAYS = ("ct-fp8-lm-head", "turboquant-workspace")
CHECK = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")

# Strings that YAML 1.1 or 1.2, or compose, could read as something else.
HARD = (
    *("yes", "no", "on", "Off", "true", "null", "~", "", " ", "0o17", "017", "0x1f", "1_000", "1e3", ".5", "1:30"),
    *("=", "<<", "2026-11-21", "- a", "a: b", "a #b", "# a", "{a: b}", "[a]", "*a", "&a", "!a", "%a", "@a", "`a`"),
    *("'a'", '"a"', "|", ">", "?", "---", "...", "a\nb", "a\r\n", "\ta", "\x7f", "\x85", "\u2028", "\ufeff"),
    *("\U0001f600", "\\", "\\n", "x" * 999, "$HOME", "${HOME}", "$$", "$", "${a:-b}", "a$", "$${a}"),
)


def read(text: str, version: str = "1.2") -> Any:
    """Read a compose file as compose does: YAML first, then variables in every string, which may be `HOME` only."""
    yaml = YAML(typ="safe", pure=True)
    yaml.version = version
    return _interpolated(yaml.load(text))


def _interpolated(value: Any) -> Any:
    match value:
        case dict():
            return {key: _interpolated(item) for key, item in value.items()}
        case list():
            return [_interpolated(item) for item in value]
        case str():
            value, known = re.subn(r"^\$\{HOME\}", str(Path.home()).replace("$", "$$"), value)
            assert "$" not in value.replace("$$", ""), "a variable"
            assert known <= 1
            return re.sub(r"\$\$", "$", value)
    return value


def service(text: str) -> dict[str, Any]:
    found: dict[str, Any] = read(text)["services"]["vllm"]
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write the compose files of every preset, and of strings that are hard to write."""
    folder = tmp_path_factory.mktemp("compose")
    texts = {one.name: compose(*preset_deployment(one), OVERLAYS) for one in presets()}
    texts["hard"] = compose(bare_model("/models/yes"), bare_deployment("0.21.0", extra=HARD), OVERLAYS)
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return sorted(folder.iterdir())


def test_compose_files_are_valid(files: list[Path]) -> None:
    ran = subprocess.run([*CHECK, *files], capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout
    assert len(files) == len(presets()) + 1


@pytest.mark.parametrize("one", [deep(one) if number % 8 else one for number, one in enumerate(presets())])
def test_it_is_the_container_of_docker_run(one: Any) -> None:
    meant, deployed = preset_deployment(one)
    run = tuple(chain(*docker(meant, deployed, OVERLAYS)))
    found = service(compose(meant, deployed, OVERLAYS))

    assert [found["image"], *found["command"]] == list(run[-1 - len(found["command"]) :])
    values = [run[index + 1] for index, argument in enumerate(run) if argument == "-e"]
    assert found["environment"] == values
    assert found["ports"] == [run[run.index("-p") + 1]] == ["127.0.0.1:8000:8000"]
    assert [f"{one['source']}:{one['target']}" for one in found["volumes"]] == [
        run[index + 1] for index, argument in enumerate(run) if argument == "-v"
    ]
    (device,) = found["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": int(run[run.index("--gpus") + 1]), "capabilities": ["gpu"]}
    assert found["ipc"] == "host"


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_strings_are_read_back_unchanged(version: str) -> None:
    text = compose(bare_model("no"), bare_deployment(extra=HARD, environment=("A=$HOME", "B=yes")), ())
    found = read(text, version)["services"]["vllm"]

    assert found["command"][0] == "no"
    assert found["command"][-len(HARD) :] == list(HARD)
    assert found["environment"] == ["HF_TOKEN", "A=$HOME", "B=yes"]


def test_a_folder_is_mounted() -> None:
    found = service(compose(bare_model("/srv/$x, y: z"), bare_deployment(), ()))

    assert found["command"][0] == "/models/$x, y: z"
    volume = {"type": "bind", "source": "/srv/$x, y: z", "target": "/models/$x, y: z", "read_only": True}
    assert found["volumes"][-1] == volume


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("/home/ann/my models/x", '"$HOME/my models/x"'),
        ("--compose=/home/ann/a$b", '"--compose=$HOME/a\\$b"'),
        ("/home/anna/x", "/home/anna/x"),
        ("a\nb: c\u2028", "'a\\nb: c\\u2028'"),
    ],
)
def test_it_says_how_it_was_made_and_not_by_whom(monkeypatch: pytest.MonkeyPatch, typed: str, written: str) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    text = compose(bare_model("/home/ann/models/$x"), bare_deployment(), (), ("vpatch", "plan", typed))
    found = service(text)

    assert text.splitlines()[0] == f"# Made by: vpatch plan {written}"
    assert "/home/ann/" not in text
    assert '"${HOME}/.cache/huggingface/hub"' in text
    assert [one["source"] for one in found["volumes"][1:]] == [
        "/home/ann/.cache/huggingface/hub",
        "/home/ann/models/$x",
    ]


def test_an_image_to_build_comes_with_the_command_and_is_never_pulled() -> None:
    text = compose(bare_model("a/b"), bare_deployment("0.21.0"), OVERLAYS)

    assert "#   vpatch build \\\n#     --base vllm/vllm-openai:v0.21.0 \\\n" in text
    assert service(text)["pull_policy"] == "never"
    assert "pull_policy" not in service(compose(bare_model("a/b"), bare_deployment("0.20.2"), ()))
    assert "vpatch build" not in compose(bare_model("a/b"), bare_deployment("0.20.2"), ())


def test_the_health_check_recognizes_a_healthy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    text = compose(bare_model("a/b"), bare_deployment(), ())
    command, python, *arguments = service(text)["healthcheck"]["test"]
    assert (command, python) == ("CMD", "python3")
    assert f'- "{arguments[-1]}"\n' in text, "on one line"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/health"
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Be quiet."""

    def asked() -> int:
        port = str(server.server_address[1])
        checked = [argument.replace("8000", port) for argument in arguments]
        return subprocess.run([sys.executable, *checked], capture_output=True, check=False).returncode

    with listening(Server) as server:
        status = 200
        assert asked() == 0
        status = 503
        assert asked() == 1
    assert asked() == 1, "there is no server"


def test_without_the_library_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, vpatch: Program, tmp_path: Path
) -> None:
    """The plan itself is printed all the same."""
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)

    with pytest.raises(Failure, match=rf"cannot write a compose file: .* {re.escape(how_to_add('plan'))}"):
        compose(bare_model("a/b"), bare_deployment(), ())

    ran = vpatch("plan", "--preset", "qwen3.6-35b-5090-32k", "--compose", tmp_path / "x.yaml")
    assert (ran.code, ran.out != "", [*tmp_path.iterdir()]) == (1, True, [])
    assert ran.err.splitlines()[-1].endswith(f"not installed: {how_to_add('plan')}")

"""The engine's lines of a pull or a push, as phases with bytes."""

from __future__ import annotations

from typing import Any

import docker
import pytest
from vpatch.errors import Problem
from vpatch.image.engine.gpus import require_gpus
from vpatch.image.engine.transfer import followed

from tests.failures import problem_of

PULL = {"Downloading": "pulling", "Extracting": "unpacking"}


def line(status: str, layer: str = "", current: int = 0, total: int = 0) -> dict[str, Any]:
    return {"status": status, "id": layer, "progressDetail": {"current": current, "total": total} if total else {}}


def phases(*lines: dict[str, Any]) -> list[tuple[object, ...]]:
    """Return the phases that these lines make, without repetitions."""
    seen: list[tuple[object, ...]] = []

    def phase(*told: object) -> None:
        if told not in seen[-1:]:
            seen.append(told)

    assert list(followed(lines, "a:b", phase, PULL)) == list(lines)
    return seen


def test_the_layers_of_a_pull_are_added_up() -> None:
    assert phases(
        line("Pulling from a"),
        line("Already exists", "0"),
        line("Downloading", "1", 10, 100),
        line("Downloading", "2", 20, 50),
        line("Download complete", "2"),
        line("Extracting", "2", 5, 50),
        line("Downloading", "1", 100, 100),
        line("Extracting", "2", 40, 50),
        line("Pull complete", "2"),
        line("Download complete", "1"),
        line("Extracting", "1", 60, 100),
        line("Status: Downloaded newer image"),
    ) == [
        ("pulling a:b",),
        ("pulling a:b", 10, 100),
        ("pulling a:b", 30, 150),
        ("pulling a:b", 60, 150),
        ("unpacking a:b", 5, 150),
        ("unpacking a:b", 40, 150),
        ("unpacking a:b", 50, 150),
        ("unpacking a:b", 110, 150),
    ]


def test_more_bytes_than_announced() -> None:
    assert phases(line("Downloading", "1", 120, 100))[-1] == ("pulling a:b", 100, 100)


DRIVER = (
    "failed to create shim: OCI runtime create failed: error running hook #0: exit status 1, stderr: "
    "nvidia-container-cli: initialization error: nvml error: driver not loaded\n: unknown"
)


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        (
            DRIVER,
            Problem(
                "no GPUs",
                "docker engine",
                "nvidia-container-cli: initialization error: nvml error: driver not loaded : unknown: "
                "`nvidia-smi` shows whether the driver works; or leave out --gpus",
            ),
        ),
        (
            "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all",
            Problem(
                "no NVIDIA runtime",
                "docker engine",
                "cdi device injection failed: unresolvable cdi devices nvidia.com/gpu=all: "
                "install the NVIDIA Container Toolkit, run `sudo nvidia-ctk runtime configure --runtime=docker` "
                "and restart the engine; or leave out --gpus",
            ),
        ),
    ],
    ids=["a toolkit without a driver", "a newer engine"],
)
def test_engines_without_gpus(
    engine: docker.DockerClient, python: str, monkeypatch: pytest.MonkeyPatch, says: str, expected: Problem
) -> None:
    """Messages of engines that these tests do not have."""

    def start(*_: object) -> None:
        raise docker.errors.APIError("500 Server Error", explanation=says)

    monkeypatch.setattr(docker.APIClient, "start", start)

    assert problem_of(require_gpus, engine, python, "the-tests", "python3") == expected


def test_other_errors_are_left_to_the_tests(engine: docker.DockerClient, python: str) -> None:
    """This engine has no GPUs, and yet the missing interpreter is not what is reported."""
    assert problem_of(require_gpus, engine, python, "the-tests", "no-such-python").what == "no NVIDIA runtime"

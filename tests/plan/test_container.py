"""A pasted `docker run` or `podman run`: the image, what runs in it, and the command that is printed."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vpatch.errors import UnknownName
from vpatch.plan.commands import STOCK, image
from vpatch.plan.container import container, release
from vpatch.plan.deployment import table
from vpatch.plan.pasted import Pasted, read

from tests.needs import need
from tests.plan.examples import bare_deployment

if TYPE_CHECKING:
    from tests.conftest import Program

NAME = "Qwen3.6-35B-A3B-NVFP4"
WHOLE = f"inferRouter/{NAME}"
IMAGE = f"{STOCK}:v0.20.2"
OPTIONS = "--max-num-seqs 8 --max-model-len 64k"
PLAN = ("plan", "--gpu", "5090")


def pasted(text: str) -> Pasted:
    return read(shlex.split(text))


SERVER = "-m vllm.entrypoints.openai.api_server"


@pytest.mark.parametrize(
    ("before", "behind", "inside"),
    [
        ("docker run --gpus all --ipc=host -p 80:80", "--model a/b", ""),
        ("podman run --device nvidia.com/gpu=all --security-opt=label=disable", "a/b", ""),
        ("sudo docker container run -itd --rm", "a/b --port 80", ""),
        ("A=b /usr/bin/docker run -eA=b -v x:/y -p80:80 -u=0", "a/b", ""),
        ("docker run -itp 80:80", "a/b", ""),
        ("docker run --rm=true --frobnicate=3", "--enforce-eager a/b", ""),
        ("docker run --name vllm --env-file serve --label a/b", "a/b", ""),
        ("docker run", "vllm serve a/b", "vllm serve "),
        ("docker run", f"python3 {SERVER} --port 1 --model a/b", f"python3 {SERVER} --model "),
        ("docker run --entrypoint vllm", "serve a/b", "serve "),
        ("docker run --entrypoint=", "/opt/venv/bin/vllm serve a/b", "/opt/venv/bin/vllm serve "),
        ("docker run --entrypoint python3", f"{SERVER} --model=a/b", f"{SERVER} --model "),
    ],
)
def test_the_image_and_the_model(before: str, behind: str, inside: str) -> None:
    found = pasted(f"{before} I {behind}")
    run = found.container

    assert run is not None
    assert (run.image, found.model, found.unknown) == ("I", "a/b", ())
    assert [*run.program, *(word for one in run.options for word in one.words)] == before.split()
    assert " ".join(run.inside) == f"{inside}a/b"
    assert pasted(f"{before} -- I {behind}").container == run


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("docker run --frobnicate I a/b", "unknown option of docker: --frobnicate: plan cannot tell whether the next "),
        ("docker run --frobnicate I a/b", "; write --frobnicate=VALUE, or --frobnicate=true if it takes none"),
        ("docker run -itz I a/b", "unknown option of docker: -itz: "),
        ("docker run --gpus all", "no image: docker run --gpus all: the command names none"),
        ("docker run --gpus", "no image"),
        ("docker run I --port 80", "no model"),
        ("docker run -", "no model"),
        ("docker exec I vllm", "no vllm serve"),
        ("docker", "no vllm serve"),
        (
            "docker run --entrypoint bash I -c 'vllm serve a/b'",
            "no vllm serve: docker run --entrypoint bash I -c vllm ",
        ),
    ],
)
def test_what_cannot_be_read(typed: str, says: str) -> None:
    with pytest.raises(UnknownName, match=re.escape(says)):
        pasted(typed)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("vllm/vllm-openai:v0.20.2", ("0.20.2", "")),
        ("docker.io/vllm/vllm-openai:v0.20.2-cu129", ("0.20.2", "cu129")),
        ("vllm/vllm-openai:v0.20.2-x86_64", ("0.20.2", "")),
        ("registry.me:5000/vllm-openai:v0.20.2-cu129-vpatch", ("0.20.2", "cu129")),
        (f"vllm/vllm-openai:v0.20.2@sha256:{'0' * 64}", ("0.20.2", "")),
        ("vllm/vllm-openai", ("", "")),
        ("vllm/vllm-openai:nightly", ("", "")),
        ("vllm/vllm-openai:v0.20.2rc1", ("", "")),
        ("registry.me:5000/vllm-openai", ("", "")),
        ("nvcr.io/nvidia/vllm:25.09.1", ("", "")),
    ],
)
def test_the_release_that_an_image_names(name: str, found: tuple[str, str]) -> None:
    assert release(name) == found


LOCAL = "localhost/vllm-openai:v0.20.2-vpatch"


@pytest.mark.parametrize(
    ("named", "vllm", "base", "name"),
    [
        (IMAGE, "0.20.2", IMAGE, LOCAL),
        (IMAGE, "0.21.0", f"{STOCK}:v0.21.0", "localhost/vllm-openai:v0.21.0-vpatch"),
        (STOCK, "0.20.2", IMAGE, LOCAL),
        (f"docker.io/{STOCK}:latest", "0.20.2", f"docker.io/{IMAGE}", LOCAL),
        (f"{STOCK}:nightly", "0.20.2", f"{STOCK}:nightly", "localhost/vllm-openai:nightly-vpatch"),
        (f"{STOCK}@sha256:{'0' * 64}", "0.20.2", f"{STOCK}@sha256:{'0' * 64}", "localhost/vllm-openai:pinned-vpatch"),
        ("me/vllm:1", "0.20.2", "me/vllm:1", "localhost/vllm:1-vpatch"),
        (LOCAL, "0.20.2", IMAGE, LOCAL),
        ("ghcr.io/vpatch/vllm-openai:v0.20.2-cu129", "0.20.2", f"{IMAGE}-cu129", f"{LOCAL[:-7]}-cu129-vpatch"),
    ],
)
def test_the_image_to_build_on(named: str, vllm: str, base: str, name: str) -> None:
    with_it = image(bare_deployment(vllm), {"turboquant-hybrid"}, named)

    assert (with_it.base, with_it.name, with_it.built) == (base, name, True)
    assert image(bare_deployment(vllm), (), named).name == base


def test_a_model_that_is_mounted_is_read_here(vpatch: Program, tmp_path: Path) -> None:
    for option in (f"-v {tmp_path}:/models:ro", f"--mount type=bind,src={tmp_path},dst=/models -v cache:/models/a"):
        found = pasted(f"docker run -v /elsewhere:/ {option} {IMAGE} --model /models/qwen")
        assert found.model == str(tmp_path / "qwen")
    assert pasted(f"docker run -v volume:/models {IMAGE} /models/qwen").model == "/models/qwen"


def printed(vpatch: Program, typed: str, *options: str) -> list[str]:
    """Return the words of the `docker run` that plan prints for a pasted one, all of its lines."""
    ran = vpatch(*PLAN, *options, "--", *shlex.split(typed))
    assert ran.code == 0, ran.err
    return shlex.split(ran.out.partition("# docker\n")[2].replace("\\\n", ""))


def test_a_pasted_command_is_completed(vpatch: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    own = "--gpus all --ipc=host -it -v hub:/root/.cache --pull always -p 8000:8000"
    typed = f"docker run {own} -e HF_TOKEN=hf_secret -e A=b {IMAGE} --model {NAME} {OPTIONS} --seed 7"
    ran = vpatch(*PLAN, "--", *shlex.split(typed))
    run = shlex.split(ran.out.partition("# docker\n")[2].replace("\\\n", ""))

    assert "hf_secret" not in ran.out
    assert ran.out.startswith(f"fits: {WHOLE} (main) on RTX 5090, vLLM 0.20.2\n")
    assert f"# build\nvpatch build \\\n  --base {IMAGE} \\\n" in ran.out
    assert [line for line in ran.out.splitlines() if line.startswith("# ")] == ["# build", "# docker"]
    # What would be pulled is in no registry.
    kept = own.replace(" --pull always", "")
    assert run[: run.index("--revision")] == shlex.split(f"docker run {kept} -e HF_TOKEN -e A=b {LOCAL} {WHOLE}")
    assert run[-2:] == ["--seed", "7"]
    names = "--gpus, --ipc, --interactive, --tty, --volume, --pull, --publish, --env"
    assert f"note: options of docker, not of vLLM: {names}\n" in ran.err
    assert shlex.split(vpatch(*PLAN, "--json", "--", *run).json["commands"]["docker"].replace("\\\n", "")) == run


@pytest.mark.parametrize("key", ["VLLM_API_KEY=sk_x", "--api-key sk_x", "--api-key sk_x sk_y --hf-token hf_x"])
def test_a_secret_is_not_printed(vpatch: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str) -> None:
    """The printed command has its name, and takes it from the shell; so does the compose file."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    kept, secrets = "TOKENIZERS_PARALLELISM=false", ["HF_TOKEN=hf_x", *([key] if "=" in key else [])]
    of_docker = " ".join(f"-e {one}" for one in secrets)
    options = OPTIONS if "=" in key else f"{OPTIONS} {key}"
    docker = vpatch(*PLAN, "--", *f"docker run {of_docker} -e {kept} {IMAGE} --model {NAME} {options}".split())
    made = vpatch(*PLAN, "-v", "--compose", tmp_path / "x", f"{' '.join(secrets)} {kept} vllm serve {NAME} {options}")
    written = (tmp_path / "x").read_text()

    run = shlex.split(docker.out.partition("# docker\n")[2])
    assert {"HF_TOKEN", "VLLM_API_KEY", kept} <= {run[at + 1] for at, word in enumerate(run) if word == "-e"}
    assert f"env {kept} vllm serve" in made.out
    for text in (docker.out, made.out, written):
        assert not {"hf_x", "sk_x", "sk_y"} & {*re.split(r"\W", text)}
        assert kept in text
    assert written.count("HF_TOKEN") == 3, "made by, a note, and the variable"
    for ran in (docker, made):
        note = "variables whose values are not printed: export HF_TOKEN and VLLM_API_KEY in the shell that runs it"
        assert f"note: {note}\n" in ran.err


@pytest.mark.parametrize(
    ("typed", "starts"),
    [
        (f"podman run {IMAGE} {NAME} {OPTIONS}", f"podman run {LOCAL} {WHOLE} "),
        (f"docker run {IMAGE} vllm serve {NAME} {OPTIONS}", f"docker run {LOCAL} vllm serve {WHOLE} "),
        (
            f"docker run --entrypoint python3 {IMAGE} -m vllm.entrypoints.openai.api_server {OPTIONS} --model={NAME}",
            f"docker run --entrypoint python3 {LOCAL} -m vllm.entrypoints.openai.api_server --model {WHOLE} ",
        ),
    ],
)
def test_it_keeps_its_own_entry_point(vpatch: Program, typed: str, starts: str) -> None:
    assert " ".join(printed(vpatch, typed)).startswith(starts)


def test_an_image_without_a_release_is_planned_for_the_given_one(vpatch: Program) -> None:
    typed = f"docker run me/vllm:1 {NAME} {OPTIONS}"
    note = "note: me/vllm:1 names no release of vLLM: "
    note += "the plan, and the image that it builds, are for 0.33.0, unless you give --vllm"

    assert note in vpatch(*PLAN, "--", *shlex.split(typed)).err.splitlines()
    assert "names no release" not in vpatch(*PLAN, "--vllm", "0.33.0", "--", *shlex.split(typed)).err
    assert (
        f"{STOCK}:v0.24.0" in vpatch(*PLAN, "--vllm", "0.24", "--", "docker", "run", IMAGE, NAME, *OPTIONS.split()).out
    )


def test_no_compose_file_has_options_that_were_docker_s(vpatch: Program, tmp_path: Path) -> None:
    ran = vpatch(*PLAN, "--compose", tmp_path / "c.yaml", "--", "docker", "run", IMAGE, NAME)

    assert (ran.code, [*tmp_path.iterdir()]) == (2, [])
    assert "--compose has no room for docker's options" in ran.err


def test_the_options_are_those_of_docker() -> None:
    """The table says of each option that this client has whether a value follows."""
    need("docker")
    text = subprocess.run(["docker", "run", "--help"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^ {2}(?:-(\w), | {4})--([\w-]+)( [a-z]\S*)? {2,}", text, re.MULTILINE)
    ours = table("docker.toml")

    assert len(found) > 80
    assert {name for _, name, value in found if value} <= {*ours["values"]}
    assert {name for _, name, value in found if not value} <= {*ours["flags"]}
    assert {letter: name for letter, name, _ in found if letter} == ours["short"]
    assert not {*ours["values"]} & {*ours["flags"]}


def test_the_docker_client_understands_it(vpatch: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    need("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")  # it parses first
    run = printed(vpatch, f"docker run -di --gpus all -eA=b -v=x:/y -p8000:8000 {IMAGE} {NAME} {OPTIONS}")
    says = subprocess.run(run, capture_output=True, text=True, check=False).stderr

    assert "Cannot connect to the Docker daemon" in says


def test_no_word_is_read_twice() -> None:
    assert container(["vllm", "serve", "docker"]) is None
    assert container(["docker", "run", "I"]) is not None

"""Orders: image definitions, the options of a build, and the overlays that both select."""

from __future__ import annotations

from pathlib import Path

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.errors import Failure
from vpatch.image.order import definition_files, read_definitions

from tests.conftest import Program
from tests.hybrid import TILES
from tests.image.standin import ONE
from tests.paths import ROOT

GOOD = 'base = "docker.io/vllm/vllm-openai:v0.20.2"\ntags = ["ghcr.io/a/b:c"]\n'
DIGEST = f"sha256:{'0a' * 32}"


def written(folder: Path, text: str, name: str = "one") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def test_published_definitions_are_valid() -> None:
    found = read_definitions(definition_files(ROOT))

    bases = {one.base.rpartition(":")[2] for one in found}
    assert bases >= {"v0.20.2", "v0.20.2-cu129", "v0.20.2-ubuntu2404", "v0.24.0", "v0.33.0"}
    for one in found:
        assert one.selection.among(discover())
        assert "sm_120" in one.architectures
    assert any(one.also == (TILES,) and "v0.20.2" in one.base for one in found)


def test_a_definition_and_its_defaults(tmp_path: Path) -> None:
    one, two = read_definitions([
        written(tmp_path, f'{GOOD}digest = "{DIGEST}"\n'),
        written(tmp_path, f'{GOOD.replace(":c", ":d")}with = ["{TILES}"]\n', "two"),
    ])  # fmt: skip

    assert (one.name, one.platform, one.overlays) == ("one", "linux/amd64", ())
    assert one.tests == {"files", "containers"}
    assert one.base == f"docker.io/vllm/vllm-openai:v0.20.2@{DIGEST}"
    assert {item.id for item in two.selection.among(discover())} == {*(item.id for item in select(discover())), TILES}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('tags = ["ghcr.io/a/b:c"]\n', "'base' is a required property"),
        (f'{GOOD}tag = "x"\n', "Additional properties are not allowed ('tag' was unexpected)"),
        (f'{GOOD}digest = "sha256:12"\n', "digest: 'sha256:12' is not sha256: and 64 hexadecimal digits"),
        (f'{GOOD}platform = "windows/amd64"\n', "platform: 'windows/amd64' is not one of"),
        (f'{GOOD}architectures = ["5090"]\n', "architectures[0]: '5090' is not sm_120, say"),
        (f"{GOOD}tests = []\n", "tests: [] should be non-empty"),
        ('base = "vllm"\ntags = ["ghcr.io/a/b:c"]\n', "base: 'vllm' is not registry/repository:tag in full"),
        ('base = "a/b:c"\ntags = ["b"]\n', "tags[0]: 'b' is not registry/repository:tag in full"),
        (f'{GOOD}with = ["{TILES}"]\noverlays = ["{TILES}"]\n', "`overlays` selects exactly these: leave out `with`"),
        ("base = ", "not TOML: "),
        ("\N{NULL}", "not TOML: "),
    ],
)
def test_bad_definitions(vpatch: Program, tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    ran = vpatch("build", path)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"bad image definition: {path}: ")
    assert says in ran.err


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    first, second = written(tmp_path, "a = 1\n", "first"), written(tmp_path, f"{GOOD}b = 1\n", "second")
    third = tmp_path / "third.toml"
    with pytest.raises(Failure) as caught:
        read_definitions([first, second, third])
    assert [problem.where for problem in caught.value.problems] == [*[str(first)] * 3, str(second), str(third)]

    with pytest.raises(Failure, match=r"tag taken: two: ghcr\.io/a/b:c is a tag of one too"):
        read_definitions([written(tmp_path, GOOD, "one"), written(tmp_path, GOOD, "two")])


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("one.toml",), 2, "no such file: one.toml: no *.toml is there"),
        (("--all",), 1, "no image definitions: images: there is no *.toml in it\n"),
        ((), 2, "name one: --base IMAGE, FILE.toml, or --all"),
        (("--base", "x", "one.toml"), 2, "name one: --base IMAGE, FILE.toml, or --all"),
        (("one.toml", "--tag", "x"), 2, "FILE.toml has the overlays, tags, platform and architectures"),
        (("--base", "x", "--push"), 2, "--push needs a --tag"),
        (("--base", "x", "--registry"), 2, "--registry needs a --tag"),
        (("--base", "x", "--registry", "--tag", "y", "--gpus"), 2, "--registry builds without an engine"),
        (("--base", "x", "--untagged"), 2, "--untagged is for --registry"),
        (("--base", "x:y", "--tag", "x:y"), 2, "x:y is the base's own name: it stays with the base"),
        (("--base", "x", *ONE, "--with", TILES), 2, "--overlay selects exactly these overlays: leave out --with"),
        (("--base", "x", "--require-arch", "5090"), 2, "not a GPU architecture: 5090: it reads like sm_120 or 12.0"),
    ],
)
def test_usage(
    vpatch: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = vpatch("build", *arguments)

    assert ran.code == code
    assert says in ran.err


@pytest.mark.parametrize("option", ["--overlay", "--with"])
def test_unknown_names_are_told_at_once(vpatch: Program, tmp_path: Path, option: str) -> None:
    ran = vpatch("build", "--base", "x", option, "turboquant-tile", option, ONE[1], "--require-arch", "5090")
    gpu = "not a GPU architecture: 5090: it reads like sm_120 or 12.0, which is an RTX 5090"
    assert (ran.code, ran.err.splitlines()) == (2, [f"no such overlay: turboquant-tile: did you mean {TILES}?", gpu])

    files = [
        written(tmp_path, f'base = "a.io/a/b:c"\ntags = ["a.io/b:{name}"]\noverlays = ["turboquant-tile"]\n', name)
        for name in ("one", "two")
    ]
    ran = vpatch("build", *files)
    told = [f"no such overlay: turboquant-tile ({file}): did you mean {TILES}?" for file in files]
    assert (ran.code, ran.err.splitlines()) == (2, told)

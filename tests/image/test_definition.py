"""Image definitions: the published ones are valid, and bad ones are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from vpatch.core.catalogue import discover
from vpatch.errors import Failure
from vpatch.image.order import definition_files, read_definitions

from tests.conftest import Program
from tests.paths import ROOT

GOOD = 'base = "docker.io/vllm/vllm-openai:v0.20.2"\ntags = ["ghcr.io/a/b:c"]\n'


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
    assert any(one.also == ("turboquant-tiles",) and "v0.20.2" in one.base for one in found)


def test_defaults_of_a_definition(tmp_path: Path) -> None:
    (one,) = read_definitions([written(tmp_path, GOOD)])

    assert (one.name, one.platform, one.overlays) == ("one", "linux/amd64", ())
    assert one.tests == {"files", "containers"}


def test_a_digest_goes_with_the_base(tmp_path: Path) -> None:
    digest = f"sha256:{'0a' * 32}"
    (one,) = read_definitions([written(tmp_path, f'{GOOD}digest = "{digest}"\n')])

    assert one.base == f"docker.io/vllm/vllm-openai:v0.20.2@{digest}"


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

    with pytest.raises(Failure) as caught:
        read_definitions([first, second, tmp_path / "third.toml"])
    assert [problem.where for problem in caught.value.problems] == [str(first)] * 3 + [
        str(second),
        f"{tmp_path}/third.toml",
    ]


def test_two_definitions_with_one_tag(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"tag taken: two: ghcr\.io/a/b:c is a tag of one too"):
        read_definitions([written(tmp_path, GOOD, "one"), written(tmp_path, GOOD, "two")])


def test_all_without_definitions(vpatch: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = vpatch("build", "--all")

    assert ran.code == 1
    assert ran.err == "no image definitions: images: there is no *.toml in it\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "name one: --base IMAGE, FILE.toml, or --all"),
        (("--base", "x", "one.toml"), "name one: --base IMAGE, FILE.toml, or --all"),
        (("one.toml", "--tag", "x"), "FILE.toml has the overlays, tags, platform and architectures"),
        (("--base", "x", "--push"), "--push needs a --tag"),
        (("--base", "x", "--registry"), "--registry needs a --tag"),
        (("--base", "x", "--registry", "--tag", "y", "--gpus"), "--registry builds without an engine"),
        (("--base", "x", "--untagged"), "--untagged is for --registry"),
        (("--base", "x:y", "--tag", "x:y"), "x:y is the base's own name: it stays with the base"),
    ],
)
def test_usage(vpatch: Program, arguments: tuple[str, ...], says: str) -> None:
    ran = vpatch("build", *arguments)

    assert ran.code == 2
    assert says in ran.err

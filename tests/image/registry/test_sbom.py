"""`vpatch inspect --sbom`: a valid CycloneDX document that agrees with the image, and is the same each time."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from importlib.metadata import version
from typing import Any

import docker
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from vpatch.installation import how_to_add
from vpatch.manifest import sha256

from tests.conftest import Process, Program
from tests.image.registry.images import Base, last_files, put_base, put_image, tar
from tests.image.standin import ONE, SITE

Document = dict[str, Any]
TAGS = ("one", "two")
HASH = sha256(b"a")
LABELS = {
    "org.opencontainers.image.base.name": "docker.io/vllm/vllm-openai:v0.20.2",
    "org.opencontainers.image.created": "2026-05-09T10:00:00Z",
}


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nothing")


@pytest.fixture(scope="module")
def base(registry: str, layers: list[bytes]) -> Base:
    return put_base(registry, layers, "sbom/base:x")


@pytest.fixture(scope="module")
def image(child: Process, registry: str, base: Base) -> str:
    """A patched image in a registry, without an engine: its name with its digest."""
    tags = [word for tag in TAGS for word in ("--tag", f"{registry}/sbom/patched:{tag}")]
    ran = child("build", "--registry", "--base", base.name, *ONE, *tags, "--no-test", "--json")
    assert ran.code == 0, ran.err
    return str(ran.json["image"]["ref"])


def document(vpatch: Program, image: str) -> str:
    ran = vpatch("inspect", image, "--sbom")
    assert (ran.code, ran.err) == (0, "")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(ran.out) is None
    return ran.out


def components(found: Document, kind: str) -> dict[str, Document]:
    return {one["name"]: one for one in found["components"] if one["type"] == kind}


def properties(component: Document) -> dict[str, str]:
    return {one["name"]: one["value"] for one in component["properties"]}


def test_it_has_what_was_added_and_to_what(vpatch: Program, image: str, base: Base, registry: str) -> None:
    """One image has one document, by whatever name it is asked for; each file has the hash that the image has."""
    (text,) = {document(vpatch, name) for name in (image, *(f"{registry}/sbom/patched:{tag}" for tag in TAGS))}
    found, (name, _, digest) = json.loads(text), image.partition("@")
    whole, libraries = found["metadata"]["component"], components(found, "library")
    (below,) = components(found, "container").values()
    patcher = components(found, "application")["vpatch"]

    assert (whole["name"], whole["version"]) == (name, digest)
    assert whole["purl"] == f"pkg:oci/patched@{digest}?repository_url={name}"
    assert (below["name"], below["version"]) == (f"{registry}/sbom/base", base.built.digest)
    assert properties(below) == {"vpatch:tag": "x"}
    assert libraries["vllm"]["purl"] == "pkg:pypi/vllm@0.20.2"
    assert (patcher["version"], patcher["scope"]) == (version("vpatch"), "excluded")
    assert properties(libraries[ONE[1]])["vpatch:state"] == "applied"

    files = {name: [one["content"] for one in file["hashes"]] for name, file in components(found, "file").items()}
    there = last_files(image)
    assert there.pop("vllm-0.20.2.dist-info/RECORD")
    assert files == {f"/{SITE}/{path}": [sha256(data)] for path, data in there.items()}
    edges = {one["ref"]: one.get("dependsOn", []) for one in found["dependencies"]}
    changed = {f"file:{name}" for name in files if not name.endswith("/vpatch-image.json")}
    assert edges["vllm"] == [f"overlay:{ONE[1]}"]
    assert set(edges[f"overlay:{ONE[1]}"]) == changed
    assert set(edges["image"]) == {"base", "vllm", *(f"file:{name}" for name in files)}

    about = vpatch("inspect", image, "--sbom", "--json").json
    created = about["labels"]["org.opencontainers.image.created"]
    assert datetime.fromisoformat(found["metadata"]["timestamp"]) == datetime.fromisoformat(created)
    assert about["sbom"] == found


@pytest.mark.deep
def test_an_engine_has_the_same_document(
    vpatch: Program, image: str, client: docker.DockerClient, engine_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = document(vpatch, image)
    monkeypatch.setenv("DOCKER_HOST", engine_address)
    pulled = client.images.pull(image)
    assert vpatch("inspect", image, "--json").json["image"]["from"] == "engine"
    assert document(vpatch, image) == without

    named = json.loads(document(vpatch, str(pulled.id)))["metadata"]["component"]
    assert (named["name"], "purl" in named) == (pulled.id, False)
    client.api.remove_image(image)


def labeled(registry: str, labels: dict[str, str], **changes: Any) -> str:
    """Push an image whose labels are not of vpatch; return its name."""
    said = {"vpatch": "1", "vllm": "2", "root": "/x", "python": None, "overlays": [], "files": {}, **changes}
    text = re.sub(r'"deep (\w+)"', lambda found: NESTED[found[1]], json.dumps(said))
    settings = {"config": {"Labels": {"io.vpatch.overlays": text, **labels}}}
    own = ("x/vllm-2.dist-info/vpatch-image.json", json.dumps(said).encode())
    put_image(
        registry, "sbom/foreign", "x", [tar(own, *((f"x/{path}", b"a") for path in said["files"]))], settings=settings
    )
    return f"{registry}/sbom/foreign:x"


@pytest.mark.parametrize(
    ("labels", "files", "says"),
    [
        ({}, {"a": {"before": None, "after": []}}, "files.a.after is no SHA-256"),
        ({}, {"a": {"before": None, "after": [HASH, "b"]}}, "files.a.after is no SHA-256"),
        ({"org.opencontainers.image.created": "today"}, {}, "org.opencontainers.image.created is no time: today"),
        ({"org.opencontainers.image.base.name": "A B"}, {}, "is no repository"),
        *(({label: None}, {}, f"cannot read label: NAME: it has no {label}\n") for label in LABELS),
    ],
)
def test_labels_that_vpatch_did_not_write(
    vpatch: Program, registry: str, labels: dict[str, str | None], files: dict[str, Any], says: str
) -> None:
    given = {key: value for key, value in {**LABELS, **labels}.items() if value is not None}
    ran = vpatch("inspect", name := labeled(registry, given, files=files), "--sbom")

    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert says.replace("NAME", name) in ran.err


OVERLAY = {"id": "a", "state": "applied", "because": "", "files": []}
FILE = {"before": None, "after": [HASH]}


NESTED = {"array": "[" * 100_000, "closed": "[" * 900 + "]" * 900, "object": '{"a":' * 400 + "1" + "}" * 400}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"overlays": [OVERLAY] * 301}, "301 overlays, and may have 300"),
        ({"files": {f"f{number}": FILE for number in range(301)}}, "301 files, and may have 300"),
        ({"overlays": [{**OVERLAY, "files": ["a"] * 3_001}]}, "3,001 files of overlays, and may have 3,000"),
        ({"more": "a" * (1 << 20)}, "no JSON"),
        *(({"more": f"deep {kind}"}, "no JSON") for kind in NESTED),
    ],
    ids=["overlays", "files", "edges", "bytes", *NESTED],
)
def test_a_label_of_more_than_vpatch_writes(vpatch: Program, registry: str, changes: dict[str, Any], says: str) -> None:
    """The document of 40,000 overlays took minutes; one that nests ended the program."""
    name = labeled(registry, LABELS, **changes)
    for way in ((), ("--sbom",), ("--json",)):
        ran = vpatch("inspect", "--quiet", name, *way)
        assert (ran.code, ran.err.count("\n")) == (1, 1)
        assert "cannot read provenance: " in ran.err
        assert says in ran.err


def test_hostile_text_stays_text(vpatch: Program, registry: str) -> None:
    """A terminal would obey it, and one overlay that is listed twice would be two components with one reference."""
    overlay: dict[str, Any] = {
        "id": 'x"\x1b[2J\n',
        "state": "applied",
        "because": "\u202e\U0001f600",
        "files": ["a\n", "none"],
    }
    files = {"a\n": {"before": None, "after": [HASH]}}
    name = labeled(registry, LABELS, overlays=[overlay, overlay], files=files)
    text = document(vpatch, name)
    found = json.loads(text)

    assert text.isascii()
    assert set(text) - {"\n"} == {one for one in text if one.isprintable()}
    assert properties(components(found, "library")[overlay["id"]])["vpatch:because"] == overlay["because"]
    assert document(vpatch, name) == text


def test_without_the_library_the_extra_is_named(
    vpatch: Program, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "vpatch.image.sbom", raising=False)
    monkeypatch.setitem(sys.modules, "cyclonedx.model", None)
    ran = vpatch("inspect", labeled(registry, LABELS), "--sbom")

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.endswith(f": cyclonedx.model: not installed: {how_to_add('image')}\n")

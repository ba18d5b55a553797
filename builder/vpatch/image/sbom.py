"""The CycloneDX bill of materials of a patched image: what vpatch added, and to which base.

It depends on the image alone, so one image has one document, whenever and wherever it is written. The base is one
component; its content belongs in a bill of materials of its own. An image that a Dockerfile patched does not name it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from datetime import datetime

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from vpatch.errors import Failure, Problem
from vpatch.image.config import OCI, Base
from vpatch.image.patch import Label
from vpatch.image.registry.reference import Reference, parse
from vpatch.image.standing import Standing

_SHA256 = re.compile(r"[0-9a-f]{64}")


def sbom_of(image: Base, label: Label, now: Standing) -> str:
    """Return the document as JSON, for an image of which nothing is lost; it does not list the content of later layers.

    Raises:
        Failure: a label that the document needs is missing or malformed.
    """
    # An ID is not a name: only the engine that has the image knows it.
    name = image.ref if image.ref.startswith("sha256:") else _name(parse(image.ref))
    whole = _container("image", name, image.digest or image.id, published=bool(image.digest))
    if now.later:
        whole.properties.add(Property(name="vpatch:later-layers", value=str(now.later)))
    created = _created(image, label)
    below = [_base(image)] if label.built else []
    vllm = Component(name="vllm", version=label.vllm, bom_ref="vllm", purl=PackageURL("pypi", None, "vllm", label.vllm))
    patcher = _vpatch(label, "vpatch")
    files = {
        path: Component(
            type=ComponentType.FILE,
            name=f"{label.root}/{path}",
            bom_ref=f"file:{label.root}/{path}",
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=known)],
        )
        for path, known in _sums(image, label, now).items()
    }
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{whole.name}@{whole.version}"),
        metadata=BomMetaData(
            component=whole,
            timestamp=created,
            tools=ToolRepository(components=[_vpatch(label, "tool")]),
        ),
        components=[*below, vllm, patcher, *files.values()],
    )
    overlays = {
        one["id"]: (
            one,
            Component(
                name=one["id"],
                bom_ref=f"overlay:{one['id']}",
                scope=ComponentScope.REQUIRED if one["state"] == "applied" else ComponentScope.EXCLUDED,
                properties=[Property(name=f"vpatch:{key}", value=one[key]) for key in ("state", "because")],
            ),
        )
        for one in label.overlays
    }
    applied = [(one, overlay) for one, overlay in overlays.values() if one["state"] == "applied"]
    edges = [_edges(whole, [*below, vllm, *files.values()]), _edges(vllm, [overlay for _, overlay in applied])]
    for one, overlay in applied:
        edges.append(_edges(overlay, [files[path] for path in dict.fromkeys(one["files"]) if path in files]))
    bom.components.update(overlay for _, overlay in overlays.values())
    bom.dependencies = edges  # `register_dependency` would look through all of them for each edge
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _created(image: Base, label: Label) -> datetime:
    """Return the time that `vpatch build` noted in a label; of an image of a Dockerfile, that of the image."""
    text = _label(image, "created") if label.built else str(image.config.get("created"))
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        name = f"{OCI}.created" if label.built else "its configuration's created"
        raise Failure(Problem("cannot read label", image.ref, f"{name} is no time: {text}")) from error


def _base(image: Base) -> Component:
    named, digest = parse(_label(image, "base.name")), image.labels.get(f"{OCI}.base.digest")
    below = _container("base", _name(named), digest, published=bool(digest))
    if named.tag:
        below.properties.add(Property(name="vpatch:tag", value=named.tag))
    return below


def _edges(component: Component, on: Iterable[Component]) -> Dependency:
    return Dependency(component.bom_ref, [Dependency(one.bom_ref) for one in on])


def _name(ref: Reference) -> str:
    return f"{ref.host}/{ref.repository}"


def _container(ref: str, name: str, version: str | None, *, published: bool) -> Component:
    """Return an image; only one that a registry has gets a package URL."""
    where = {"repository_url": name}
    purl = PackageURL("oci", None, name.rpartition("/")[2], version, where) if published else None
    return Component(type=ComponentType.CONTAINER, name=name, version=version, bom_ref=ref, purl=purl)


def _vpatch(label: Label, ref: str) -> Component:
    """Return vpatch, which made the image and is not in it."""
    return Component(
        type=ComponentType.APPLICATION,
        name="vpatch",
        version=label.vpatch,
        bom_ref=ref,
        purl=PackageURL("pypi", None, "vpatch", label.vpatch),
        scope=ComponentScope.EXCLUDED,
    )


def _sums(image: Base, label: Label, now: Standing) -> dict[str, str]:
    """Map each changed or added file to its SHA-256. RECORD is left out: no label has its hash."""
    for path, about in label.files.items():
        if not about.after or not all(map(_SHA256.fullmatch, about.after)):
            raise Failure(Problem("cannot read provenance", image.ref, f"files.{path}.after is no SHA-256"))
    return dict(now.hashes)


def _label(image: Base, name: str) -> str:
    try:
        return image.labels[f"{OCI}.{name}"]
    except KeyError:
        raise Failure(Problem("cannot read label", image.ref, f"it has no {OCI}.{name}")) from None

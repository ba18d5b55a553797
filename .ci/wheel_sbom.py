"""`python .ci/wheel_sbom.py WHEEL`: print a wheel's CycloneDX bill of materials: itself and its declared dependencies.

A dependency has a range and no version: which version is installed is decided where the wheel is installed.
"""

from __future__ import annotations

import hashlib
import sys
import uuid
import zipfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def sbom_of(wheel: Path) -> str:
    """Return the document as JSON. It depends on the wheel alone."""
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = (one for one in archive.infolist() if one.filename.endswith(".dist-info/METADATA"))
        about, _ = parse_email(archive.read(entry))
    name, version = canonicalize_name(about["name"]), about["version"]
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    whole = Component(
        name=name,
        version=version,
        bom_ref="wheel",
        purl=PackageURL("pypi", None, name, version, {"file_name": wheel.name}),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)],
        licenses=[LicenseExpression(about["license_expression"])],
    )
    needed = [_component(one, lines) for one, lines in _requirements(about.get("requires_dist", [])).items()]
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{wheel.name}#{sha256}"),
        metadata=BomMetaData(component=whole, timestamp=datetime(*entry.date_time, tzinfo=UTC)),
        components=needed,
    )
    bom.register_dependency(whole, needed)
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _requirements(lines: list[str]) -> dict[str, list[Requirement]]:
    """Return the requirements by name, without those of the tests."""
    found: dict[str, list[Requirement]] = defaultdict(list)
    for one in map(Requirement, lines):
        if one.marker is None or "extra" not in str(one.marker) or not one.marker.evaluate({"extra": "test"}):
            found[canonicalize_name(one.name)].append(one)
    return dict(found)


def _component(name: str, lines: list[Requirement]) -> Component:
    always = any(one.marker is None or "extra" not in str(one.marker) for one in lines)
    return Component(
        name=name,
        bom_ref=name,
        purl=PackageURL("pypi", None, name),
        scope=ComponentScope.REQUIRED if always else ComponentScope.OPTIONAL,
        properties=[Property(name="vpatch:requirement", value=str(one)) for one in lines],
    )


if __name__ == "__main__":
    sys.stdout.write(sbom_of(Path(sys.argv[1])) + "\n")

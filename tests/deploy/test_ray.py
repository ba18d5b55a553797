"""The resources for KubeRay: valid pods, each with an init container that exports the farm that its nodes run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from tests.paths import ROOT

FILES = ("raycluster.yaml", "rayservice.yaml")
KUBERNETES = ("1.34.0", "1.37.0")


def resource(name: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load((ROOT / "deploy/ray" / name).read_text())
    return found


def cluster_of(found: Mapping[str, Any]) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = found["spec"]
    return spec if found["kind"] == "RayCluster" else spec["rayClusterConfig"]


def pods(name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the pod template of each group of nodes."""
    cluster = cluster_of(resource(name))
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert isinstance(group["rayStartParams"], dict)  # KubeRay wants it, also empty
        yield group["template"]


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", FILES)
def test_the_pods_are_valid(name: str, version: str) -> None:
    found = list(pods(name))
    for template in found:
        whole = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "node"}, "template": template}
        assert kubernetes_validate.validate(whole, version, strict=True) == version.rpartition(".")[0]

    assert len(found) == 2


@pytest.mark.parametrize("name", FILES)
def test_each_pod_exports_the_farm_that_it_runs(name: str) -> None:
    """Of the same image, to the folder that comes first on PYTHONPATH, which Ray's container cannot write to."""
    for template in pods(name):
        (ray,), (tool, overlays) = template["spec"]["containers"], template["spec"]["initContainers"]
        variables = {item["name"]: item["value"] for item in ray["env"]}
        *vpatch, folder = overlays["command"]

        assert vpatch == ["python3", "-P", "-m", "vpatch", "run", "--export"]
        assert (overlays["image"], variables["PYTHONPATH"]) == (ray["image"], folder)
        assert {"name": "PYTHONPATH", "value": tool["command"][-1]} in overlays["env"]
        assert variables["VPATCH_RUN"] == "0000"  # to be replaced: nothing starts before
        read = next(mount for mount in ray["volumeMounts"] if mount["name"] == "farm")
        assert {**read, "readOnly": True} == read
        assert {key: read[key] for key in ("name", "mountPath")} in overlays["volumeMounts"]
        mounted = {mount["name"] for each in (ray, tool, overlays) for mount in each["volumeMounts"]}
        assert mounted == {volume["name"] for volume in template["spec"]["volumes"]}


def test_the_service_asks_each_worker_for_its_proof() -> None:
    (app,) = YAML(typ="safe").load(resource("rayservice.yaml")["spec"]["serveConfigV2"])["applications"]

    assert app["args"]["llm_configs"][0]["engine_kwargs"]["worker_extension_cls"] == "vpatch_receipt.Proof"

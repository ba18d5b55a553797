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
    """The custom resource; before it stands the ConfigMap."""
    settings, found = YAML(typ="safe").load_all((ROOT / "deploy/ray" / name).read_text())
    assert settings == deployment_settings()
    whole: dict[str, Any] = found
    return whole


def deployment_settings() -> Any:
    """The ConfigMap of the Deployment, whose init container is the same."""
    return next(iter(YAML(typ="safe").load_all((ROOT / "deploy/kubernetes/deployment.yaml").read_text())))


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
    """By the command that the steps of the Deployment run for real; Ray's container cannot write to the folder."""
    _, deployment = YAML(typ="safe").load_all((ROOT / "deploy/kubernetes/deployment.yaml").read_text())
    (usual,) = deployment["spec"]["template"]["spec"]["initContainers"]
    for template in pods(name):
        (ray,), (vpatch,) = template["spec"]["containers"], template["spec"]["initContainers"]
        path, digest = ray["env"]

        assert (vpatch["image"], vpatch["command"], vpatch["env"]) == (ray["image"], usual["command"], usual["env"])
        assert path == {"name": "PYTHONPATH", "value": vpatch["volumeMounts"][0]["mountPath"]}
        assert digest in vpatch["env"]
        assert {**vpatch["volumeMounts"][0], "readOnly": True} in ray["volumeMounts"]
        mounted = {mount["name"] for each in (ray, vpatch) for mount in each["volumeMounts"]}
        assert mounted == {volume["name"] for volume in template["spec"]["volumes"]}


def test_the_service_asks_each_worker_for_its_proof() -> None:
    (app,) = YAML(typ="safe").load(resource("rayservice.yaml")["spec"]["serveConfigV2"])["applications"]

    assert app["args"]["llm_configs"][0]["engine_kwargs"]["worker_extension_cls"] == "vpatch_receipt.Proof"

"""deploy/: valid by the schemas, one init container everywhere, and a component that patches what exists."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from tests.loopback import listening
from tests.paths import ROOT
from tests.tiers import deep

TOP = ROOT / "deploy/kubernetes"
VERSIONS = ("1.32", "1.37")
SERVERS = ("kubernetes/deployment.yaml", "kubernetes/leaderworkerset.yaml")
RAY = ("ray/raycluster.yaml", "ray/rayservice.yaml")
SAMPLE = """apiVersion: apps/v1
kind: Deployment
metadata:
  name: mine
  labels: {vpatch: "true"}
spec:
  selector: {matchLabels: {app: mine}}
  template:
    metadata: {labels: {app: mine}}
    spec:
      initContainers:
        - {name: weights, image: weights:1}
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.20.2
          args: [MODEL]
          env: [{name: HF_HOME, value: /models}]
          readinessProbe: {httpGet: {path: /health, port: 8000}}
          volumeMounts: [{name: models, mountPath: /models}]
        - {name: sidecar, image: sidecar:1}
      volumes: [{name: models, emptyDir: {}}]
"""
KUSTOMIZATION = """resources: [mine.yaml]
components: [component]
images: [{name: vllm/vllm-openai, newTag: v0.21.0}]
configMapGenerator:
  - name: vpatch
    literals: [digest=0123456789ab]
"""


def documents(name: str) -> dict[str, Any]:
    """Return the objects of a manifest by kind."""
    return {found["kind"]: found for found in YAML(typ="safe").load_all((ROOT / "deploy" / name).read_text())}


def pods(name: str) -> list[dict[str, Any]]:
    """Return the specifications of pods in a manifest."""
    found = documents(name)
    if "Deployment" in found:
        return [found["Deployment"]["spec"]["template"]["spec"]]
    if "LeaderWorkerSet" in found:
        template = found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
        return [template[key]["spec"] for key in ("leaderTemplate", "workerTemplate")]
    cluster = found["RayCluster"]["spec"] if "RayCluster" in found else found["RayService"]["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert all(isinstance(group["rayStartParams"], dict) for group in groups), "KubeRay wants it, also empty"
    return [group["template"]["spec"] for group in groups]


@pytest.mark.parametrize("version", [VERSIONS[-1], deep(VERSIONS[0])])
@pytest.mark.parametrize("name", [*SERVERS, *RAY])
def test_the_objects_are_valid(name: str, version: str) -> None:
    found = documents(name)
    own = [found[kind] for kind in found if kind not in ("LeaderWorkerSet", "RayCluster", "RayService")]
    bare = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}}
    for one in (*own, *({**bare, "spec": spec} for spec in pods(name))):
        assert kubernetes_validate.validate(one, version, strict=True) == version
    assert name not in RAY or found["ConfigMap"] == documents(SERVERS[0])["ConfigMap"]


@pytest.mark.parametrize("name", SERVERS)
def test_the_pods_are_locked(name: str) -> None:
    for spec in pods(name):
        of = spec["securityContext"]
        assert (of["runAsNonRoot"], of["seccompProfile"]["type"]) == (True, "RuntimeDefault")
        for one in (*spec["initContainers"], *spec["containers"]):
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("name", [*SERVERS, "kubernetes/component/patch.yaml", *RAY])
def test_the_farm_is_the_same_everywhere(name: str) -> None:
    """One init container, of the server's image; the server mounts the farm read-only, and finds it first."""
    expected = pods(SERVERS[0])[0]["initContainers"][0]
    for spec in pods(name):
        (init,), (server,) = spec["initContainers"], spec["containers"]
        if name in RAY:
            assert (init["image"], init["command"], init["env"]) == (
                server["image"],
                expected["command"],
                expected["env"],
            )
        else:
            assert init == expected
        assert server.get("image", init["image"]) == init["image"]
        folder = init["volumeMounts"][0]
        assert {**folder, "readOnly": True} in server["volumeMounts"]
        assert {"name": "PYTHONPATH", "value": folder["mountPath"]} in server["env"]
        assert next(one for one in server["env"] if one["name"] == "VPATCH_RUN") == init["env"][0]
        volumes = {volume["name"] for volume in spec["volumes"]}
        assert {mount["name"] for one in (init, server) for mount in one["volumeMounts"]} <= volumes


def test_each_worker_of_a_group_proves_what_it_runs() -> None:
    for spec in pods(SERVERS[1]):
        assert "--worker-extension-cls vpatch_receipt.Proof" in spec["containers"][0]["command"][-1]
    (app,) = YAML(typ="safe").load(documents(RAY[1])["RayService"]["spec"]["serveConfigV2"])["applications"]
    assert app["args"]["llm_configs"][0]["engine_kwargs"]["worker_extension_cls"] == "vpatch_receipt.Proof"
    component = YAML(typ="safe").load((TOP / "component/kustomization.yaml").read_text())
    assert (component["kind"], [patch["path"] for patch in component["patches"]]) == ("Component", ["patch.yaml"])


@pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl, for its kustomize")
def test_the_component_adds_to_a_deployment(tmp_path: Path) -> None:
    shutil.copytree(TOP / "component", tmp_path / "component")
    (tmp_path / "mine.yaml").write_text(SAMPLE)
    (tmp_path / "kustomization.yaml").write_text(KUSTOMIZATION)
    ran = subprocess.run(["kubectl", "kustomize", tmp_path], capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")
    found = {one["kind"]: one for one in YAML(typ="safe").load_all(ran.stdout)}
    for one in found.values():
        kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert {one["name"] for one in spec["initContainers"]} == {"vpatch", "weights"}
    assert [one["name"] for one in spec["containers"]] == ["vllm", "sidecar"]
    server = spec["containers"][0]
    init = next(one for one in spec["initContainers"] if one["name"] == "vpatch")
    assert server["image"] == init["image"] == "vllm/vllm-openai:v0.21.0"
    assert server["args"] == ["MODEL"]
    assert {one["name"] for one in server["env"]} == {"HF_HOME", "PYTHONPATH", "VPATCH_RUN"}
    assert {one["mountPath"] for one in server["volumeMounts"]} == {"/models", "/run/vpatch"}
    assert {one["name"] for one in spec["volumes"]} == {"models", "vpatch", "vpatch-tmp"}
    assert "httpGet" not in server["readinessProbe"]
    # The name has a hash of the digest: another digest rolls the Deployment out.
    assert init["env"][0]["valueFrom"]["configMapKeyRef"]["name"] == found["ConfigMap"]["metadata"]["name"] != "vpatch"


class Metrics(BaseHTTPRequestHandler):
    """A server's metrics."""

    text: str

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, *_: object) -> None:
        """Keep the server's log out of the tests' output."""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('# HELP vpatch_info\nvpatch_info{digest="0123456789abcdef",overlays="one"} 1.0\n', 0),
        ('vpatch_info{digest="a0123456789abcde",overlays="one"} 1.0\n', 1),
        ("vllm:num_requests_running 0.0\n", 1),
    ],
)
def test_ready_is_a_server_that_says_the_digest(text: str, code: int) -> None:
    server: Mapping[str, Any] = pods(SERVERS[0])[0]["containers"][0]
    python, *words = server["readinessProbe"]["exec"]["command"]
    with listening(Metrics, text=text) as metrics:
        command = [sys.executable, *(word.replace(":8000/", f":{metrics.server_port}/") for word in words)]
        ran = subprocess.run(command, env={"VPATCH_RUN": "0123456789ab", "PATH": "/usr/bin:/bin"}, check=False)

    assert (python, ran.returncode) == ("python3", code)

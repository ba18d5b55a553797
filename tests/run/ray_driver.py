"""A driver that starts a worker on each of some nodes, as vLLM's RayExecutorV2 does.

Arguments: the address of the cluster, its nodes by name with commas between, and the job's runtime environment as JSON.
It prints a JSON object: by node, what its worker is, or the error. It runs in an environment of `cluster.machine`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping

import ray  # type: ignore[import-not-found,unused-ignore]


class Worker:
    """What RayWorkerProc does: the driver's environment comes after the start, then plugins, then the extension."""

    def start(self, driver: Mapping[str, str], extension: str) -> dict[str, str]:
        """Return where the worker has its code from, and its proof."""
        import vllm  # the pickled actor of vLLM imports it first

        uv = os.environ.get("UV", "")  # which uv sets
        for name, value in driver.items():
            os.environ.setdefault(name, value)
        from vllm.plugins import load_general_plugins

        load_general_plugins()
        found = {"vllm": str(vllm.__file__), "asked": os.environ.get("VPATCH_RUN", ""), "uv": uv}
        module, _, name = extension.rpartition(".")
        try:
            return {**found, "proof": getattr(importlib.import_module(module), name)().vpatch_digest()}
        except ModuleNotFoundError as error:
            return {**found, "proof": f"ModuleNotFoundError: {error}"}


def main(address: str, names: str, runtime_env: str) -> None:
    ray.init(address, runtime_env=json.loads(runtime_env), log_to_driver=False, logging_level="ERROR")
    told: dict[str, object] = {"nodes": sum(node["Alive"] for node in ray.nodes())}
    for name in names.split(","):
        own = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}  # as vLLM sets some for its actors
        actor = ray.remote(Worker).options(num_cpus=0, resources={name: 1}, runtime_env=own).remote()
        try:
            told[name] = ray.get(actor.start.remote(dict(os.environ), "vpatch_receipt.Proof"), timeout=100)
        except ray.exceptions.RayError as error:
            told[name] = str(error)
    ray.shutdown()  # it prints, too, in a thread
    print(json.dumps(told))  # noqa: T201 - to the test


if __name__ == "__main__":
    main(*sys.argv[1:])

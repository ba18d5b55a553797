"""A bad base or registry: no tag is set, and the error has the reason."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.image.registry.conftest import Refused
from tests.image.registry.images import put_base, tar
from tests.image.registry.proxy import Proxy
from tests.image.standin import ONE, SITE
from tests.tiers import deep


@pytest.mark.parametrize(
    ("method", "path", "task"), [("GET", "/manifests/", "read"), deep("POST", "/blobs/uploads/", "push")]
)
def test_a_registry_that_fails(
    refused_on: Refused, proxy: Proxy, layers: list[bytes], method: str, path: str, task: str
) -> None:
    """Tests of the steps have the other faults."""
    put_base(proxy.behind, layers, "faulty/base:x")
    proxy.fail(method, path, status=403)

    assert re.match(rf"cannot {task}: {proxy.host}/", refused_on(f"{proxy.host}/faulty/base:x").err)


FOLDER_BELOW_A_LINK = (f"{SITE}/vllm/engine", "../elsewhere")


@pytest.mark.parametrize(
    ("numbers", "member", "says"),
    [
        ((0, 1), ("../../etc/passwd", b"x"), r"cannot read: .*would leave the tree"),
        ((0, 1), FOLDER_BELOW_A_LINK, r".*vllm/engine"),
        ((0, 2), ("a", b""), r"no vllm: {}: "),
    ],
    ids=["up", "a folder below a link", "no vllm"],
)
def test_layers_that_cannot_be_patched(
    refused_on: Refused,
    registry: str,
    layers: list[bytes],
    numbers: tuple[int, ...],
    member: tuple[str, Any],
    says: str,
) -> None:
    base = put_base(registry, [*(layers[number] for number in numbers), tar(member)], "leaves/base:x").name

    assert re.match(says.format(re.escape(base)), refused_on(base).err)


def test_a_named_overlay_that_does_not_apply(refused_on: Refused, registry: str, layers: list[bytes]) -> None:
    base = put_base(registry, layers, "idle/base:x").name
    ran = refused_on(base, "--overlay", "turboquant-auto-dtype", *ONE)

    assert f"not applicable: {base}: turboquant-auto-dtype: " in ran.err

"""What people see of builds in a registry: how far they are, what came of them, and commands that work."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest
import requests

from tests.conftest import Program
from tests.image.registry.images import build, put_base, put_image, tar
from tests.image.registry.proxy import Proxy
from tests.image.standin import ONE
from tests.terminals import on_terminal


def commands_in(text: str) -> list[list[str]]:
    return [shlex.split(found) for found in re.findall(r"`vpatch ([^`]*)`", text)]


def test_phases_on_a_terminal(registry: str, second_registry: str, layers: list[bytes]) -> None:
    base = put_base(registry, layers, "phases/base:x").name
    target = f"{second_registry}/phases/patched"
    seen = on_terminal("build", "--registry", *ONE, "--base", base, "--tag", f"{target}:one", columns=120)

    assert seen.code == 0
    for phase in (f"reading {base}", "applying overlays", f"pushing to {target}", f"testing: files of {target}"):
        assert phase in seen.raw
    assert f"tagging {target}:one" in seen.raw
    assert re.search(r"pushing to \S+ .*4\.\d MB", seen.raw), "the base's layers are copied"
    first, table, image, *outcome = seen.screen
    assert (first, table) == (f"vLLM 0.20.2 in {base}", "  turboquant-skip-list  applied")
    assert image.startswith(f"{target}@sha256:")
    assert outcome[0].startswith(f"Built and pushed {target}:one on {base}: 1 overlay applied, ")
    assert outcome[-1].endswith(f"`vpatch test {target}:one`.")


def test_without_a_tag_the_next_commands_test_and_tag(
    vpatch: Program, registry: str, layers: list[bytes], nothing_is_tagged: Callable[[str], bool]
) -> None:
    target, base = f"{registry}/next/patched:one", put_base(registry, layers, "next/base:x")
    ran = build(vpatch, base.name, "--tag", target, "--untagged")
    outcome = ran.err.splitlines()[-1]

    assert outcome.startswith(f"Pushed without a tag, built on {base.name}: 1 overlay applied, ")
    assert "; tests: 4 passed, 4 of 8 not run (needs a container). " in outcome
    assert nothing_is_tagged("next/patched")
    image = ran.out.strip()
    test, tag_it = commands_in(outcome)
    assert (test, tag_it) == (["test", image], ["tag", image, target])
    tagged = vpatch(*tag_it)
    assert (tagged.code, tagged.out) == (0, "")
    short = image[: image.index(":", image.index("@")) + 13]
    assert tagged.err.startswith(f"Tagged {short} as {target}. Run it: `docker run ")
    assert not nothing_is_tagged("next/patched")


def test_a_tag_that_fails_is_to_be_set_again(vpatch: Program, proxy: Proxy, layers: list[bytes]) -> None:
    put_base(proxy.behind, layers, "again/base:x")
    target = f"{proxy.host}/again/patched"
    proxy.fail("PUT", "/manifests/one", status=500)
    ran = build(vpatch, f"{proxy.host}/again/base:x", "--tag", f"{target}:one")
    problem, outcome = ran.err.splitlines()[-2:]

    assert (ran.code, ran.out) == (1, "")
    assert problem.startswith(f"cannot tag: {target}:one: ")
    assert outcome.startswith(f"Pushed, but not tagged: {target}@sha256:")
    (again,) = commands_in(outcome)
    assert again[-1] == f"{target}:one"

    failed = vpatch(*again, f"{target}:two")
    assert failed.code == 1
    assert commands_in(failed.err) == [[*again, f"{target}:two"]]
    proxy.faults.clear()
    assert vpatch(*again).code == 0
    assert requests.get(f"http://{proxy.behind}/v2/again/patched/manifests/one", timeout=5).ok


@pytest.mark.usefixtures("engine")
def test_a_tag_that_is_not_there(vpatch: Program, registry: str) -> None:
    for name in ("v0.20.2", "v0.20.1", "nightly"):
        put_image(registry, "tags/base", name, [tar(("a", b""))])
    near = f"; did you mean {registry}/tags/base:v0.20.2?\n"

    for ran in (
        vpatch("inspect", f"{registry}/tags/base:v0.20.22"),
        vpatch("build", "--base", f"{registry}/tags/base:v0.20.22"),
    ):
        assert ran.code == 1
        assert near in ran.err
    far = vpatch("inspect", f"{registry}/tags/base:other").err
    assert far.startswith(f"cannot read: {registry}/tags/base:other: no such image: check its name and its tag\n")

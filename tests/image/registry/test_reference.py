"""Image names are parsed as Docker parses them."""

from __future__ import annotations

import pytest
from vpatch.image.registry.reference import Reference, login_command, parse, registry_url

from tests.failures import problem_of
from tests.processes import printed

D = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "expected", "shown"),
    [
        ("ubuntu", Reference("docker.io", "library/ubuntu", "latest"), "ubuntu:latest"),
        ("vllm/vllm-openai:v0.20.2", Reference("docker.io", "vllm/vllm-openai", "v0.20.2"), "vllm/vllm-openai:v0.20.2"),
        ("docker.io/ubuntu:24.04", Reference("docker.io", "library/ubuntu", "24.04"), "ubuntu:24.04"),
        ("index.docker.io/a/b", Reference("docker.io", "a/b", "latest"), "a/b:latest"),
        ("ghcr.io/o/r/s:T_1.2-x", Reference("ghcr.io", "o/r/s", "T_1.2-x"), "ghcr.io/o/r/s:T_1.2-x"),
        ("localhost/a", Reference("localhost", "a", "latest"), "localhost/a:latest"),
        ("localhost:5/a__b/c.d-e", Reference("localhost:5", "a__b/c.d-e", "latest"), "localhost:5/a__b/c.d-e:latest"),
        ("[::1]:5000/a", Reference("[::1]:5000", "a", "latest"), "[::1]:5000/a:latest"),
        ("Host/a", Reference("Host", "a", "latest"), "Host/a:latest"),
        (f"ubuntu@{D}", Reference("docker.io", "library/ubuntu", None, D), f"ubuntu@{D}"),
        (f"nvcr.io/a:b@{D}", Reference("nvcr.io", "a", "b", D), f"nvcr.io/a:b@{D}"),
    ],
)  # fmt: skip
def test_reads_what_docker_reads(text: str, expected: Reference, shown: str) -> None:
    found = parse(text)

    assert found == expected
    assert str(found) == shown
    assert parse(shown) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is no repository"),
        ("a b", "'a b' is no repository"),
        ("Ubuntu", "'Ubuntu' is no repository: it has capital letters"),
        ("a/b:", "'' is no tag"),
        ("a/b:-x", "'-x' is no tag"),
        (f"a/b:{'x' * 129}", f"{'x' * 129!r} is no tag"),
        ("https://ghcr.io/a", "'https:' is no registry"),
        ("a/b@sha256:12", "after @ comes a digest, sha256: and 64 hexadecimal digits"),
        ("a/b@", "after @ comes a digest, sha256: and 64 hexadecimal digits"),
        ("-a.io/b", "'-a.io' is no registry"),
        ("[1]:5000/a", "'[1]:5000' is no registry"),
        ("ghcr.io/", "'' is no repository"),
        ("a//b", "'a//b' is no repository"),
        ("../etc", "'..' is no registry"),
        ("..:x/y", "'..:x' is no registry"),
        (f"ghcr.io/{'a' * 255}", "it is longer than 255 characters"),
        ("0123456789abcdef" * 4, "it is an image's ID, which no registry knows"),
        ("a\n", "'a\\n' is no repository"),
    ],
)
def test_refuses_invalid_names(text: str, why: str) -> None:
    problem = problem_of(parse, text)

    assert (problem.what, problem.where) == ("not an image's name", repr(text))
    assert problem.cause == why


@pytest.mark.parametrize(
    ("host", "origin", "command"),
    [
        ("docker.io", "https://registry-1.docker.io", "docker login"),
        ("ghcr.io", "https://ghcr.io", "docker login ghcr.io"),
        ("localhost:5000", "http://localhost:5000", "docker login localhost:5000"),
        ("127.3.2.1", "http://127.3.2.1", "docker login 127.3.2.1"),
        ("[::1]:80", "http://[::1]:80", "docker login [::1]:80"),
        ("10.0.0.1:5000", "https://10.0.0.1:5000", "docker login 10.0.0.1:5000"),
        ("localhost.example.org", "https://localhost.example.org", "docker login localhost.example.org"),
    ],
)
def test_only_loopback_is_asked_in_plain_http(host: str, origin: str, command: str) -> None:
    assert registry_url(host) == origin
    assert login_command(host) == command


def test_importing_it_brings_nothing_heavy() -> None:
    heavy = "{'oras', 'docker', 'requests'}"
    code = f"import sys, vpatch.image.registry.reference; print([*{heavy} & sys.modules.keys()])"

    assert printed(code) == "[]\n"

"""A layer is skipped only if its history and its first file prove that it has nothing that was asked for."""

from __future__ import annotations

import pytest
from vpatch.image.registry import layers
from vpatch.image.registry.layers import LayeredFiles

from tests.image.registry.conftest import Put
from tests.image.registry.images import tar
from tests.image.registry.test_layers import everything, python
from tests.tiers import deep


def test_skips_layers_that_history_proves_to_be_elsewhere(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "SMALL", 0)
    history = [
        {"created_by": "/bin/sh -c #(nop) ADD file:ab in / "},
        {"created_by": "ENV A=b", "empty_layer": True},
        {"created_by": "RUN pip install vllm # buildkit"},
        {"created_by": "COPY --chown=1 a b /app # buildkit"},
        {"created_by": "COPY x /opt/venv/lib # buildkit"},
        {"created_by": "ADD x usr/ # buildkit"},
        {"created_by": "COPY x /usr/$A # buildkit"},
        {"created_by": "COPY x /lib/python3 # buildkit"},
        {"created_by": "/bin/sh -c #(nop) COPY dir:cd in /srv/data "},
        {"created_by": "COPY x /tmp/vllm"},
    ]
    names = ("base", "vllm", "app", "venv", "relative", "variable", "merged", "data", "unsaid")
    tars = [tar((f"{name}.py", name.encode())) for name in names]
    tars[2] = tar(("app/x.py", b"app"), ("app/y.py", b""))
    tars[3] = tar(("opt", None), ("opt/venv/lib/x.py", b""))
    tars[7] = tar(("srv", None), ("srv/data", None), ("srv/data/x.py", b""))
    image = put(*tars, history=history)
    files = LayeredFiles(image, python)

    while files.descend("usr/lib/python3/dist-packages"):
        continue

    numbers = [image.layers.index(layer) for layer in files.layers_read]
    assert numbers == [8, 6, 5, 4, 1, 0]
    # What was passed over is read when it is asked for.
    assert files.read("app/x.py") == b"app"
    assert files.layers_read[-1] == image.layers[2]
    assert files.names("srv/data") == ("x.py",)
    assert files.layers_read[-1] == image.layers[7]
    assert len(files.layers_read) == 8
    below = {"app", "app/x.py", "app/y.py", "srv", "srv/data", "srv/data/x.py"}
    below |= {"opt", "opt/venv", "opt/venv/lib", "opt/venv/lib/x.py"}
    assert set(everything(files)) == {*(f"{n}.py" for n in names if n not in ("app", "venv", "data")), *below}
    assert len(files.layers_read) == 9


SITE = "usr/lib/python3.12/dist-packages"
INFO = f"{SITE}/vllm-1.dist-info"
# The folder that a layer was copied to, as its history has it, and the one where its files are.
COPIES = [
    ("/opt/vllm", f"{SITE}/vllm"),
    ("/opt/vllm/", f"{SITE}/vllm"),
    ("/usr/share/vllm", f"{SITE}/vllm"),
    ("/usr/lib/python3/models", f"{SITE}/vllm"),
    ("/lib/python3.12/site-packages", f"{SITE}"),
    ("/usr/lib/python3.1", f"{SITE}"),
    ("/models", f"{SITE}/vllm/models"),
    ("/models", "models"),
    ("/models/", "models/a"),
    ("/lib/models", "usr/lib/models"),
    ("/usr/share/models", "usr/share/models"),
    ("/models/x.py", "models"),
]


@pytest.mark.parametrize("history", ["COPY --chown=1 x {} # buildkit", deep("/bin/sh -c #(nop) COPY dir:cd in {} ")])
@pytest.mark.parametrize(("to", "at"), [copy if copy in COPIES[::6] else deep(*copy) for copy in COPIES])
def test_a_layer_is_skipped_only_if_its_files_are_where_its_history_says(
    put: Put, monkeypatch: pytest.MonkeyPatch, to: str, at: str, history: str
) -> None:
    """A COPY follows the links of lower layers, so what it writes may be in vLLM."""
    monkeypatch.setattr(layers, "SMALL", 0)
    steps = [{"created_by": step} for step in ("RUN a", "RUN b", history.format(to), "RUN c")]
    above = [(parent, None) for parent in reversed(["/".join(at.split("/")[:n]) for n in range(1, at.count("/") + 2)])]
    vllm = [(f"{SITE}/vllm/__init__.py", b""), (f"{INFO}/METADATA", b""), (f"{INFO}/RECORD", b"vllm/x.py,,\n")]
    tars = (
        tar((to.strip("/"), f"/{at}")),
        tar(*vllm, (f"{SITE}/vllm/x.py", b"old"), (f"{SITE}/vllm/models/x.py", b"old")),
        tar(*reversed(above), (f"{at}/x.py", b"new")),
        tar(*vllm),
    )
    image = put(*tars, history=steps)
    files = LayeredFiles(image, layers.is_wanted)
    root = layers.open_vllm(files, image.base, None).root
    assert root == SITE

    found = {
        path: files.locate(path) and files.read(path) for path in (f"{SITE}/vllm/x.py", f"{SITE}/vllm/models/x.py")
    }

    whole = LayeredFiles(image, layers.is_wanted)
    while whole.descend():
        continue
    assert found == {path: whole.read(path) for path in found}
    assert (image.layers[2] in files.layers_read) is at.startswith(SITE)


def test_a_search_skips_what_history_proves_to_be_elsewhere(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "SMALL", 0)
    history = [{"created_by": step} for step in ("RUN a", "COPY x /app # buildkit", "RUN b", "COPY x /app # buildkit")]
    vllm = [(f"{SITE}/vllm/__init__.py", b""), (f"{INFO}/METADATA", b""), (f"{INFO}/RECORD", b"vllm/gone.py,,\n")]
    tars = (tar(("usr", None), (f"{SITE}/vllm/gone.py", b"")), tar(("app/a", b"")), tar(*vllm), tar(("app/b", b"")))
    image = put(*tars, history=history)

    def read(files: LayeredFiles) -> list[int]:
        return [image.layers.index(layer) for layer in files.layers_read]

    files = LayeredFiles(image, python)
    assert files.locate(f"{SITE}/vllm/gone.py")
    assert read(files) == [2, 0]
    for path in ("usr", f"{SITE}/vllm/gone.py"):  # known only by what is in it; listed in RECORD
        files = LayeredFiles(image, layers.is_wanted)
        layers.open_vllm(files, image.base, None)
        assert read(files) == [3, 2]
        assert files.entry(path)
        assert read(files) == [3, 2, 0]


@pytest.mark.parametrize("history", [[], [{"created_by": "COPY a /b # buildkit"}] * 3, None, [{}, {}]])
def test_a_history_that_does_not_match_the_layers_proves_nothing(
    put: Put, monkeypatch: pytest.MonkeyPatch, history: list[dict[str, str]] | None
) -> None:
    monkeypatch.setattr(layers, "SMALL", 0)
    files = LayeredFiles(put(tar(("a", b"")), tar(("b", b"")), settings={"history": history}), python)

    assert files.descend("usr")
    assert files.descend("usr")
    assert not files.descend("usr")
    assert len(files.layers_read) == 2

    monkeypatch.setattr(layers, "SMALL", 1 << 20)  # a small layer is always read
    files = LayeredFiles(put(tar(("a", b"")), history=[{"created_by": "COPY a /b # buildkit"}]), python)
    assert files.descend("usr")

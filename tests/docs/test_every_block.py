"""Every command on a page is run by a test, or says why it is not."""

from __future__ import annotations

import re
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.docs.page import Block, blocks
from tests.docs.recipe import run
from tests.docs.registry import BY_NAME, IN_AN_ENGINE, ON_A_MACHINE, WITH_TORCH, Recipe
from tests.needs import root_only
from tests.paths import ROOT

RUN = {**ON_A_MACHINE, **WITH_TORCH, **IN_AN_ENGINE}
DOCUMENTS = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]


def untested(page: str) -> list[str]:
    """Return where the blocks of a page are that no test runs, and that do not say why."""
    return [
        block.where
        for block in blocks(ROOT / page)
        if block.is_shell and page not in RUN and not block.reason and (page, block.mark) not in BY_NAME
    ]


@pytest.mark.parametrize("page", DOCUMENTS)
def test_every_command_is_tested_or_says_why_not(page: str) -> None:
    assert untested(page) == []


def test_a_reason_is_a_reason() -> None:
    reasons = [block.reason for page in DOCUMENTS for block in blocks(ROOT / page) if block.reason is not None]

    assert reasons
    assert all(len(reason.split()) > 2 for reason in reasons)


def test_the_registry_names_what_there_is() -> None:
    assert [page for page in RUN if not any(block.is_shell and not block.reason for block in blocks(ROOT / page))] == []
    for (page, name), test in BY_NAME.items():
        file, _, function = test.partition("::")
        assert name in {block.mark for block in blocks(ROOT / page)}
        assert f"\ndef {function}(" in (ROOT / file).read_text()


PLAIN = Recipe()
TEXT = """# Page

<!-- file: a/b.txt -->
```text
one
```

- in a list:

  <!-- not tested: needs a
  GPU -->
  ```sh
  exit 1
  ```

<!-- nothing -->

```sh
export TWO=two
```

````markdown
```sh
echo three > three
```
````

```console
$ cat a/b.txt three
one
three
$ echo $TWO; false || echo four \\
>   five
two
...r f...
$ (exit 3); echo $?
3
```
"""


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A page of a repository of its own."""
    for module in ("page", "recipe"):
        monkeypatch.setattr(f"tests.docs.{module}.ROOT", tmp_path)
    (tmp_path / "page.md").write_text(TEXT)
    return tmp_path / "page.md"


def test_blocks_are_found_with_their_comments(page: Path) -> None:
    assert [(block.where, block.language, block.mark) for block in blocks(page)] == [
        ("page.md:4", "text", "file: a/b.txt"),
        ("page.md:12", "sh", "not tested: needs a GPU"),
        ("page.md:18", "sh", ""),
        ("page.md:23", "sh", ""),
        ("page.md:28", "console", ""),
    ]
    assert [block.reason for block in blocks(page) if block.reason] == ["needs a GPU"]
    assert next(block for block in blocks(page) if block.is_shell) == Block(
        "page.md:12", "sh", "exit 1\n", "not tested: needs a GPU"
    )


def go(tmp_path: Path, recipe: Recipe = PLAIN) -> Path:
    run("page.md", recipe, tmp_path / "recipe", {"PATH": "/usr/bin:/bin"})
    return tmp_path / "recipe"


def test_a_page_is_run(page: Path, tmp_path: Path) -> None:
    folder = go(tmp_path, Recipe("echo begun > begun", {"echo three": "echo thr''ee"}))

    assert {path.name: path.read_text() for path in folder.rglob("*") if path.is_file()} == {
        "begun": "begun\n",
        "b.txt": "one\n",
        "three": "three\n",
    }


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("export TWO=two", "false", "page.md:18 exits with 1"),
        ("export TWO=two", "(exit 5) \\\n  && true &&\n  true  # why", "page.md:18 exits with 5"),
        ("echo three > three", "exit 4", "page.md:23 exits with 4"),
        ("one\nthree\n$", "one\nfour\n$", "page.md:28: `cat a/b.txt three` prints:\none\nthree\n"),
        ("\n3\n", "\n0\n", "page.md:28: `(exit 3); echo $?` prints:\n3\n"),
    ],
)
def test_what_goes_wrong_is_found(page: Path, tmp_path: Path, old: str, new: str, says: str) -> None:
    page.write_text(TEXT.replace(old, new))

    with pytest.raises(AssertionError, match=re.escape(says)):
        go(tmp_path)


@root_only
@pytest.mark.parametrize(("mark", "code"), [("", 0), ("<!-- no network -->\n", 1)])
def test_without_network_nothing_is_reached(page: Path, tmp_path: Path, mark: str, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        page.write_text(f"{mark}```sh\ntrue 2>/dev/null >/dev/tcp/127.0.0.1/{port} || exit 1\n```\n")

        with pytest.raises(AssertionError, match="exits with 1") if code else nullcontext():
            go(tmp_path)


def test_what_is_replaced_must_be_on_the_page(page: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nowhere"):
        go(tmp_path, Recipe(replace={"nowhere": ""}))

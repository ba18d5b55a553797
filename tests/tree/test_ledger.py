"""What vpatch notes in a repository may be damaged, or made by others: then it is as if nothing were noted."""

from __future__ import annotations

from pathlib import Path

from vpatch.tree.checkout import Checkout
from vpatch.tree.locate import locate

from tests.cli.test_foreign_trees import HARMS, bounded, holding
from tests.needs import need
from tests.tree.conftest import in_a_child

SHAPES = {"hashes": b'{"vllm/a.py": [1]}', "text": b'{"vllm/a.py": "x"}', "list": b"[]", "null": b"null"}


def test_a_ledger_that_vpatch_did_not_write(clone: Path) -> None:
    need("git")
    ledger = clone / ".git/vpatch.json"
    harms = {name: HARMS[name] for name in ("pipe", "sparse", "deep list")}
    harms |= {name: holding(data) for name, data in SHAPES.items()}
    for name in harms:
        harms[name](ledger)

        def read() -> None:
            bounded()
            assert Checkout.at(locate(clone)).found.written == {}

        assert in_a_child(read) == 0, name
        ledger.unlink()

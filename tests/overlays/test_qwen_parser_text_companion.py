"""The engine of qwen-parser-text on vLLM's own parser engine and grammar of Qwen, without the rest of vLLM."""

from __future__ import annotations

import importlib
import logging
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest

from tests.releases import tree_of

Parse = Callable[[Sequence[str], bool], tuple[str, list[str]]]
OPEN, CLOSE = "<tool_call>", "</tool_call>"
CALL = (OPEN, "\n", "<function=", "look", ">", "\n", "</function>", "\n", CLOSE)


class Tokenizer:
    """One token for each piece of the text."""

    def __init__(self, pieces: Sequence[str]) -> None:
        tags = ("<think>", "</think>", OPEN, CLOSE)
        self.ids = {piece: number for number, piece in enumerate(dict.fromkeys((*tags, *pieces)), 1)}

    def get_vocab(self) -> dict[str, int]:
        return self.ids

    def decode(self, ids: int | Sequence[int], **_: Any) -> str:
        pieces = {number: piece for piece, number in self.ids.items()}
        return "".join(pieces[one] for one in ([ids] if isinstance(ids, int) else ids))


@pytest.fixture(params=["0.24.0", "0.33.0"])
def parse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parse]:
    """`parse(pieces, streams)` returns the text and the names of the calls."""
    root = tree_of(request.param)
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("vllm", "vllm.parser", "vllm.parser.engine"):
        package = ModuleType(name)
        package.__path__ = [str(root / name.replace(".", "/"))]
        monkeypatch.setitem(sys.modules, name, package)
    for name, value in (("parser.engine.parser_engine", {"ParserEngine": object}),
                        ("logger", {"init_logger": logging.getLogger})):  # fmt: skip
        module = ModuleType(f"vllm.{name}")
        vars(module).update(value)
        monkeypatch.setitem(sys.modules, f"vllm.{name}", module)
    monkeypatch.delitem(sys.modules, "vpatch_overlays.companions.qwen_parser_text", raising=False)
    engine = importlib.import_module("vpatch_overlays.companions.qwen_parser_text").QuotedOpeners
    grammar = importlib.import_module("vllm.parser.qwen3").qwen3_config

    def parsed(pieces: Sequence[str], streams: bool) -> tuple[str, list[str]]:  # noqa: FBT001
        tokenizer = Tokenizer(pieces)
        made = engine(grammar(thinking=False), tokenizer)
        if streams:
            events = [event for piece in pieces for event in made.feed(piece, [tokenizer.ids[piece]])]
            events += made.finish()
        else:
            events = made.parse_complete("".join(pieces))
        values = [(event.type.name, event.value or "") for event in events]
        text = "".join(value for name, value in values if name == "TEXT_CHUNK")
        return text, [value for name, value in values if name == "TOOL_NAME"]

    yield parsed
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    sys.modules.pop("vpatch_overlays.companions.qwen_parser_text", None)


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(
    ("pieces", "text", "calls"),
    [
        (("Write `", OPEN, "` to begin."), f"Write `{OPEN}` to begin.", []),
        (("`", OPEN, "`, then `", CLOSE, "`."), f"`{OPEN}`, then `{CLOSE}`.", []),
        ((OPEN, " ", OPEN, " or ", "<", "f."), f"{OPEN} {OPEN} or <f.", []),
        (("Now: ", *CALL), "Now: ", ["look"]),
        (("A ", OPEN, " is: ", *CALL), f"A {OPEN} is: ", ["look"]),
        (("Cut off: ", OPEN, "\n"), "Cut off: ", []),
    ],
)
def test_a_tag_is_a_call_only_before_a_function(
    parse: Parse,
    pieces: Sequence[str],
    text: str,
    calls: list[str],
    streams: bool,  # noqa: FBT001
) -> None:
    assert parse(pieces, streams) == (text, calls)


def test_no_text_is_lost(parse: Parse) -> None:
    """Drawn answers with mentions, each followed by a word, and with calls."""
    chance = random.Random(11)  # noqa: S311
    parts = (("a word ",), ("`", OPEN, "` "), (OPEN, " \n", "is "), (OPEN, "<", "f "), (OPEN, "{}", CLOSE, " "))
    for _ in range(150):
        drawn = [chance.choice(parts) for _ in range(chance.randint(1, 6))]
        pieces = [piece for part in drawn for piece in part]
        wanted = "".join(pieces)
        for streams in (True, False):
            assert parse(pieces, streams) == (wanted, []), wanted
            assert parse([*pieces, *CALL], streams) == (wanted, ["look"]), wanted

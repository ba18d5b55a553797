"""Answers that mention `<tool_call>`: vLLM's parser for Qwen's calls delivers all of the text, and all calls."""

import re
from types import SimpleNamespace
from typing import Any

from vpatch_overlays.probes.bare import expect, settle

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CALL = "<tool_call>\n<function=look>\n<parameter=at>\nit\n</parameter>\n</function>\n</tool_call>"
CALLED = ("look", '{"at": "it"}')

QUOTED = "The tag `<tool_call>` opens a call, and `</tool_call>` closes it."
TEXTS = (
    ("mentions the tag", QUOTED),
    ("has it in a code block", "See:\n```\n<tool_call>\n  <name>look</name>\n</tool_call>\n```\nSo it is."),
    ("has two of them", "Write <tool_call> <tool_call> or <f."),
    ("has the beginning of a function in a block", "Or `<tool_call><f</tool_call>`."),
    ("has something else than a function in a block", 'So: <tool_call>\n{"name": "look"}\n</tool_call>'),
)


def main() -> None:
    """Parse answers with the parser that a server with `--tool-call-parser qwen3_coder` makes, in both of its ways."""
    settle()
    for what, text in TEXTS:
        both(f"text, if an answer {what}", text, text, [])
    both("text and calls, if a call follows the tag's name", f"{QUOTED}\n{CALL}", QUOTED, [CALLED])
    both("text and calls, if two calls are all", f"{CALL}\n{CALL}", "", [CALLED, CALLED])
    _, content, calls = parsed("Now:\n<tool_call>\n<func", streams=True)
    expect("text, if a call is cut off", ("Now:", []), (content.rstrip(), calls))

    thought, answer = "A <tool_call> is none.", "It is 4."
    for streams in (True, False):
        reasoning, content, calls = parsed(f"{thought}</think>{answer}", streams=streams, reasons=True)
        # The tag ends the reasoning, and vLLM drops the end that follows.
        expect("text, if the reasoning mentions the tag", (thought + answer, []), (reasoning + content, calls))


def both(what: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    """Compare what is made of a text by tokens, as a stream, and of the whole."""
    for streams in (True, False):
        _, found, called = parsed(text, streams=streams)
        expect(what, (content, calls), (found.rstrip(), called))


def parsed(text: str, *, streams: bool, reasons: bool = False) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the reasoning, the content and the calls of an answer."""
    pieces = re.findall(rf"{'|'.join(TAGS)}|\s+|<?[^\s<]+|<", text)
    tokenizer = Tokenizer(pieces)
    parser = made(reasons=reasons)(tokenizer, [])
    request = SimpleNamespace(tools=[], tool_choice="auto", include_reasoning=True, messages=[], input=[])
    if not streams:
        reasoning, content, calls = parser.parse(text, request, enable_auto_tools=True)
        return reasoning or "", content or "", [(one.name, one.arguments) for one in calls or ()]
    reasoning, content = "", ""
    called: dict[int, tuple[str, str]] = {}
    for index, piece in enumerate(pieces, 1):
        delta = parser.parse_delta(
            piece, [tokenizer.ids[piece]], request, prompt_token_ids=[len(tokenizer.ids)], finished=index == len(pieces)
        )
        if delta is None:
            continue
        reasoning, content = reasoning + (delta.reasoning or ""), content + (delta.content or "")
        for call in delta.tool_calls or ():
            name, arguments = called.get(call.index, ("", ""))
            function = call.function
            called[call.index] = name + (function.name or ""), arguments + (function.arguments or "")
    return reasoning, content, [called[index] for index in sorted(called)]


def made(*, reasons: bool) -> Any:
    """Return the parser of `--tool-call-parser qwen3_coder`, with `--reasoning-parser qwen3` if it reasons.

    vLLM's registry is left out: it imports libraries that the parsers of other models need.
    """
    from vllm.parser.abstract_parser import DelegatingParser
    from vllm.parser.engine.adapters import make_adapters
    from vllm.parser.qwen3 import Qwen3Parser

    reasoner, caller = make_adapters(Qwen3Parser)
    parsers = {"reasoning_parser_cls": reasoner if reasons else None, "tool_parser_cls": caller}
    return type("Parser", (DelegatingParser,), parsers)


class Tokenizer:
    """A tokenizer whose tokens are the pieces of one text, and Qwen's tags."""

    all_special_tokens: tuple[str, ...] = ()
    all_special_ids: tuple[int, ...] = ()

    def __init__(self, pieces: list[str]) -> None:
        """Number the pieces."""
        self.ids = {piece: number for number, piece in enumerate(dict.fromkeys([*TAGS, *pieces]))}
        self.pieces = list(self.ids)

    def get_vocab(self) -> dict[str, int]:
        """Return the number of each token."""
        return self.ids

    def decode(self, ids: Any, **_: Any) -> str:
        """Return the text of tokens."""
        return "".join(self.pieces[number] for number in ids)


if __name__ == "__main__":
    main()

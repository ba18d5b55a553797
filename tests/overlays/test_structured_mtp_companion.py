"""The code of structured-mtp for steps of several tokens, with a reasoner and a grammar of few lines."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from vpatch_overlays.companions.structured_mtp import accept_output, drafted_end, reasoning_end, without_refused

END, UNKNOWN = 9, -1


class Reasoner:
    """Reasoning ends with one token."""

    def is_reasoning_end_streaming(self, known: Sequence[int], new: Sequence[int]) -> bool:
        assert [*known[-1:]] == [*new]
        return END in new


@dataclass
class Grammar:
    """Tokens up to 5."""

    taken: list[int] = field(default_factory=list)

    def validate_tokens(self, tokens: Sequence[int]) -> list[int]:
        refused = next((index for index, token in enumerate(tokens) if token > 5), len(tokens))
        return [*tokens[:refused]]

    def accept_tokens(self, request_id: str, tokens: Sequence[int]) -> bool:
        assert request_id == "r"
        self.taken += tokens
        return self.validate_tokens(tokens) == [*tokens]


def request(ids: Sequence[int], structured: Any = None) -> Any:
    return SimpleNamespace(request_id="r", all_token_ids=[*ids], structured_output_request=structured)


def test_where_reasoning_ends_and_what_the_grammar_takes() -> None:
    """In drawn steps."""
    chance, reasoner = random.Random(3), Reasoner()  # noqa: S311
    for _ in range(400):
        before, step = ([chance.randint(0, 9) for _ in range(chance.randint(1, 6))] for _ in range(2))
        ids, start = before + step, len(before)
        end = reasoning_end(reasoner, ids, start)
        assert end == (ids.index(END, start) if END in step else len(ids) - 1)

        grammar = Grammar()
        structured = SimpleNamespace(grammar=grammar, reasoning_end_token_index=end)
        behind = ids[end + 1 :]
        assert accept_output(request(ids, structured), step) is (grammar.validate_tokens(behind) == behind)
        assert grammar.taken == behind

        drafts = [*step, *[UNKNOWN] * chance.randint(0, 2)]
        drafted = drafted_end(reasoner, request(before), drafts)
        assert drafted == (drafts.index(END) if END in step else len(drafts))
        kept = without_refused(Grammar(), drafts, drafted)
        rest = grammar.validate_tokens([token for token in drafts[drafted + 1 :] if token != UNKNOWN])
        assert kept == [*drafts[: drafted + 1], *rest, *[UNKNOWN] * (len(drafts) - len(rest) - drafted - 1)]


def test_requests_without_reasoning_or_a_grammar() -> None:
    grammar = Grammar()
    begun = SimpleNamespace(grammar=grammar)

    assert accept_output(request([1, 2]), [2])
    assert accept_output(request([1, 2], begun), [2])
    assert not accept_output(request([1, 7], begun), [7])
    assert grammar.taken == [2, 7]
    assert drafted_end(None, request([1]), [2, END]) == 2

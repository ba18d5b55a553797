"""The end of reasoning within a step of several tokens, for vLLM up to 0.24; vllm-project/vllm#44297, #44993."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.reasoning import ReasoningParser
    from vllm.v1.request import Request
    from vllm.v1.structured_output.backend_types import StructuredOutputGrammar


def reasoning_end(reasoner: ReasoningParser, ids: Sequence[int], start: int) -> int:
    """Return the index of the token of `ids`, from `start` on, that ends the reasoning.

    A parser may recognize an end of several tokens only in the whole step. Then this is the index of the last token, so
    that none of the step counts as output.
    """
    known = list(ids[:start])
    for index in range(start, len(ids)):
        known.append(ids[index])
        if reasoner.is_reasoning_end_streaming(known, known[-1:]):
            return index
    return len(ids) - 1


def drafted_end(reasoner: ReasoningParser | None, request: Request, drafts: Sequence[int]) -> int:
    """Return the index of the draft that would end the reasoning; the number of drafts if none would."""
    if reasoner is None:
        return len(drafts)
    known = list(request.all_token_ids)
    for index, token in enumerate(drafts):
        known.append(token)
        if token != -1 and reasoner.is_reasoning_end_streaming(known, known[-1:]):
            return index
    return len(drafts)


def without_refused(grammar: StructuredOutputGrammar, drafts: Sequence[int], end: int) -> list[int]:
    """Return the drafts, with -1 from the first one behind the index `end` on that the grammar refuses."""
    behind = list(drafts[end + 1 :])
    known = behind[: behind.index(-1)] if -1 in behind else behind
    taken = grammar.validate_tokens(tokens=known) if known else []
    return [*drafts[: end + 1], *taken, *[-1] * (len(behind) - len(taken))]


def accept_output(request: Request, new: list[int]) -> bool:
    """Advance the grammar by those tokens of a step that stand behind the reasoning; return whether it took them.

    Args:
        request: its `all_token_ids` end with the step's tokens.
        new: the step's tokens.
    """
    structured = request.structured_output_request
    if structured is None:
        return True
    end = getattr(structured, "reasoning_end_token_index", None)  # which `should_advance` sets
    begun = 0 if end is None else max(0, end + 1 - (len(request.all_token_ids) - len(new)))
    return begun == len(new) or structured.grammar.accept_tokens(request_id=request.request_id, tokens=new[begun:])

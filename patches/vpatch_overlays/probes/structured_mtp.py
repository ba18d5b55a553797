"""Structured output behind reasoning, in steps of several tokens: the grammar holds from the reasoning's end on."""

import ast
import inspect
import textwrap
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from vpatch_overlays.probes.bare import expect, settle

TOKENS = ("{", '"a"', ":", "1", "}", "<eos>", "</think>", "prose", "more")
OPEN, KEY, COLON, ONE, CLOSE, EOS, END, PROSE, MORE = range(len(TOKENS))
GRAMMAR = r'root ::= "{" "\"a\"" ":" "1" "}"'
DRAFTS = 3


def main() -> None:
    """Let a model that would rather write prose go on from a step in which its reasoning ended."""
    settle()
    for drafts, what in (
        ([PROSE, MORE, END], "the last draft ends the reasoning"),
        ([PROSE, END, OPEN], "a draft before the last ends it"),
        ([END, OPEN, KEY], "the first draft ends it"),
        ([END, PROSE, MORE], "prose was drafted after its end"),
        ([PROSE, PROSE, PROSE], "no draft ends it"),
    ):
        answer = Steps().answer(drafts)
        expect(f"output, if {what}", '{"a":1}', "".join(TOKENS[token] for token in answer))


class Steps:
    """A request with a reasoning parser and a grammar, in vLLM's manager of structured output."""

    def __init__(self, drafts: int = DRAFTS) -> None:
        """Make a request that has begun to reason, with so many drafts a step."""
        import torch
        import xgrammar as xgr
        from vllm.v1.core.sched import scheduler
        from vllm.v1.structured_output import StructuredOutputManager
        from vllm.v1.structured_output.backend_types import StructuredOutputOptions
        from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar
        from vllm.v1.structured_output.request import StructuredOutputRequest

        known = xgr.TokenizerInfo(list(TOKENS), stop_token_ids=[EOS])
        compiled = xgr.GrammarCompiler(known, max_threads=1).compile_grammar(GRAMMAR)
        matcher = xgr.GrammarMatcher(compiled, max_rollback_tokens=DRAFTS + 1)
        self.structured = object.__new__(StructuredOutputRequest)
        vars(self.structured).update(
            _grammar=XgrammarGrammar(vocab_size=len(TOKENS), matcher=matcher, ctx=compiled),
            structured_output_key=(StructuredOutputOptions.JSON, "{}"), reasoning_ended=None, reasoner=Reasoner(),
            reasoning_end_token_index=None,
        )  # fmt: skip
        speculation = SimpleNamespace(num_speculative_tokens=drafts) if drafts else None
        self.manager = object.__new__(StructuredOutputManager)
        vars(self.manager).update(
            vllm_config=SimpleNamespace(
                speculative_config=speculation, num_speculative_tokens=drafts,
                scheduler_config=SimpleNamespace(max_num_seqs=1), model_config=SimpleNamespace(is_diffusion=False),
            ),
            backend=SimpleNamespace(allocate_token_bitmask=lambda rows: xgr.allocate_token_bitmask(rows, len(TOKENS))),
            reasoner=Reasoner(), reasoner_cls=Reasoner, enable_in_reasoning=False,
            fill_bitmask_parallel_threshold=128, _grammar_bitmask=None, _full_mask=torch.tensor(-1, dtype=torch.int32),
        )  # fmt: skip
        self.ids = [PROSE, MORE]
        self.request = SimpleNamespace(
            request_id="r", use_structured_output=True, structured_output_request=self.structured,
            prompt_token_ids=[PROSE], all_token_ids=self.ids, num_output_placeholders=0, status=None,
        )  # fmt: skip
        self.code, self.names = advancing(scheduler.Scheduler), vars(scheduler)

    def answer(self, drafts: Sequence[int]) -> list[int]:
        """Return what follows the reasoning, whose last step has these drafts; the model wants them, and then prose."""
        self.step(drafts, [*drafts, PROSE])
        while EOS not in self.ids and len(self.ids) < 24:
            wanted = END if END not in self.ids else PROSE
            self.step((), [wanted])
        return [token for token in self.ids[self.ids.index(END) + 1 :] if token != EOS]

    def step(self, drafts: Sequence[int], wanted: Sequence[int]) -> list[int]:
        """Sample, at each place the wanted token or else the first that the mask allows, and return the tokens."""
        mask = self.manager.grammar_bitmask({"r": self.request}, ["r"], {"r": list(drafts)} if drafts else {})
        new = []
        for row, token in zip(mask.tolist(), wanted, strict=True):
            allowed = [one for one in range(len(TOKENS)) if row[0] >> one & 1]
            new.append(token if token in allowed else allowed[0])
            if [*drafts, None][len(new) - 1] != new[-1]:
                break
        self.ids += new
        self.request.num_computed_tokens = len(self.ids) - 1
        names = {"self": SimpleNamespace(structured_output_manager=self.manager), "request": self.request}
        exec(self.code, self.names | names | {"req_id": "r", "new_token_ids": new, "stopped": False})  # noqa: S102 - vLLM's
        expect("status of the request, which ends if the grammar refuses a token", None, self.request.status)
        return new


class Reasoner:
    """A reasoning parser as most are: one token ends the reasoning."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take what vLLM passes."""

    def is_reasoning_end(self, ids: Sequence[int]) -> bool:
        """Return whether the end is among all tokens."""
        return END in ids

    def is_reasoning_end_streaming(self, _ids: Sequence[int], new: Sequence[int]) -> bool:
        """Return whether the end is among a step's tokens."""
        return END in new


def advancing(scheduler: Any) -> Any:
    """Compile the statement of `update_from_output` that advances the grammar by a step's tokens."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(scheduler.update_from_output)))
    tests = (one for one in ast.walk(tree) if isinstance(one, ast.If))
    found = next(one for one in tests if "structured_output_manager" in ast.unparse(one.test))
    return compile(ast.Module([found], []), "update_from_output", "exec")


if __name__ == "__main__":
    main()

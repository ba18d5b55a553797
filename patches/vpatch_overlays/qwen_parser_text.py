"""Qwen's parsers, opt-in: a `<tool_call>` that the model only writes about does not cost the rest of the answer.

In an answer about tools, or in a code block, a model writes `<tool_call>` as text. To the tokenizer this is the same
token as in a call, so the token alone does not tell them apart; what follows does: in a call, `<function=`. From vLLM
0.24 on, the parser engine takes each `<tool_call>` for a call at once, and drops what stands there in place of a
function, up to `</tool_call>` or the end of the answer: with streaming and without, and if the request has no tools.

The overlay holds `<tool_call>` back until `<function=`, or something else that is no white space, follows. In the first
case it is a call, as before; in the second, it and what follows are text. White space between them waits as well. This
is what vllm-project/vllm#56661, which is open, is for.

It is for the parsers that share Qwen's grammar: `qwen3_coder`, `qwen3_xml` and the ones that are made from it, such as
those of Nemotron 3 and Seed OSS. Up to vLLM 0.23 Qwen's calls have older parsers. These lose such text with streaming,
and `qwen3_xml` without it, too; the overlay does not mend them.

A block of something else, as `<tool_call>{"name": ...}</tool_call>`, is text, too, with its tags; vLLM drops it, and a
test of vLLM's says so. That is why the overlay is opt-in: of a call that the model got wrong, users see the text.

As in vLLM, an answer that ends behind `<tool_call>`, or within the `<function=` that follows it, ends before it: a call
was cut off there. A whole call in an example is a call. In the reasoning, with a reasoning parser, `<tool_call>` ends
the reasoning, and what follows it there is content.
"""

from vpatch import Companion, File, Folder, Overlay, Part, probe

from vpatch_overlays import _shared as shared

engine = File("vllm/parser/engine/parser_engine.py")
engine_init = engine.function("ParserEngine.__init__")
helper = Companion(f"{shared.COMPANIONS}.qwen_parser_text")

MADE = "{}(parser_engine_config, tokenizer, vocab=self.vocab)"

overlay = Overlay(
    summary="Qwen's parsers: a `<tool_call>` that is mentioned in the text does not cost the rest of the answer.",
    symptoms=(
        "An answer of a Qwen model stops where it mentions <tool_call>: the text is cut off after it, although tokens"
        " are still generated and counted.",
        "A final answer is empty because the reasoning mentioned <tool_call>, with a Qwen parser.",
        "With --tool-call-parser qwen3_coder or qwen3_xml, text behind <tool_call> is lost, also without tools.",
    ),
    upstream=("vllm-project/vllm#56661", "vllm-project/vllm#56658", "vllm-project/vllm#47562"),
    releases={
        ">=0.18,<0.24": "not_applicable: Qwen's calls have older parsers, which are left as they are",
        ">=0.24": "pending: each `<tool_call>` is taken for a call",
    },
    opt_in=True,
    probes=(probe(shared.PROBES, "qwen_parser_text"),),
    parts=(
        Part(
            "opener",
            absent=(~Folder("vllm/parser/engine").exists).means(
                "this vLLM has no parser engine; its older parsers of Qwen's calls are left as they are"
            ),
            shapes={
                "0.24": [
                    engine_init.replace_expression(MADE.format("StreamingParserEngine"), MADE.format("QuotedOpeners")),
                    helper.import_into(engine, "QuotedOpeners"),
                ]
            },
        ),
    ),
)

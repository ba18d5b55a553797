"""qwen-parser-text on real releases: its states, what drifts, and the code that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vpatch.testing import State

from tests.overlays.tables import check_result, drifted, on, table

ENGINE = "vllm/parser/engine/parser_engine.py"
MAKES = """        self._engine = StreamingParserEngine(
            parser_engine_config, tokenizer, vocab=self.vocab
        )
"""
IMPORTS = "    find_tool_properties,\n)\n"

CASES = (
    *on("<0.24", State.NOT_APPLICABLE, "older parsers of Qwen's calls"),
    *on(">=0.24", State.PENDING, "matches the 0.24 layout; 3 changes"),
    *drifted("0.33.0", ENGINE, (MAKES, MAKES.replace("vocab=self.vocab", "vocab=None"), "is not there")),
)

test_case = table("qwen-parser-text", CASES)


def test_only_the_engine_that_is_made_changes(slim: Callable[[str], Path], tmp_path: Path) -> None:
    made = MAKES.replace("StreamingParserEngine", "QuotedOpeners")
    ours = f"{IMPORTS}from vllm._vpatch.qwen_parser_text import QuotedOpeners\n"

    check_result("qwen-parser-text", "0.33.0", slim("0.33.0"), tmp_path, ENGINE, (MAKES, made), (IMPORTS, ours))

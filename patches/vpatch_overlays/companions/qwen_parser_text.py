"""A parser engine that takes `<tool_call>` for a call only if a function follows it; see vllm-project/vllm#56661."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.parser.engine.parser_engine_config import ParserState
from vllm.parser.engine.streaming_parser_engine import StreamingParserEngine

if TYPE_CHECKING:
    from vllm.parser.engine.events import SemanticEvent

FUNCTION = "FUNC_PREFIX"
PLAIN = (ParserState.CONTENT, ParserState.REASONING)


class QuotedOpeners(StreamingParserEngine):  # type: ignore[misc]
    """Hold the opener of a tool call back until what follows shows whether it is one.

    Upstream enters the call at once, and drops all text that stands there in place of a function. Grammars without
    `<function=`, and engines that leave calls to another one, are upstream's.
    """

    def reset(self, initial_state: ParserState | None = None) -> None:
        """Forget an opener of the last request."""
        # What was held back, as arguments of `_emit_for_state`; empty if no opener is open.
        self._held: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._opening: list[SemanticEvent] = []
        self._before = ParserState.CONTENT, -1
        super().reset(initial_state=initial_state)

    def finish(self) -> list[SemanticEvent]:
        """End as upstream does: an opener that the stream ends behind is a call that was cut off, and no text."""
        events: list[SemanticEvent] = super().finish()
        if self._held:
            events[-1:-1] = self._opening  # the last event ends the call
            self._held = []
        return events

    def _on_terminal(self, terminal: str, value: str, *counts: Any, **more: Any) -> list[SemanticEvent]:
        transitions = self.config.transitions
        if self._held and terminal in self.config.terminals:
            if self._behind() or (self.state, terminal) not in transitions:  # not at this place in a call
                return [*self._release(), *self._on_terminal(terminal, value, *counts, **more)]
            self._held = []
            return [*self._opening, *super()._on_terminal(terminal, value, *counts, **more)]
        before = self.state, self.tool_index
        events: list[SemanticEvent] = super()._on_terminal(terminal, value, *counts, **more)
        opened = self.state is ParserState.TOOL_PREAMBLE and before[0] in PLAIN
        if not opened or (self.state, FUNCTION) not in transitions:
            return events
        self._held, self._opening, self._before = [(value, counts, more)], events, before
        return []

    def _emit_for_state(self, text: str, *counts: Any, **more: Any) -> list[SemanticEvent]:
        if not self._held:
            return list(super()._emit_for_state(text, *counts, **more))
        self._held.append((text, counts, more))
        # At the end of the stream, the lexer lets go of what may have been the beginning of a function.
        return [] if str(self.config.terminals[FUNCTION]).startswith(self._behind()) else self._release()

    def _behind(self) -> str:
        """Return the text behind the opener, without white space before it."""
        return "".join(text for text, *_ in self._held[1:]).lstrip()

    def _release(self) -> list[SemanticEvent]:
        """Return what was held back as text of the place where the opener stands."""
        held, self._held = self._held, []
        self.state, self.tool_index = self._before
        events: list[SemanticEvent] = []
        for text, counts, more in held:
            events += super()._emit_for_state(text, *counts, **more)
        return events

"""libcst, imported when it is first used.

Its import costs more than the rest of a short command, and `vpatch list` or `vpatch fetch` parse no tree. Overlays are
data built from edits, so every command imports the edits; this module keeps libcst out of those that never parse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libcst import *
else:

    def __getattr__(name: str) -> Any:
        import libcst

        value = globals()[name] = getattr(libcst, name)
        return value

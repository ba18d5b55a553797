"""libcst, imported on first use.

Its import takes longer than the rest of a short command. Every command imports the edits, since overlays are made of
them, but `vpatch list` and `vpatch fetch` parse nothing.
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

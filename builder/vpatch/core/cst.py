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
        try:
            import libcst
            import libcst.native  # libcst itself imports it late, when it parses
        except ImportError as error:
            from vpatch.installation import cannot_load

            raise cannot_load("libcst", error) from error
        value = globals()[name] = getattr(libcst, name)
        return value

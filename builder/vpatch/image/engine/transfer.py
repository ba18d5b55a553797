"""How far the engine is with a pull or a push, from the lines that it sends meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vpatch.image.watch import Phase

_ENDED = frozenset({"Download complete", "Pull complete", "Pushed"})

Line = Mapping[str, Any]


def followed(lines: Iterable[Line], ref: str, phase: Phase, verbs: Mapping[str, str]) -> Iterator[Line]:
    """Yield the engine's lines, and show the bytes of all layers together.

    `verbs` are names of phases by the status that the engine gives a layer, in order. While one layer is behind, the
    phase is the one of that layer, so that it never changes back.
    """
    layers: dict[str, dict[str, tuple[int, int]]] = {status: {} for status in verbs}
    phase(f"{next(iter(verbs.values()))} {ref}")
    for line in lines:
        yield line
        layer, status, detail = str(line.get("id")), line.get("status"), line.get("progressDetail") or {}
        if status in layers and detail.get("total"):
            layers[status][layer] = (min(detail.get("current") or 0, detail["total"]), detail["total"])
        elif status in _ENDED:
            for known in layers.values():
                if layer in known:
                    known[layer] = (known[layer][1],) * 2
        started = [(verbs[status], known.values()) for status, known in layers.items() if known]
        behind = (one for one in started if any(done < total for done, total in one[1]))
        if started:
            verb, sizes = next(behind, started[-1])
            whole = max(sum(total for _, total in known.values()) for known in layers.values())
            phase(f"{verb} {ref}", sum(done for done, _ in sizes), whole)

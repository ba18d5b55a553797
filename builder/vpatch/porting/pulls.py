"""Read the patch of one of vLLM's pull requests."""

from __future__ import annotations

import os
from dataclasses import replace
from urllib.parse import urlsplit

from vpatch.errors import Failure, Problem
from vpatch.installation import needing
from vpatch.porting.diffs import Carried
from vpatch.porting.kept import FAILED
from vpatch.porting.letters import VLLM
from vpatch.porting.sources import BYTES, patches, with_changes

PULLS = "https://github.com/vllm-project/vllm/pull"
VARIABLE = "VPATCH_PULLS"


def pulled(number: int, *, python_only: bool = False) -> tuple[Carried, ...]:
    """Return the patches of a pull request's commits that change modules, each with its link.

    Args:
        number: the number of the pull request.
        python_only: as for `kept`.

    Raises:
        Failure: it cannot be fetched, or is no patch of vLLM.
    """
    with needing("fetch", "cannot fetch"):
        from vpatch.net.document import fetched
    site = os.environ.get(VARIABLE) or PULLS
    if not _is_of_web(site):
        raise Failure(Problem(f"bad {VARIABLE}", site, "it is no address of the web", hint=f"such as {PULLS}"))
    where = f"pull request {number}"
    data = fetched(f"{site.rstrip('/')}/{number}.patch", BYTES)
    if data.lstrip()[:1] == b"<":
        raise Failure(Problem(FAILED, where, "the server answers with a page for browsers, not with a patch"))
    found = patches(data, where, file=f"{number}.patch", otherwise=f"pr{number}", python_only=python_only)
    link = f"{VLLM}{number}"
    return tuple(
        replace(one, upstream=tuple(dict.fromkeys((link, *one.upstream)))) for one in with_changes(found, where)
    )


def _is_of_web(address: str) -> bool:
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)

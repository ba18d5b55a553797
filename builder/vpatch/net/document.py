"""Read a document of the web as a whole, up to a bound."""

from __future__ import annotations

from vpatch.errors import Failure, Problem
from vpatch.net import session as http
from vpatch.net import size


def fetched(url: str, most: int) -> bytes:
    """Return what a server answers, unpacked.

    Args:
        url: the address; redirects are followed.
        most: the bound, in bytes.

    Raises:
        Failure: there is no answer, another than 200, or one that is too large or too slow.
    """
    parts, received = list[bytes](), 0
    try:
        with http.Session() as session, session.get(url, timeout=http.TIMEOUT, stream=True) as answer:
            if answer.status_code != 200:
                raise Failure(Problem("cannot fetch", http.shown(url), http.answers(answer)))
            for part in answer.iter_content(1 << 16):
                received += len(part)
                if received > most:
                    raise http.RefusedError(f"it has more than {size(most)}")
                parts.append(part)
    except OSError as error:  # as those of requests are
        raise Failure(Problem("cannot fetch", http.shown(url), http.cause(error))) from error
    return b"".join(parts)

"""One repository of a registry: its answers, or why there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol, TypeVar
from urllib.parse import urljoin

import requests

from vpatch.errors import Failure, Problem
from vpatch.image.registry import session as sessions
from vpatch.image.registry.hosts import is_address, is_private, login_command
from vpatch.image.registry.login import DeniedError
from vpatch.image.registry.reference import Reference
from vpatch.image.shapes import read_json
from vpatch.net.error_text import answers, cause, shown

ATTEMPTS = 3  # times that a blob is begun before vpatch gives up

Given = TypeVar("Given")


class Body(Protocol):
    """A body that can be sent again: of a known length, and begun anew each time."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...


class PassingError(Failure):
    """A failure that another try may not meet."""


class RefusedError(Failure):
    """The user may not do that."""


class Repository:
    """The repository of `ref`, for what `doing` says when it fails: `cannot read`, `cannot push`."""

    def __init__(self, ref: Reference, doing: str = "cannot read") -> None:
        self.ref, self._doing = ref, doing
        self._session = sessions.Session(ref.host)

    def ask(
        self,
        method: str,
        path: str,
        *,
        expect: Collection[int] = (200,),
        missing: str = "no such image",
        data: bytes | Body | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Give the answer, to be closed; `path` is relative to the repository or an address that the registry gave.

        Raises:
            RefusedError: a 401 or a 403.
            PassingError: a server that is busy or gone, in the middle of what can be begun anew.
            Failure: no answer, or one that is not of `expect`; a 404 means `missing`.
        """
        again = method in {"POST", "PUT"}  # the session itself tries the others again
        try:
            url = urljoin(f"{self._session.origin}/v2/{self.ref.repository}/", path)
            if not is_address(url):
                raise self.failure("it sends to what is no address")
            if not is_private(url):
                raise self.failure(f"it sends to {shown(url)}, which is not https")
            stream = method == "GET"
            answer = self._session.request(method, url, data=data, headers=headers, stream=stream)
        except DeniedError as error:
            raise self._told(error.status, str(error)) from None
        except requests.ReadTimeout as error:
            raise self.failure(f"no answer within {sessions.patience(method):g} s", again=again) from error
        except (OSError, ValueError) as error:  # ValueError: addresses that are none
            raise self.failure(cause(error), again=again) from error
        if answer.status_code in expect:
            return answer
        answer.close()
        status = answer.status_code
        if status == requests.codes.not_found:
            raise self.failure(missing)
        busy = status in sessions.BUSY and status != requests.codes.too_many_requests
        raise self._told(status, answers(answer) + _code(answer, stream=stream), again=again and busy)

    def failure(self, why: str, *, again: bool = False) -> Failure:
        """Give the failure that says why it cannot be done; if `again`, one that may pass."""
        kind = PassingError if again else Failure
        return kind(Problem(self._doing, str(self.ref), why))

    def _told(self, status: int, why: str, *, again: bool = False) -> Failure:
        log_in = f"log in with {login_command(self.ref.host)}"
        if status in (requests.codes.unauthorized, requests.codes.forbidden):
            refused = self._session.login.unfound or self.failure(f"private, or not there: {log_in}")
            return RefusedError(*refused.problems)
        if status == requests.codes.too_many_requests:
            return self.failure(f"too many requests: wait, or {log_in}")
        return self.failure(why or f"its token server answers {status}", again=again)


def persist(action: Callable[[], Given]) -> Given:
    """Do what may fail in passing, a few times.

    Raises:
        Failure: it failed each time, or not in passing.
    """
    for attempt in range(ATTEMPTS - 1):
        try:
            return action()
        except PassingError:
            time.sleep(sessions.BACKOFF * 2**attempt)
    return action()


def _code(answer: requests.Response, *, stream: bool) -> str:
    """Give what registries call the error, such as ` (MANIFEST_INVALID)`; their prose may have anything in it."""
    try:
        code = "" if stream else read_json(answer.content)["errors"][0]["code"]
    except (ValueError, LookupError, TypeError):
        return ""
    return f" ({code})" if isinstance(code, str) and code.replace("_", "").isalpha() else ""

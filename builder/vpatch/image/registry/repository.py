"""Repositories of a registry: requests, their retries and failures, and blobs, which are checked by their digests."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urljoin

import requests

from vpatch.errors import Failure, Problem, UnknownName
from vpatch.foreign import parse_json
from vpatch.image.registry import session as sessions
from vpatch.image.registry.reference import Reference, is_address, is_private, login_command
from vpatch.net import session as http
from vpatch.net.ranges import CutError, blocks
from vpatch.net.session import answers, cause, host_of, shown

ATTEMPTS = 3  # for each blob
NO_IMAGE = "no such image"

T = TypeVar("T")


class TransientError(Failure):
    """Transient; retry."""


class ForbiddenError(Failure):
    """The user is not allowed to do this."""


class MissingError(Failure):
    """The registry answers 404."""


class NoImageError(MissingError, UnknownName):
    """It has no such image."""


@dataclass(frozen=True)
class Descriptor:
    """A reference to a blob."""

    media_type: str
    digest: str  # `sha256:<hex>`
    size: int  # bytes

    @property
    def json(self) -> dict[str, Any]:
        """The descriptor as a manifest has it."""
        return {"mediaType": self.media_type, "size": self.size, "digest": self.digest}


class Repository:
    """The repository of `ref`. `task` is what its failures are called: `cannot read`, `cannot push`."""

    def __init__(self, ref: Reference, task: str = "cannot read") -> None:
        self.ref, self._task = ref, task
        self._session = sessions.RegistrySession(ref.host)

    def ask(
        self, method: str, path: str, *, expect: Collection[int] = (200,), missing: str = "", **body: Any
    ) -> requests.Response:
        """Send a request and return the answer, one of `expect`, for the caller to close.

        `path` is relative to the repository, or an address that the registry gave; `missing` explains a 404, without it
        there is no such image; `body` is `data` and `headers`. POST and PUT are not repeated: if the server is busy or
        gone, they raise `TransientError`.
        """
        again, stream = method in {"POST", "PUT"}, method == "GET"
        try:
            url = urljoin(f"{self._session.origin}/v2/{self.ref.repository}/", path)
            if not is_address(url):
                raise self.failure("it sends to what is no address")
            if not is_private(url):
                raise self.failure(f"it sends to {shown(url)}, which is not https")
            answer = self._session.request(url, method, stream=stream, **body)
        except sessions.DeniedError as error:
            raise self._denied(error.status, str(error)) from None
        except requests.ReadTimeout as error:
            why = f"{host_of(error, url)}: no answer within {sessions.timeout(method):g} s"
            raise self.failure(why, again=again) from error
        except (OSError, ValueError) as error:  # ValueError: invalid addresses
            host = f"{host_of(error, url)}: " if isinstance(error, requests.RequestException) else ""
            raise self.failure(f"{host}{cause(error)}", again=again) from error
        if answer.status_code in expect:
            return answer
        answer.close()
        status = answer.status_code
        if status == requests.codes.not_found:
            if not missing:
                raise NoImageError(*self.failure(NO_IMAGE).problems)
            raise MissingError(*self.failure(missing).problems)
        busy = status in http.BUSY and status != requests.codes.too_many_requests
        raise self._denied(status, answers(answer) + _error_code(answer, stream=stream), again=again and busy)

    def failure(self, why: str, *, again: bool = False) -> Failure:
        """Return a failure with its reason; if `again`, a transient one."""
        kind = TransientError if again else Failure
        return kind(Problem(self._task, str(self.ref), why))

    def _denied(self, status: int, why: str, *, again: bool = False) -> Failure:
        log_in = f"log in with `{login_command(self.ref.host)}`"
        if status in (requests.codes.unauthorized, requests.codes.forbidden):
            denied = self._session.login.credentials_error or self.failure(f"private, or not there: {log_in}")
            return ForbiddenError(*denied.problems)
        if status == requests.codes.too_many_requests:
            return self.failure(f"too many requests: wait, or {log_in}")
        return self.failure(why or f"its token server answers {status}", again=again)


def _error_code(answer: requests.Response, *, stream: bool) -> str:
    """Return a registry's error code, such as ` (MANIFEST_INVALID)`, but not its text, which may hold anything."""
    try:
        code = "" if stream else parse_json(answer.content)["errors"][0]["code"]
    except (ValueError, LookupError, TypeError):
        return ""
    return f" ({code})" if isinstance(code, str) and code.replace("_", "").isalpha() else ""


def retry(action: Callable[[], T]) -> T:
    """Call `action`, a few times if it fails with a transient error."""
    for attempt in range(ATTEMPTS - 1):
        try:
            return action()
        except TransientError:
            time.sleep(http.BACKOFF * 2**attempt)
    return action()


def read_blob(repository: Repository, blob: Descriptor, progress: Callable[[int], object]) -> Generator[bytes]:
    """Yield the bytes of a blob as they come; `progress` gets the size of each. Only the end proves them right."""
    digest, received = hashlib.sha256(), 0
    with repository.ask("GET", f"blobs/{blob.digest}", missing=f"the blob {blob.digest} is not there") as answer:
        try:
            for block in blocks(answer):
                received += len(block)
                if received > blob.size:
                    break
                digest.update(block)
                progress(len(block))
                yield block
        except CutError as error:
            raise repository.failure(f"the blob {blob.digest} is cut: {error}", again=True) from error
    if received < blob.size:
        raise repository.failure(f"the blob {blob.digest} is cut: {received} of {blob.size} bytes came", again=True)
    if received > blob.size or digest.hexdigest() != blob.digest.partition(":")[2]:
        raise repository.failure(f"the blob {blob.digest} is not what its digest says")

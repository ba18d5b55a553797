"""The session in which a repository is asked: oras's, with time limits and another try for servers that are busy."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import requests
from oras.provider import Registry
from urllib3.util import Retry

from vpatch.image.registry.credentials import find_credentials
from vpatch.image.registry.hosts import origin_of, same_origin
from vpatch.image.registry.login import Login
from vpatch.net import error_text
from vpatch.net.session import Adapter
from vpatch.net.session import Session as Redirecting

BACKOFF = 0.2  # seconds, doubled with each try
RETRIES = 3
BUSY = (429, 500, 502, 503, 504)
COMMIT = 600.0  # seconds in which a registry must have put away a blob that it was sent, which may be of gigabytes

# What oras wraps around it sleeps for minutes, also when the user is simply not let in.
_do_request = inspect.unwrap(Registry.do_request)


class _Timed(Adapter):
    """An adapter that waits for no server for ever: oras gives no time limit."""

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        options["timeout"] = (error_text.TIMEOUT, patience(request.method))
        self.pace.granted += patience(request.method) - error_text.TIMEOUT
        return super().send(request, *arguments, **options)


class _Session(Redirecting):
    """A session in which no credentials follow a redirect to another server, those of the user's netrc included."""

    def __init__(self, of_oras: requests.Session) -> None:
        super().__init__()
        self.cookies = of_oras.cookies  # it takes none

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        """Take the credentials off a redirected request, unless it goes to the same server."""
        if not same_origin(str(prepared_request.url), response.url):
            prepared_request.headers.pop("Authorization", None)


def patience(method: str | None) -> float:
    """Give the seconds of silence after which a registry counts as gone."""
    return COMMIT if method == "PUT" else error_text.TIMEOUT


class Session:
    """Asks the registry `host`, named as in a `Reference`, about one repository of it."""

    def __init__(self, host: str) -> None:
        self.origin = origin_of(host)
        self._registry = Registry()
        session = self._registry.session = _Session(self._registry.session)
        retry = Retry(
            RETRIES,
            backoff_factor=BACKOFF,
            status_forcelist=BUSY,
            allowed_methods=("GET", "HEAD"),  # what sends a body is begun anew
            raise_on_status=False,
            respect_retry_after_header=False,  # it may be an hour
        )
        for scheme in ("https://", "http://"):
            session.mount(scheme, _Timed(max_retries=retry))
        session.headers["Accept-Encoding"] = "identity"  # digests are of the bytes as they are
        session.trust_env = self.origin.startswith("https:")  # no proxy can reach this machine's loopback
        self.login = self._registry.auth = Login(session, self.origin, lambda: find_credentials(host))

    def request(
        self, method: str, url: str, *, data: Any = None, headers: Mapping[str, str] | None = None, stream: bool = False
    ) -> requests.Response:
        """Ask, logging in where the registry wants it.

        Raises:
            DeniedError: the user is not let in.
            OSError, ValueError: the registry does not answer, or its address is none.
        """
        answer: requests.Response = _do_request(self._registry, url, method, data, dict(headers or {}), None, stream)
        return answer

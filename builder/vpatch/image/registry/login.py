"""Answers a registry's demand for credentials, in the place of oras's own ways of logging in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import requests
from oras.auth.utils import parse_auth_header
from requests.auth import HTTPBasicAuth

from vpatch.errors import Failure
from vpatch.image.registry.credentials import Credentials
from vpatch.image.registry.hosts import is_private, same_origin

Headers = dict[str, Any]
Sign = Callable[[requests.PreparedRequest], requests.PreparedRequest]


class DeniedError(Exception):
    """A registry or its token server does not let the user in; `status` is its answer, 0 where `why` says more."""

    def __init__(self, status: int, why: str = "") -> None:
        super().__init__(why)
        self.status = status


class Login:
    """Logs in to one repository where its registry asks for it, by Basic or Bearer, with the credentials `find` gives.

    oras's own keep one token for all repositories, send an expired one again, take Basic for a token server, and know
    no identity tokens. Where `find` fails, the user stays anonymous, and `unfound` says why.
    """

    def __init__(self, session: requests.Session, origin: str, find: Callable[[], Credentials | None]) -> None:
        self.unfound: Failure | None = None
        self._session, self._origin, self._find = session, origin, find
        self._answer: Sign = _nobody
        session.auth = self

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Put the credentials on a request to the registry, and on no other."""
        return self._answer(request) if same_origin(request.url or "", self._origin) else request

    def authenticate_request(
        self,
        original: requests.Response,
        headers: Headers,
        refresh: bool = False,  # noqa: FBT001, FBT002 - oras calls it so
    ) -> tuple[Headers, bool]:
        """Get ready for a second try of a request that was refused, and say that there is to be one.

        Raises:
            DeniedError: there is no use in it.
        """
        original.close()
        demand = original.headers.get("WWW-Authenticate", "")
        known = self._credentials()
        if demand.lower().startswith("basic") and known and known.user:
            self._answer = HTTPBasicAuth(known.user.encode(), known.secret.encode())
            return headers, True
        if not demand.lower().startswith("bearer"):
            raise DeniedError(original.status_code)
        self._answer = _bearer(self._token(demand, known))
        return headers, True

    def _credentials(self) -> Credentials | None:
        try:
            return self._find()
        except Failure as failure:
            self.unfound = failure
            return None

    def _token(self, demand: str, known: Credentials | None) -> str:
        asked = parse_auth_header(demand)
        if not is_private(asked.realm or ""):
            raise DeniedError(0, f"it sends for a token to {asked.realm!r}, which is not https")
        scopes = (asked.scope or "").split()
        about = {"service": asked.service} if asked.service else {}
        if known and not known.user:  # OAuth2
            form = {**about, "grant_type": "refresh_token", "client_id": "vpatch", "refresh_token": known.secret}
            answer = self._session.post(asked.realm, data={**form, "scope": " ".join(scopes)}, auth=_nobody)
        else:
            login = HTTPBasicAuth(known.user.encode(), known.secret.encode()) if known else _nobody
            answer = self._session.get(asked.realm, params={**about, "scope": scopes}, auth=login)
        with answer:
            if not answer.ok:
                raise DeniedError(answer.status_code)
            try:
                body = answer.json()
                token = body.get("token") or body["access_token"]
            except (ValueError, LookupError, AttributeError) as error:
                raise DeniedError(0, "its token server gives no token") from error
            return str(token)


def _nobody(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _bearer(token: str) -> Sign:
    def sign(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return sign

"""Answers a registry's demand for credentials, in the place of oras's own ways of logging in."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import requests
from oras.auth.utils import parse_auth_header
from requests.auth import HTTPBasicAuth

from vpatch.errors import Failure
from vpatch.image.registry.credentials import Credentials
from vpatch.image.registry.hosts import host_of, is_address, is_private, origin, same_origin
from vpatch.image.shapes import read_json

log = logging.getLogger(__name__)

Headers = dict[str, Any]
Sign = Callable[[requests.PreparedRequest], requests.PreparedRequest]

_FOREIGN = "it is not the registry, and gets no login"


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
        self._named: set[str] = set()
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
        """Prepare the second try of a refused request.

        Only an answer of the registry's own origin is a demand for credentials: a blob's host, to which the registry
        redirects, could name a token server of its own.

        Raises:
            DeniedError: a second try is of no use.
        """
        original.close()
        if not same_origin(original.url, self._origin):
            raise DeniedError(0, f"{host_of(original.url)} answers {original.status_code}: {_FOREIGN}")
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
        self._check_realm(asked.realm or "")
        scopes = (asked.scope or "").split()
        about = {"service": asked.service} if asked.service else {}
        if known and not known.user:  # OAuth2
            form = {**about, "grant_type": "refresh_token", "client_id": "vpatch", "refresh_token": known.secret}
            form["scope"] = " ".join(scopes)
            answer = self._session.post(asked.realm, data=form, auth=_nobody, allow_redirects=False)
        else:
            login = HTTPBasicAuth(known.user.encode(), known.secret.encode()) if known else _nobody
            query = {**about, "scope": scopes}
            answer = self._session.get(asked.realm, params=query, auth=login, allow_redirects=False)
        with answer:
            if answer.is_redirect:
                raise DeniedError(0, f"its token server {host_of(answer.url)} redirects, and a login is not passed on")
            if not answer.ok:
                raise DeniedError(answer.status_code)
            try:
                body = read_json(answer.content)
                token = body.get("token") or body["access_token"]
            except (ValueError, LookupError, AttributeError) as error:
                raise DeniedError(0, "its token server gives no token") from error
            return str(token)

    def _check_realm(self, realm: str) -> None:
        """Refuse a token server that may not have the user's credentials; name one on another host, with `-v`.

        As Docker does: HTTPS on any host, plain HTTP on loopback if the registry itself is asked so.
        """
        if not is_address(realm):
            raise DeniedError(0, f"it sends for a token to {realm!r}, which is no address")
        if not (realm.startswith("https://") or (self._origin.startswith("http://") and is_private(realm))):
            raise DeniedError(0, f"it sends for a token to {realm!r}, which is not https")
        if not same_origin(realm, self._origin) and realm not in self._named:
            self._named.add(realm)
            log.info("%s: its token server is %s", host_of(self._origin), origin(realm))


def _nobody(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _bearer(token: str) -> Sign:
    def sign(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return sign

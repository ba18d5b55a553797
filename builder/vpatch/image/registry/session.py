"""The HTTP session with a registry: oras's, with our own login, time limits and retries.

The user's credentials are those that `docker login` stored, in the Docker config or with a credential helper.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import requests
from oras.auth.utils import parse_auth_header
from oras.provider import Registry
from requests.auth import HTTPBasicAuth

from vpatch.errors import Failure, Problem
from vpatch.foreign import parse_json
from vpatch.image.registry.reference import host_of, is_address, is_private, origin, registry_url, same_origin
from vpatch.net import session as http

log = logging.getLogger(__name__)

COMMIT = 600.0  # seconds in which a registry must store a blob that it received, which may have gigabytes

# Without oras's own retries, which sleep for minutes even if the user is simply not let in.
_do_request = inspect.unwrap(Registry.do_request)

Sign = Callable[[requests.PreparedRequest], requests.PreparedRequest]


@dataclass(frozen=True)
class Credentials:
    """A user's name and password; with an empty name, an identity token, which buys access tokens."""

    user: str = field(repr=False)
    secret: str = field(repr=False)


def find_credentials(host: str) -> Credentials | None:
    """Return the user's credentials, if any, for a registry, `host` as in a `Reference`."""
    from docker.auth import load_config
    from docker.errors import DockerException

    helper = None
    try:
        config = load_config()
        helper = config.get_credential_store(host)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a helper that is not installed is reported below
            found = config.resolve_authconfig(host)
    # The libraries' messages may hold what the helper printed, so they are not quoted.
    except (DockerException, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"docker-credential-{helper} fails" if helper else "the Docker config is not understood"
        raise Failure(Problem("cannot log in", host, f"{why} ({type(error).__name__})")) from None
    # Keys of a config file start with small letters, those of a helper with capitals.
    known = {key.lower(): value for key, value in (found or {}).items()}
    if known.get("identitytoken"):
        return Credentials("", known["identitytoken"])
    if known.get("username"):
        return Credentials(known["username"], known.get("password") or "")
    return None


class DeniedError(Exception):
    """A registry or its token server refused the login; `status` is its answer, 0 if the message says more."""

    def __init__(self, status: int, why: str = "") -> None:
        super().__init__(why)
        self.status = status


class Login:
    """Logs in to one repository when its registry asks for it, by Basic or Bearer, with the credentials of `find`.

    oras's own logins keep one token for all repositories, send an expired one again, use Basic with token servers, and
    know no identity tokens. If `find` fails, the user stays anonymous, and `credentials_error` is why.
    """

    def __init__(self, session: requests.Session, origin: str, find: Callable[[], Credentials | None]) -> None:
        self.credentials_error: Failure | None = None
        self._session, self._origin, self._find = session, origin, find
        self._sign: Sign = _anonymous
        self._named: set[str] = set()
        session.auth = self

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Sign a request to the registry, and no other request."""
        return self._sign(request) if same_origin(request.url or "", self._origin) else request

    def authenticate_request(
        self, original: requests.Response, headers: dict[str, Any], **_: object
    ) -> tuple[dict[str, Any], bool]:
        """Prepare the second attempt of a refused request; raise `DeniedError` if one is pointless. oras calls this."""
        original.close()
        # The host of a blob, to which the registry redirects, could name a token server of its own.
        if not same_origin(original.url, self._origin):
            why = f"{host_of(original.url)} answers {original.status_code}: it is not the registry, and gets no login"
            raise DeniedError(0, why)
        demand = original.headers.get("WWW-Authenticate", "")
        try:
            known = self._find()
        except Failure as failure:
            self.credentials_error, known = failure, None
        if demand.lower().startswith("basic") and known and known.user:
            self._sign = HTTPBasicAuth(known.user.encode(), known.secret.encode())
            return headers, True
        if not demand.lower().startswith("bearer"):
            raise DeniedError(original.status_code)
        self._sign = partial(_bearer, self._token(demand, known))
        return headers, True

    def _token(self, demand: str, known: Credentials | None) -> str:
        asked = parse_auth_header(demand)
        self._check_realm(asked.realm or "")
        scopes = (asked.scope or "").split()
        query: dict[str, Any] = {"service": asked.service} if asked.service else {}
        if known and not known.user:  # OAuth2
            form = {**query, "grant_type": "refresh_token", "client_id": "vpatch", "refresh_token": known.secret}
            form["scope"] = " ".join(scopes)
            answer = self._session.post(asked.realm, data=form, auth=_anonymous, allow_redirects=False)
        else:
            login = HTTPBasicAuth(known.user.encode(), known.secret.encode()) if known else _anonymous
            query["scope"] = scopes
            answer = self._session.get(asked.realm, params=query, auth=login, allow_redirects=False)
        with answer:
            if answer.is_redirect:
                raise DeniedError(0, f"its token server {host_of(answer.url)} redirects, and a login is not passed on")
            if not answer.ok:
                raise DeniedError(answer.status_code)
            try:
                body = parse_json(answer.content)
                token = body.get("token") or body["access_token"]
            except (ValueError, LookupError, AttributeError) as error:
                raise DeniedError(0, "its token server gives no token") from error
            return str(token)

    def _check_realm(self, realm: str) -> None:
        # Docker's rule: HTTPS on any host, plain HTTP on loopback if the registry itself is asked that way.
        if not is_address(realm):
            raise DeniedError(0, f"it sends for a token to {realm!r}, which is no address")
        if not (realm.startswith("https://") or (self._origin.startswith("http://") and is_private(realm))):
            raise DeniedError(0, f"it sends for a token to {realm!r}, which is not https")
        if not same_origin(realm, self._origin) and realm not in self._named:
            self._named.add(realm)
            log.info("%s: its token server is %s", host_of(self._origin), origin(realm))


def _anonymous(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _bearer(token: str, request: requests.PreparedRequest) -> requests.PreparedRequest:
    request.headers["Authorization"] = f"Bearer {token}"
    return request


class _TimedAdapter(http.Adapter):
    """An adapter with a time limit for every answer; oras sets none."""

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        options["timeout"] = (http.TIMEOUT, timeout(request.method))
        self.pace.granted += timeout(request.method) - http.TIMEOUT
        return super().send(request, *arguments, **options)


class _SafeSession(http.Session):
    """A session whose credentials, the user's netrc included, do not follow a redirect to another server."""

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        if not same_origin(str(prepared_request.url), response.url):
            prepared_request.headers.pop("Authorization", None)


def timeout(method: str | None) -> float:
    """Return the seconds of silence after which a registry counts as gone."""
    return COMMIT if method == "PUT" else http.TIMEOUT


class RegistrySession:
    """Sends requests about one repository to the registry `host`, named as in a `Reference`; logs in if asked to."""

    def __init__(self, host: str) -> None:
        self.origin = registry_url(host)
        registry, session = Registry(), _SafeSession()
        session.cookies = registry.session.cookies  # which takes none
        registry.session = session
        for scheme in ("https://", "http://"):  # a request with a body is repeated by its caller
            session.mount(scheme, _TimedAdapter(allowed_methods=("GET", "HEAD")))
        session.headers["Accept-Encoding"] = "identity"  # digests are of the plain bytes
        session.trust_env = self.origin.startswith("https:")  # no proxy can reach this machine's loopback
        self.login = registry.auth = Login(session, self.origin, lambda: find_credentials(host))
        # Of an address and a method; raises what requests does, and `DeniedError`.
        self.request: Callable[..., requests.Response] = partial(_do_request, registry)

"""The session in which indexes and the servers of wheels are asked."""

from __future__ import annotations

from urllib.parse import urljoin

import requests
from requests.auth import HTTPBasicAuth
from requests.utils import get_netrc_auth
from urllib3.util import Retry, parse_url

from vpatch.net.adapter import Adapter
from vpatch.release.index_config import Settings, origin

BACKOFF = 0.2  # seconds, doubled with each try
RETRIES = 3
BUSY = (429, 500, 502, 503, 504)


class RedirectError(OSError):
    """A server redirects to what is no address of the web."""


class Session(requests.Session):
    """A session that follows a redirect over HTTP and HTTPS only, and says so of any other."""

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Where a response redirects to, None if it does not.

        Raises:
            RedirectError: to a file, say, or to what cannot be parsed.
        """
        target = super().get_redirect_target(resp)
        if target is not None and not _of_the_web(resp.url, target):
            raise RedirectError(f"it redirects to {target.partition('?')[0][:200]!r}, which is no address of the web")
        return target


def _of_the_web(base: str, target: str) -> bool:
    try:
        joined = urljoin(base, target)
        return joined.startswith(("http://", "https://")) and parse_url(joined).host is not None
    except ValueError:
        return False


def open_session(settings: Settings) -> requests.Session:
    """Give a session that tries again, trusts the user's certificates and knows the indexes' credentials."""
    session = Session()
    # A server's Retry-After may be an hour: a command line gives up before that.
    retry = Retry(
        RETRIES,
        backoff_factor=BACKOFF,
        status_forcelist=BUSY,
        raise_on_status=False,
        respect_retry_after_header=False,
    )
    for scheme in ("https://", "http://"):
        session.mount(scheme, Adapter(max_retries=retry))
    if settings.bundle:  # requests itself prefers REQUESTS_CA_BUNDLE to this
        session.verify = settings.bundle
    if settings.logins:

        def log_in(request: requests.PreparedRequest) -> requests.PreparedRequest:
            url = request.url or ""
            login = settings.logins.get(origin(url)) or get_netrc_auth(url)
            return HTTPBasicAuth(*login)(request) if login else request

        session.auth = log_in
    return session

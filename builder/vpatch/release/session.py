"""The session in which indexes and the servers of wheels are asked."""

from __future__ import annotations

import requests
from requests.adapters import HTTPAdapter
from requests.auth import HTTPBasicAuth
from requests.utils import get_netrc_auth
from urllib3.util import Retry

from vpatch.release.settings import Settings, origin

BACKOFF = 0.2  # seconds, doubled with each try
RETRIES = 3
BUSY = (429, 500, 502, 503, 504)


def open_session(settings: Settings) -> requests.Session:
    """Give a session that tries again, trusts the user's certificates and knows the indexes' credentials."""
    session = requests.Session()
    # A server's Retry-After may be an hour: a command line gives up before that.
    retry = Retry(
        RETRIES,
        backoff_factor=BACKOFF,
        status_forcelist=BUSY,
        raise_on_status=False,
        respect_retry_after_header=False,
    )
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    if settings.bundle:  # requests itself prefers REQUESTS_CA_BUNDLE to this
        session.verify = settings.bundle
    if settings.logins:

        def log_in(request: requests.PreparedRequest) -> requests.PreparedRequest:
            url = request.url or ""
            login = settings.logins.get(origin(url)) or get_netrc_auth(url)
            return HTTPBasicAuth(*login)(request) if login else request

        session.auth = log_in
    return session

"""Who the user is to a registry: what `docker login` kept, in the Docker config or with a helper."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from vpatch.errors import Failure, Problem


@dataclass(frozen=True)
class Credentials:
    """A user's name and password, or with no name an identity token, which buys access tokens."""

    user: str = field(repr=False)
    secret: str = field(repr=False)


def find_credentials(host: str) -> Credentials | None:
    """Give the credentials for a registry, named as in a `Reference`; None where the user has none.

    Raises:
        Failure: the Docker config is not understood, or its helper for this registry fails.
    """
    from docker.auth import load_config
    from docker.errors import DockerException

    helper = None
    try:
        config = load_config()
        helper = config.get_credential_store(host)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a helper is not installed is said below
            found = config.resolve_authconfig(host)
    # What libraries say of it may hold what the helper printed: it is not quoted.
    except (DockerException, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"docker-credential-{helper} fails" if helper else "the Docker config is not understood"
        raise Failure(Problem("cannot log in", host, f"{why} ({type(error).__name__})")) from None
    # A config file's keys begin with small letters, a helper's with capitals.
    known = {key.lower(): value for key, value in (found or {}).items()}
    if known.get("identitytoken"):
        return Credentials("", known["identitytoken"])
    if known.get("username"):
        return Credentials(known["username"], known.get("password") or "")
    return None

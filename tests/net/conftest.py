"""The loopback index."""

from tests.loopback import settings, site

__all__ = ["settings", "site"]

"""The loopback index."""

from tests.loopback import index, settings

__all__ = ["index", "settings"]

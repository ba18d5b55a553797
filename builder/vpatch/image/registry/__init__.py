"""Images where they lie: named, read and made in a registry, over its HTTP API and without an engine."""

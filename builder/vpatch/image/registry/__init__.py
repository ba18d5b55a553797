"""Images in a registry, read and built without an engine."""

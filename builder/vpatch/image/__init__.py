"""Patched images: a changeset as one layer on a base, in an engine or straight in a registry."""

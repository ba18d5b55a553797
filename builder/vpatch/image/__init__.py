"""Patched images: a changeset as one layer on a base, built in a Docker engine or directly in a registry."""

"""Patched images: a changeset as one layer on a base, built in a Docker engine or directly in a registry.

What goes wrong in an image, an engine or a registry is raised as `vpatch.errors.Failure`.
"""

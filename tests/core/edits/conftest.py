"""Fragments of code are tested here, whose names nobody binds."""

from tests.snippets import names_of_fragments

__all__ = ["names_of_fragments"]

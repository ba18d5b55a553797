"""Let these tests use fragments of code whose names nothing binds."""

from tests.snippets import names_of_fragments

__all__ = ["names_of_fragments"]

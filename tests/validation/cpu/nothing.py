"""A probe that finds nothing: it only lets a tree's process be made, and with it the tree's bytecode."""


def main(_home: str) -> None:
    """Return nothing."""

"""Spelling of a machine's name."""

SPELLINGS = {"ppc64el": "ppc64le", "x64": "x86_64"}


def machine_name(machine: str) -> str:
    """Return the name that vLLM knows, in lower case."""
    return SPELLINGS.get(machine.lower(), machine.lower())

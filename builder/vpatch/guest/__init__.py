"""Code that other interpreters run, as text or as copies: it imports the standard library only, and each other."""

from __future__ import annotations

from pathlib import Path


def script(run: str, *parts: str) -> str:
    """Return the code of modules of this package, in this order, and then a call of the function `run` of the last.

    The function gets the arguments of `python -c CODE ARGUMENT...`. A part imports from another one only if its name
    is not `__main__`: here they share one namespace.
    """
    texts = ((f"{part}.py", Path(__file__).with_name(f"{part}.py").read_text("utf-8")) for part in parts)
    code = "".join(f"exec(compile({text!r}, {name!r}, 'exec', dont_inherit=True))\n" for name, text in texts)
    return f"{code}import sys\n{run}(*sys.argv[1:])\n"


def check_script(run: str) -> str:
    """Return the code of `check`, and of what it rests on, with a call of one of its functions."""
    return script(run, "marshalled", "record", "ask", "check")

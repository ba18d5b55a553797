"""The door says what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from vpatch.image.registry import access, layers, pulled, push

CODE = """
import sys
sys.modules[sys.argv[1]] = None
from vpatch.errors import Failure
try:
    import vpatch.image.registry.access
except Failure as failure:
    print(failure)
"""


def test_gives_what_is_behind_it() -> None:
    assert [getattr(access, name) for name in access.__all__] == [
        layers.LayeredFiles,
        push.Pushed,
        pulled.RemoteImage,
        pulled.open_image,
        push.push,
        push.tag,
    ]


@pytest.mark.parametrize("missing", ["oras", "requests", "zstandard"])
def test_says_how_to_install_the_extra(missing: str) -> None:
    ran = subprocess.run([sys.executable, "-c", CODE, missing], capture_output=True, text=True, check=True)

    assert ran.stdout.startswith(f"cannot ask a registry: {missing}")
    assert ran.stdout.endswith(": not installed: pip install 'vpatch[image]'\n")

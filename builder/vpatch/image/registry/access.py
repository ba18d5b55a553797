"""The door to this package. Where the extra `vpatch[image]` is not installed, importing this module raises the
`Failure` that says so: import it where it is used.
"""

from __future__ import annotations

from vpatch.errors import Failure, Problem

try:
    from vpatch.image.registry.layers import LayeredFiles
    from vpatch.image.registry.pulled import RemoteImage, open_image
    from vpatch.image.registry.push import Pushed, push, tag
except ModuleNotFoundError as error:
    install = "not installed: pip install 'vpatch[image]'"
    raise Failure(Problem("cannot ask a registry", str(error.name), install)) from error

__all__ = ["LayeredFiles", "Pushed", "RemoteImage", "open_image", "push", "tag"]

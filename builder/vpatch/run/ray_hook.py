"""The variables with which Ray calls the hook in a farm, `guest/vpatch_ray.py`.

They are set for every command: other programs ignore them, and a Python that `uv run` makes cannot be asked for Ray.
"""

from __future__ import annotations

from collections.abc import Mapping

from vpatch.guest.vpatch_ray import HOOK, UV

_OURS = "vpatch_ray.hook"
_OF_RAY, _UV_OF_RAY = "RAY_RUNTIME_ENV_HOOK", "RAY_ENABLE_UV_RUN_RUNTIME_ENV"


def ray_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to a command's environment.

    Below `uv run`, Ray calls uv's hook and no other, unless a variable says not to. We set it, and our hook calls uv's.
    """
    if environment.get(_OF_RAY) == _OURS:  # a run within a run, which keeps what was set before both
        return {}
    earlier = {HOOK: environment.get(_OF_RAY, ""), UV: environment.get(_UV_OF_RAY, "")}
    return {_OF_RAY: _OURS, _UV_OF_RAY: "0", **earlier}

"""Know a machine by its other names, too.

Debian says ppc64el, Windows x64.
"""

from vpatch import EnsureImport, Overlay, Part, ReplaceExpr, Shape, companion

INTERFACE = "vllm/platforms/interface.py"
SCOPE = "Platform.get_cpu_architecture"

overlay = Overlay(
    summary="Know a machine by its other names.",
    parts=(
        Part(
            name="names",
            shapes=(
                Shape(
                    name="0.20",
                    edits=(
                        EnsureImport(INTERFACE, "from vllm._vpatch.machine_names import machine_name"),
                        ReplaceExpr(
                            INTERFACE,
                            SCOPE,
                            old="platform.machine().lower()",
                            new="machine_name(platform.machine())",
                        ),
                        companion("vpatch_machine_names.companions", "machine_names"),
                    ),
                ),
            ),
        ),
    ),
)

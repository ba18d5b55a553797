"""Know a machine by its other names, too.

Debian says ppc64el, Windows x64.
"""

from vpatch import Companion, File, Overlay, Part

interface = File("vllm/platforms/interface.py")
get_cpu_architecture = interface.function("Platform.get_cpu_architecture")
helper = Companion("vpatch_machine_names.companions.machine_names")

overlay = Overlay(
    summary="Know a machine by its other names.",
    parts=(
        Part(
            "names",
            {
                "0.20": [
                    get_cpu_architecture.replace_expression(
                        "platform.machine().lower()", "machine_name(platform.machine())"
                    ),
                    helper.import_into(interface, "machine_name"),
                ]
            },
        ),
    ),
)

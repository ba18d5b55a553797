"""A receipt: each process of vLLM compares the overlays that it runs with what was applied, and says which.

vLLM loads its plugins in its API servers, its engines and its workers. Before it does, each process now compares the
files that `vpatch apply` or `vpatch build` wrote with what was written. If they are the same, it logs one line, exports
`vpatch_info` with vLLM's metrics, and holds a receipt until it ends: `vpatch ps` lists what it claims, and
`vpatch verify --pid` compares the files again. If one has changed, there is no receipt, and a warning says why; the
server runs all the same.

It changes no answer, and is applied only if you ask for it, by `--receipt`. `vpatch run` needs no overlay for this: its
farms have receipts of their own. A source checkout has no record of what vpatch wrote, so no process has a receipt
there.
"""

from vpatch import Companion, File, Need, Overlay, Part, Use, probe

from vpatch_overlays import _shared as shared

plugins = File("vllm/plugins/__init__.py")
load = plugins.function("load_general_plugins")

# The same modules as in a farm.
helper = Companion("vpatch.guest.vpatch_receipt", along=("vpatch_claim",))


def needed(_: Use) -> Need:
    """Return that no plan needs the overlay."""
    return Need(needed=False, because="it shows which overlays run, and changes no answer")


overlay = Overlay(
    summary="Each process of vLLM shows which overlays it runs: log, metric, `vpatch ps`.",
    symptoms=("You cannot tell which overlays a running server has.",),
    opt_in=True,
    needed=needed,
    releases={">=0.18": "pending: vLLM does not know of vpatch"},
    probes=(probe(shared.PROBES, "receipt"),),
    parts=(
        Part(
            "plugins",
            shapes={
                "0.18": [
                    load.insert_after("plugins_loaded = True", "hold_receipt()"),
                    helper.import_into(plugins, "hold_receipt"),
                ]
            },
        ),
    ),
)

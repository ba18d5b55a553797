"""Find what `vpatch apply` recorded in an image in a registry, by reading few of its layers."""

from __future__ import annotations

import re
from dataclasses import replace

from vpatch import manifest
from vpatch.errors import Failure, Problem, shell
from vpatch.image.applied import record_in
from vpatch.image.config import LABEL, steps_of
from vpatch.image.filesystem import Entry, Place
from vpatch.image.patch import Label
from vpatch.image.registry.image import RemoteImage
from vpatch.image.registry.layers import LayeredFiles
from vpatch.image.registry.tar import LARGE
from vpatch.net import megabytes

MOST = 1 << 30  # bytes of all layers that `vpatch inspect` reads, packed
SMALL = 32 << 20  # bytes of a layer that is searched for a record; `vpatch apply` makes one of a few MB
_NAME = "vpatch"  # what the history of a larger one has that is searched, too

_RECORD = re.compile(rf"(?P<root>.+)/(?P<info>vllm-[^/]+\.dist-info)/{re.escape(manifest.APPLIED)}")
_NOTES = tuple(f".dist-info/{name}" for name in (manifest.APPLIED, manifest.BUILT, "RECORD"))


def is_kept(entry: Entry) -> bool:
    """Whether an entry may be a file that overlays changed or added, or vpatch's record of them."""
    path = f"/{entry.path}"
    source = "/vllm/" in path and not path.endswith((".so", ".pyc"))
    return entry.size <= LARGE and (source or path.endswith(_NOTES))


def find_record(files: LayeredFiles, image: RemoteImage) -> Label:
    """Read layers from the top until one has what `vpatch apply` recorded: small ones, and any in which vpatch ran.

    The others are passed over. Whether they concern what was found is for the caller to see.

    Raises:
        Failure: none has it; the message has what was read, and how to look into the others.
    """
    steps = steps_of(image.config, len(image.layers))
    for number in reversed(range(len(image.layers))):
        layer = image.layers[number]
        if (layer.size > SMALL and _NAME not in steps[number]) or not files.affords(layer):
            files.skipped.add(number)
        files.descend()
        if found := known_record(files, image):
            files.skipped.clear()
            return found
        if number not in files.skipped and any(map(_RECORD.fullmatch, files.views[layer.digest].entries)):
            why = "a later layer took away what `vpatch apply` recorded in it, as `vpatch revert` does"
            raise Failure(Problem("not patched", str(image.ref), why))
    raise Failure(_nothing(files, image))


def known_record(files: LayeredFiles, image: RemoteImage) -> Label | None:
    """Return what `vpatch apply` recorded in the layers that were read; None if they have no record.

    Raises:
        Failure: they have two, or one that vpatch did not write.
    """
    found = [path for path in files.matching(_RECORD.fullmatch) if files.entry(path)]
    if len(found) > 1:
        raise Failure(Problem("more than one vllm", str(image.ref), " and ".join(f"/{path}" for path in found)))
    places = (Place(at["root"], at["info"]) for path in found if (at := _RECORD.fullmatch(path)))
    return next((record_in(files, place, str(image.ref)) for place in places), None)


def to_pull(problem: Problem) -> Problem:
    """Return a problem with the way to look at an image of which a layer was not read."""
    return replace(problem, hint=f"{shell('docker', 'pull', problem.where)}, then inspect it again")


def _nothing(files: LayeredFiles, image: RemoteImage) -> Problem:
    left = [image.layers[number].size for number in files.skipped]
    read = f"{len(files.layers_read)} of {len(image.layers)}, {megabytes(files.bytes_read)}"
    why = f"the image has no label {LABEL}, and the layers that were read ({read}) have no record of `vpatch apply`"
    if left:
        return to_pull(Problem("not patched", str(image.ref), f"{why}; the others have {megabytes(sum(left))}"))
    hint = f"{shell('vpatch', 'build', '--base', image.ref)} makes a patched one"
    return Problem("not patched", str(image.ref), why, hint=hint)

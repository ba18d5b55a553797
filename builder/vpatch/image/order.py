"""What to build, from options or from the definitions in `images/*.toml`, and the result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from vpatch.core.catalogue import Selection
from vpatch.core.engine import Engine
from vpatch.core.verdict import State, Verdict
from vpatch.errors import Code, Failure, Problem, UnknownName, closest, collecting, naming, raise_all, shell
from vpatch.foreign import TOML_BYTES, parse_toml, read_regular
from vpatch.image import Watch
from vpatch.image.checks import Check, check_support
from vpatch.image.config import Base, extra_required
from vpatch.image.filesystem import Files, Place, read_from
from vpatch.image.patch import Layer, patch
from vpatch.image.receipt import receipt_digest

# What the patterns of `definition.schema.json` stand for.
_FORMS = {"digest": "sha256: and 64 hexadecimal digits", "architectures": "sm_120, say"}


@dataclass(frozen=True)
class Order:
    """An image to build."""

    base: str  # its name, with a digest if pinned
    platform: str | None = None  # `linux/amd64`; None: the engine's own, or amd64 in a registry
    python: str | None = None  # an interpreter inside the image; None: the one on its PATH
    tags: tuple[str, ...] = ()  # full names, set at the end
    set_tags: bool = True  # or else they only name the repositories to push to
    push: bool = False  # from an engine
    tests: frozenset[str] = frozenset({"files", "containers"})  # or `gpus`, too
    architectures: tuple[str, ...] = ()  # that the base's compiled extensions must serve: `sm_120`
    overlays: tuple[str, ...] = ()  # ids of those that must apply; none: the default ones
    also: tuple[str, ...] = ()  # ids of opt-in ones that must apply besides the default ones
    without: tuple[str, ...] = ()  # ids of default ones that are left out
    default: tuple[str, ...] | None = None  # ids of the default ones, of a project
    labels: tuple[str, ...] = ()  # the user's own, each `KEY=VALUE`
    name: str = ""  # of its definition
    path: str = ""  # of its definition

    @property
    def selection(self) -> Selection:
        """The overlays."""
        return Selection(self.overlays or None, self.also, self.without, self.default)


@dataclass(frozen=True)
class Built:
    """The result of an order; without anything to do, `layer` is None, and `notes` has the reason."""

    base: Base
    image: str = ""  # ID, or `repository@digest` once pushed; the base's if there was nothing to do
    verdicts: tuple[Verdict, ...] = ()
    layer: Layer | None = None
    root: str | None = None
    vllm: str | None = None
    tests: tuple[Check, ...] = ()
    problems: tuple[Problem, ...] = ()
    unserved: tuple[str, ...] = ()  # GPU architectures that the base does not serve
    digest: str = ""  # what receipts of the image's processes report; "" if vpatch wrote nothing there
    applied: tuple[str, ...] = ()  # ids of the overlays that the layer applies
    fitting: tuple[str, ...] = ()  # ids of those that could be built without the ones that do not fit
    pushed: str = ""  # `repository@digest` of what is in a registry although the build failed
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()  # notes for those who want to know everything
    extra: dict[str, Any] = field(default_factory=dict)  # for the JSON


def prepare(order: Order, files: Files, vllm: Place, base: Base, engine: Engine, *, same: str, watch: Watch) -> Built:
    """Compute the layer, and the result as far as it is known before anything is made.

    There is no layer if there are problems (overlays drift, named ones do not apply, GPUs are not served), or nothing
    to do: then `same`, the base's own name, is the result's image, and a tag that was to be set is a problem.
    """
    watch.found(base.ref, vllm.version)
    if order.architectures:
        watch.phase("reading the compiled extensions")
    support = check_support(files, vllm, base, order.architectures)
    watch.phase("applying overlays")
    changeset, layer = patch(files, vllm, base, engine, order.python)
    built = Built(
        base,
        verdicts=changeset.after,
        layer=layer,
        digest=layer.receipt if layer else receipt_digest(files, vllm),
        root=f"/{vllm.root}",
        vllm=vllm.version,
        unserved=support.unserved,
        notes=support.notes,
        details=support.details,
        extra=support.extra,
    )
    named = order.selection.named
    idle = [one for one in changeset.before if one.id in named and one.state is State.NOT_APPLICABLE]
    refusals = [Problem("not applicable", base.ref, f"{one.id}: {one.because}") for one in idle]
    if problems := (*changeset.problems, *refusals, *support.problems):
        fitting: tuple[str, ...] = ()
        if not support.problems:  # another base is needed then
            fitting = engine.fitting(partial(read_from, files, vllm), changeset.before, {one.id for one in idle})
        return replace(built, layer=None, verdicts=changeset.before, problems=problems, fitting=fitting)
    if layer is None:
        if order.tags and order.set_tags:
            why = f"{', '.join(order.tags)} is not set: every overlay is applied, merged or not applicable already"
            return replace(built, problems=(Problem("nothing to build", base.ref, why, code=Code.NOTHING_TO_BUILD),))
        return replace(built, image=same)
    states = zip(changeset.before, changeset.after, strict=True)
    return replace(built, applied=tuple(new.id for old, new in states if old.state is not new.state))


def definition_files(folder: Path) -> list[Path]:
    """Return the paths of all definitions in `images/`; at least one."""
    found = sorted((folder / "images").glob("*.toml"))
    if not found:
        raise Failure(Problem("no image definitions", str(folder / "images"), "there is no *.toml in it"))
    return found


def read_definitions(paths: Sequence[Path]) -> list[Order]:
    """Read definitions, whose keys are listed in `definition.schema.json`. A failure has all problems of all files."""
    orders: list[Order] = []
    problems: list[Problem] = []
    with extra_required():
        from jsonschema import Draft202012Validator
    schema = json.loads((files("vpatch.image") / "definition.schema.json").read_text("utf-8"))
    for path in paths:
        with collecting(problems):
            orders.append(_read(path, Draft202012Validator(schema)))
    taken: dict[str, str] = {}
    problems += [
        Problem("tag taken", order.name, f"{tag} is a tag of {taken[tag]} too")
        for order in orders
        for tag in order.tags
        if taken.setdefault(tag, order.name) != order.name
    ]
    raise_all(problems)
    return orders


def check_files(paths: Sequence[Path]) -> None:
    """Raise `UnknownName` with every definition that does not exist, and those that may be meant by its file name."""
    if not (missing := [path for path in paths if not path.exists()]):
        return
    known = sorted(
        str(path) for folder in {Path("images"), *(one.parent for one in paths)} for path in folder.glob("*.toml")
    )

    def meant(path: Path) -> str:
        if path.suffix != ".toml":
            return f"not a *.toml; to build on an image: {shell('vpatch', 'build', '--base', path)}"
        return closest(str(path), known, key=lambda one: Path(one).name.casefold()) if known else "no *.toml is there"

    raise UnknownName(*(Problem("no such file", str(path), meant(path)) for path in missing))


def _read(path: Path, schema: Any) -> Order:
    try:
        with naming("cannot read", str(path)):
            definition = parse_toml(read_regular(path, TOML_BYTES))
    except ValueError as error:
        raise Failure(Problem("bad image definition", str(path), f"not TOML: {error}")) from error
    problems = []
    for wrong in sorted(schema.iter_errors(definition), key=lambda wrong: wrong.json_path):
        where = wrong.json_path.removeprefix("$").removeprefix(".")
        cause = f"{where}: {wrong.message}" if where else str(wrong.message)
        if wrong.validator == "not":
            cause = "`overlays` selects exactly these: leave out `with`"
        elif wrong.validator == "pattern":
            form = _FORMS.get(where.partition("[")[0], "registry/repository:tag in full")
            cause = f"{where}: {wrong.instance!r} is not {form}"
        problems.append(Problem("bad image definition", str(path), cause))
    raise_all(problems)
    return Order(
        definition["base"] + (f"@{definition['digest']}" if "digest" in definition else ""),
        platform=definition.get("platform", "linux/amd64"),
        tags=tuple(definition["tags"]),
        tests=frozenset(definition.get("tests", ("files", "containers"))),
        architectures=tuple(definition.get("architectures", ())),
        overlays=tuple(definition.get("overlays", ())),
        also=tuple(definition.get("with", ())),
        name=path.stem,
        path=str(path),
    )

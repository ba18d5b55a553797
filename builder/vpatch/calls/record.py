"""Record what overlays take from vLLM on one release."""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vpatch.calls.foreign import Origins
from vpatch.calls.resolve import Resolved, Types
from vpatch.calls.sites import NewCode, Site, code_of, sites
from vpatch.core.calls import Call, Taken, module_files
from vpatch.core.engine import Engine, Read
from vpatch.core.landing.binding import absolute, imported_as, plain_name
from vpatch.core.landing.fit import misfits
from vpatch.core.landing.flow import Function, statements
from vpatch.core.landing.interfaces import IMPLICIT, Interface, parameters_of
from vpatch.core.landing.lookup import Lookup, bases_of
from vpatch.core.overlay import COMPANIONS
from vpatch.core.workspace import Workspace
from vpatch.testing import digests
from vpatch.tree.locate import Tree

# What Triton takes with the arguments of a kernel.
_LAUNCHING = frozenset(
    {"num_warps", "num_stages", "num_ctas", "maxnreg", "grid", "warmup", "enable_fp_fusion", "launch_pdl"}
)


@dataclass(frozen=True)
class Recording:
    """What overlays take from one release.

    Attributes:
        code: what each piece of code takes, by the overlay's id and the code's key.
        unresolved: calls of unknown definitions, as `key: code`, by the overlay's id.
    """

    code: Mapping[tuple[str, str], Taken]
    unresolved: Mapping[str, tuple[str, ...]]


def record(engine: Engine, tree: Tree, scratch: Path) -> Recording:
    """Record what the pending overlays of an engine take from a release.

    Args:
        engine: the overlays. They are applied together, so that each may use what others add.
        tree: the release, which does not change.
        scratch: an empty folder, for a copy of the tree with the overlays' code.

    Raises:
        Failure: an overlay is drifted.
    """
    files, found = code_of(engine, tree.read)
    shutil.copytree(tree.root / "vllm", scratch / "vllm", copy_function=os.link)
    for file, data in files.changes().items():
        target = scratch / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_bytes(data)
    types = Types(scratch)
    recorders = {item.id: _Recorder(tree.read, types, files) for item in engine.overlays}
    for code in found:
        recorders[code.overlay].code.setdefault(code.key, _Collected())  # it may take nothing
        for site in sites(code, files):
            recorders[code.overlay].add(code, site)
    known = {item.id: digests(item.overlay) for item in engine.overlays}
    return Recording(
        {
            (name, key): each.taken(known[name][key])
            for name, one in recorders.items()
            for key, each in one.code.items()
        },
        {name: tuple(one.unresolved) for name, one in recorders.items()},
    )


@dataclass
class _Callee:
    given: set[str] = field(default_factory=set)
    interfaces: dict[Interface, set[str]] = field(default_factory=dict)
    ignored: bool = True

    def call(self) -> Call:
        interfaces = {str(interface): tuple(sorted(digests)) for interface, digests in self.interfaces.items()}
        return Call(tuple(sorted(self.given)), interfaces, ignored=self.ignored)


@dataclass
class _Collected:
    calls: dict[str, _Callee] = field(default_factory=dict)
    overrides: dict[str, _Callee] = field(default_factory=dict)
    reads: dict[str, set[str]] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)

    def taken(self, digest: str) -> Taken:
        return Taken(
            digest,
            {place: each.call() for place, each in self.calls.items()},
            {place: each.call() for place, each in self.overrides.items()},
            {place: tuple(sorted(each)) for place, each in self.reads.items()},
            tuple(sorted(self.imports)),
        )


class _Recorder:
    """Collects what one overlay takes."""

    def __init__(self, read: Read, types: Types, patched: Workspace) -> None:
        self.types = types
        self.code: dict[str, _Collected] = {}
        self.unresolved: dict[str, None] = {}
        self.pristine, self.patched = Lookup(Workspace(read)), Lookup(patched)

    def add(self, code: NewCode, site: Site) -> None:
        into = self.code[code.key]
        match site.node:
            case ast.ImportFrom() as node if not site.guarded:
                for alias in node.names:
                    self._import(absolute(imported_as(alias.asname or alias.name, node), code.file), into)
            case ast.Attribute() as node:
                self._attribute(code, site, node, into)
            case ast.Call() as node:
                self._call(code, site, node, into)
            case ast.FunctionDef() | ast.AsyncFunctionDef() as node:
                self._override(code, site, node, into)

    def _import(self, path: str, into: _Collected) -> None:
        module, _, name = path.rpartition(".")
        if _is_vllms(path.replace(".", "/")) and self.pristine.defines(module, name):
            into.imports.add(path)

    def _attribute(self, code: NewCode, site: Site, node: ast.Attribute, into: _Collected) -> None:
        if Origins(self.types, code.file).of_library(node, site):
            return
        targets = self.types.attributes(code.file, node)
        for target in targets if not site.guarded else ():
            if not target.owner and _is_vllms(target.file):
                module = target.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                self._import(f"{module}.{target.name}", into)
            elif target.owner:
                owner = self._receiver(code.file, node) or f"{target.file} {target.owner}"
                if not self.pristine.unset(owner, [target.name]):
                    into.reads.setdefault(owner, set()).add(target.name)

    def _call(self, code: NewCode, site: Site, node: ast.Call, into: _Collected) -> None:
        for place in self._places(code, site, node.func):
            interfaces = self._interfaces(place)
            if not interfaces:
                continue  # code of the overlays
            callee = into.calls.setdefault(place, _Callee())
            for interface, bodies in interfaces.items():
                callee.interfaces.setdefault(interface, set()).update(bodies)
            callee.given.add(_given(node, next(iter(interfaces)).kind, unbound=self._is_unbound(code.file, node.func)))
            callee.ignored &= isinstance(site.around[-1], ast.Expr)
            # Edits that change a callee, those of other overlays too, are proved with it.
            for interface in _interfaces(place, self.patched):
                if any(misfits(callee.call(), interface, "")):
                    callee.interfaces.setdefault(interface, set())

    def _override(
        self, code: NewCode, site: Site, node: ast.FunctionDef | ast.AsyncFunctionDef, into: _Collected
    ) -> None:
        if not node.name.startswith("__") and (place := self._above(code, site, node.name)):
            into.overrides[place] = _Callee({parameters_of(node.args)}, self._interfaces(place))

    def _above(self, code: NewCode, site: Site, method: str) -> str:
        """Return the place of a method in a base of the class around a site; "" if no base has it."""
        owner = next((each for each in reversed(site.around) if isinstance(each, ast.ClassDef)), None)
        places = [f"{code.file} {base}.{method}" for base in bases_of(owner)] if owner else []
        return next((place for place in places if self._interfaces(place)), "")

    def _places(self, code: NewCode, site: Site, func: ast.expr) -> list[str]:
        """Return where what a call reaches is found, if it is vLLM's; note it if nothing is known."""
        match func:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=method):
                return [self._above(code, site, method)]
        origins = Origins(self.types, code.file)
        if origins.of_library(func, site):
            return []
        targets = self.types.callees(code.file, func)
        value = func.value if isinstance(func, ast.Attribute) else func
        elsewhere = any(self.types.is_outside(found) for found in self.types.types(code.file, func))  # of `Logger`, say
        if not (targets or site.guarded or elsewhere or origins.foreign(value, site)):
            self.unresolved[f"{code.key}: `{ast.unparse(func)}`"] = None
        return list(dict.fromkeys(self._place(code, site, func, target) for target in targets))

    def _interfaces(self, place: str) -> dict[Interface, set[str]]:
        """Return the interfaces that a place leads to; one in a companion begins in the patched tree."""
        return _interfaces(place, self.patched if place.startswith(COMPANIONS) else self.pristine)

    def _place(self, code: NewCode, site: Site, func: ast.expr, target: Resolved) -> str:
        """Return where a call finds what it calls: by the names that it reads, or in the class of the instance."""
        func = func.value if isinstance(func, ast.Subscript) else func
        name = plain_name(func)
        # The module of vLLM in which the code stands follows what it imports when that moves.
        if name and not code.file.startswith(COMPANIONS) and self._interfaces(f"{code.file} {name}"):
            return f"{code.file} {name}"
        first, _, rest = name.partition(".")
        for holder in reversed(site.around):
            for stmt in statements(holder.body) if isinstance(holder, Function | ast.Module) else ():
                if imported := imported_as(first, stmt):
                    place = self._split(f"{absolute(imported, code.file)}.{rest}".rstrip("."))
                    if self._interfaces(place):
                        return place
        receiver = self._receiver(code.file, func) if isinstance(func, ast.Attribute) else ""
        return f"{receiver}.{target.name}" if receiver else target.place

    def _split(self, path: str) -> str:
        """Return the place that a dotted path names: the file of the module in it, and the rest."""
        module, names = path, list[str]()
        while module:
            for file in module_files(module):
                if self.pristine.files.read(file) is not None:
                    return f"{file} {'.'.join(names)}"
            module, _, last = module.rpartition(".")
            names.insert(0, last)
        return ""

    def _receiver(self, file: str, node: ast.expr) -> str:
        """Return the place of the class whose instance an attribute is taken from; "" if it is not one class."""
        classes = self.types.classes(file, node.value) if isinstance(node, ast.Attribute) else []
        return classes[0].place if len(classes) == 1 else ""

    def _is_unbound(self, file: str, func: ast.expr) -> bool:
        return isinstance(func, ast.Attribute) and self.types.is_class(file, func.value)


def _is_vllms(path: str) -> bool:
    return path.startswith("vllm/") and not path.startswith(COMPANIONS)


def _interfaces(place: str, lookup: Lookup) -> dict[Interface, set[str]]:
    """Return the interfaces of what a place leads to, with the digests of their bodies."""
    found: dict[Interface, set[str]] = {}
    for each in lookup.find(place) if place else ():
        if (interface := lookup.interface(each)) and _is_vllms(each.file):
            digest = lookup.digest(each)
            found.setdefault(interface, set()).update({digest} if digest else ())
    return found


def _given(node: ast.Call, kind: str, *, unbound: bool) -> str:
    """Write the arguments of a call as `Call.given` has them."""
    implicit = kind.rsplit(maxsplit=1)[-1] not in {"function", "kernel"} and not kind.endswith("static method")
    words = [IMPLICIT] if implicit and not (unbound and kind.endswith("method") and kind != "class method") else []
    for each in node.args:
        if isinstance(each, ast.Starred) and isinstance(each.value, ast.Tuple | ast.List):
            words += ["_"] * len(each.value.elts)
        else:
            words.append("*_" if isinstance(each, ast.Starred) else "_")
    for keyword in node.keywords:
        if not (kind == "kernel" and keyword.arg in _LAUNCHING):
            words.append(f"{keyword.arg}=_" if keyword.arg else "**_")
    return f"({', '.join(words)})"

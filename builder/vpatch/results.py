"""What the verbs return: frozen results, and the failure that carries one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vpatch.core.verdict import Verdict
from vpatch.errors import Failure, Problem
from vpatch.tree.unified import unified


@dataclass(frozen=True)
class Result:
    """What a verb found in one vLLM.

    Attributes:
        tree: the folder that holds `vllm/`.
        vllm: the version, as its metadata or git says; None if neither does.
        overlays: the verdicts, after the verb did its work; empty for `revert`.
        problems: what needs attention.
        notes: remarks that change no outcome.
        fitting: if some overlays do not fit, the ids of the others, which could be applied.
        obstacle: why nothing can be written to this tree although overlays are pending; it is among the problems.
        upgradable: of `status` and `diff`, overlays that another version of their package applied, and that `apply`
            replaces by this one.
        opt_in: of `status` without `overlays`, the ids of other opt-in overlays that could be applied.
        not_installed: overlays that are applied, by another vpatch or before their package was removed, and that no
            package here has: by id, their files. Of `revert`, the ones that it removed. `apply` and `diff` do not look.
        edited: files that were edited after vpatch wrote them: by path, the lines that differ, as in "12 to 14". Of
            `revert`, always empty.
        digest: of `status`, `apply` and `verify`, what a receipt of a process that imports this vLLM reports; "" if
            nothing is applied, or not as vpatch wrote it.
    """

    tree: Path
    vllm: str | None
    overlays: tuple[Verdict, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    fitting: tuple[str, ...] = ()
    obstacle: Problem | None = None
    upgradable: tuple[str, ...] = field(default=(), kw_only=True)
    opt_in: tuple[str, ...] = field(default=(), kw_only=True)
    not_installed: Mapping[str, tuple[str, ...]] = field(default_factory=dict, kw_only=True)
    edited: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    digest: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class Changed(Result):
    """What `apply` or `revert` did.

    Attributes:
        changed: the files written, added or removed, relative to `tree`.
        added: those of them that did not exist before.
        removed: those of them that no longer exist.
        affected: ids of the overlays that the run applied, upgraded or reverted.
        upgraded: those of them of which the run replaced another version.
    """

    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    affected: tuple[str, ...] = ()
    upgraded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diff(Result):
    """What a verb would do, or did.

    Attributes:
        files: by path, the bytes before and after; None if there is no such file.
        captured: of edits, the files of which `vpatch capture` makes a patch file.
    """

    files: Mapping[str, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    captured: Collection[str] = ()

    @property
    def lines(self) -> list[str]:
        """The unified diff, as lines without newline; bytes that are not UTF-8 are surrogate escapes.

        New files are behind the changed ones, which show what the new ones are for.
        """
        files = sorted(self.files.items(), key=lambda one: one[1][0] is None)
        return [line for file, (old, new) in files for line in unified(file, old, new)]


class Refused(Failure):
    """A verb that found problems; `result` is what it would have returned."""

    def __init__(self, result: Result) -> None:
        super().__init__(*result.problems)
        self.result = result

"""A kill, an interrupt or a system error at every step: files stay whole, and the next run completes the work."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

import pytest
from vpatch.core.edits.data import AddData
from vpatch.core.verdict import State
from vpatch.errors import Failure
from vpatch.manifest import sha256
from vpatch.tree.apply import apply, revert
from vpatch.tree.locate import tree_at
from vpatch.tree.write_plan import SitePackages

from tests.conftest import contents_of, unchanged
from tests.snippets import overlay
from tests.tiers import deep
from tests.tree.conftest import INFO, MODULE, Sandbox, in_a_child, in_memory, make, make_sandbox
from tests.tree.steps import SCENARIOS, STEPS, Fault, Step, at_each_step, killed_at

LATER = "the next run completes"


def raised_at(number: int, error: BaseException, *, ever_after: bool = False) -> Fault:
    def fault(step: Step) -> None:
        if step.number == number or (ever_after and step.number > number):
            raise error

    return fault


def raised_at_write(count: int) -> Fault:
    """Simulate a full disk from write number `count` on."""
    writes = itertools.count(1)

    def fault(step: Step) -> None:
        if step.name == "write" and next(writes) >= count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return fault


def interrupted_after(name: str, path: str) -> Fault:
    """Interrupt this process after the step of this name that made `path`."""
    made = False

    def fault(step: Step) -> None:
        nonlocal made
        if made:
            raise KeyboardInterrupt
        made = step.name == name and str(step.args[-1]).endswith(f"site-packages/{path}")

    return fault


class Stage:
    """The trees before, during and after one scenario."""

    def __init__(self, folder: Path, scenario: str) -> None:
        pristine = make_sandbox(folder / "site-packages")
        desired, (start, goal) = pristine.goals, SCENARIOS[scenario]
        self.folder, self.pristine, self.desired = folder, pristine.snapshot(), desired[goal]
        self.start = pristine.copy(folder / "start")
        self.start.settle(desired[start])
        for path in self.start.root.rglob("*"):
            os.utime(path, (1, 1))  # so that how many steps are made does not depend on the clock
        # What an apply after a kill asks for: the same, or for a killed revert what was there.
        self.again = desired[start if goal == "pristine" else goal]
        done = self.start.copy(folder / "done")
        with at_each_step(lambda step: None) as made:
            done.change(self.desired)
        self.steps = list(made)
        self.before, self.after = self.start.snapshot(), done.snapshot()
        unharmed = pristine.copy(folder / "unharmed")
        unharmed.settle(self.again)
        self.applied = unharmed.snapshot()
        self.checked: list[Mapping[str, tuple[int, bytes | None]]] = []

    def numbers(self, every: int) -> list[int]:
        """Return the numbers of one in `every` of the steps: of those that change the disk, and then of the others."""
        looks = [number for number, name in enumerate(self.steps, 1) if name == "look"]
        changes = [number for number, name in enumerate(self.steps, 1) if name != "look"]
        return [*changes[::every], *looks[:: 4 * every]]

    def run(self, sandbox: Sandbox, fault: Fault) -> None:
        with at_each_step(fault):
            sandbox.change(self.desired)

    def fresh(self) -> Sandbox:
        return self.start.copy(self.folder / "run")

    def check(self, sandbox: Sandbox) -> None:
        """Check that each file is whole, the old one or the new one, and that the next run heals the tree.

        Many faults leave the same files, modes included: each such tree is healed once.
        """
        now = sandbox.snapshot()
        for path in {*sandbox.second, *sandbox.modules, f"{sandbox.tree.dist_info}/RECORD"}:
            assert now.get(path) in (self.before.get(path), self.after.get(path)), path
        state = {path: ((sandbox.root / path).lstat().st_mode, content) for path, content in now.items()}
        if state in self.checked:
            return
        reverted = sandbox.copy(self.folder / "reverted")
        reverted.settle({})
        assert reverted.snapshot() == self.pristine
        sandbox.settle(self.again)
        assert sandbox.snapshot() == self.applied
        assert sandbox.settled(self.again)
        self.checked.append(state)


EVERY = pytest.mark.parametrize("every", [9, deep(1)])
"""A fault comes at one in so many steps."""


@pytest.fixture(scope="module")
def stage_of() -> Iterator[Callable[[str], Stage]]:
    """Return the stage of a scenario, shared by the tests."""
    with in_memory() as folder:
        yield cache(lambda scenario: Stage(folder / scenario, scenario))


@pytest.fixture(params=SCENARIOS)
def stage(request: pytest.FixtureRequest, stage_of: Callable[[str], Stage]) -> Iterator[Stage]:
    found = stage_of(request.param)
    yield found
    assert found.start.snapshot() == found.before


def test_the_steps_are_seen(stage_of: Callable[[str], Stage]) -> None:
    seen = {name for scenario in SCENARIOS for name in stage_of(scenario).steps}

    assert set(STEPS) - seen <= {"fchown", "utime"}


@EVERY
def test_killed_at_any_step(stage: Stage, every: int) -> None:
    """What a kill leaves is what is on the disk then: one run, with a copy of the tree for each step."""
    sandbox = stage.fresh()
    writes = [number for number, name in enumerate(stage.steps, 1) if name == "write"]
    # The disk is the same before a step that only looks as before the next one.
    chosen = {*(number for number in stage.numbers(every) if stage.steps[number - 1] != "look"), writes[-1]}
    left: dict[int, Sandbox] = {}

    def fault(step: Step) -> None:
        if step.number in chosen:
            written = step.write_half() if step.name == "write" else 0
            left[step.number] = sandbox.copy(stage.folder / f"left/{step.number}")
            if step.name == "write":
                os.lseek(step.args[0], -written, os.SEEK_CUR)

    stage.run(sandbox, fault)

    assert sandbox.snapshot() == stage.after
    killed = stage.fresh()
    assert in_a_child(partial(stage.run, killed, killed_at(writes[-1]))) == signal.SIGKILL
    assert killed.snapshot() == left[writes[-1]].snapshot()
    for each in left.values():
        stage.check(each)


@EVERY
def test_refused_at_any_step(stage: Stage, every: int) -> None:
    """Once, or for ever after."""
    codes = itertools.cycle((errno.ENOSPC, errno.EIO, errno.EACCES, errno.EIO))
    for at, (number, code) in enumerate(zip(stage.numbers(every), codes, strict=False)):
        sandbox, ever_after = stage.fresh(), at % 4 == 3

        with pytest.raises(Failure) as failure:
            stage.run(sandbox, raised_at(number, OSError(code, os.strerror(code)), ever_after=ever_after))
        assert os.strerror(code).lower() in str(failure.value)
        if LATER not in str(failure.value) and not ever_after:
            assert sandbox.snapshot() == stage.before
        stage.check(sandbox)


@EVERY
def test_interrupted_at_any_step(stage: Stage, every: int) -> None:
    for number in stage.numbers(3 * every):
        sandbox = stage.fresh()

        with pytest.raises(KeyboardInterrupt):
            stage.run(sandbox, raised_at(number, KeyboardInterrupt()))
        assert not [path for path in sandbox.snapshot() if path.endswith(".vpatch-new")]
        stage.check(sandbox)


def test_a_failure_after_a_kill(stage: Stage) -> None:
    """The second run must not forget what the first one was writing."""
    failures = 0
    renames = [number for number, name in enumerate(stage.steps, 1) if name == "replace"]
    for number in renames[1::8]:
        sandbox = stage.fresh()
        assert in_a_child(partial(stage.run, sandbox, killed_at(number))) == signal.SIGKILL

        try:
            stage.run(sandbox, raised_at_write(3))
        except Failure:
            failures += 1
        stage.check(sandbox)
    assert failures


def test_an_edit_survives_a_killed_apply(sandbox: Sandbox) -> None:
    sandbox.settle(sandbox.first)
    edit = sandbox.first[MODULE] + b"mine = 1\n"
    sandbox.write(MODULE, edit)

    with at_each_step(interrupted_after("replace", MODULE)), pytest.raises(KeyboardInterrupt):
        sandbox.settle(sandbox.second | {MODULE: edit + b"two = 2  # vpatch: two\n"}, allow_edited=True)

    with pytest.raises(Failure, match=rf"edited after vpatch: {MODULE}: "):
        sandbox.settle({})


def test_companions_found_without_a_note_are_ours_after_a_kill(sandbox: Sandbox) -> None:
    pristine = sandbox.snapshot()
    sandbox.write("vllm/_vpatch/shared.py", b"of an older vpatch\n")

    with at_each_step(interrupted_after("replace", "vllm/_vpatch/first.py")), pytest.raises(KeyboardInterrupt):
        sandbox.settle(sandbox.first)
    sandbox.settle({})

    assert sandbox.snapshot() == pristine


def test_the_order_of_steps(sandbox: Sandbox) -> None:
    """Each file is durable before its rename, each group of names before the next group; RECORD comes last."""
    trace: list[tuple[str, str]] = []

    def note(step: Step) -> None:
        if step.name in {"fsync", "replace"}:
            at = step.args[0]
            path = Path(at) if step.name == "replace" else Path(f"/proc/self/fd/{at}").readlink()
            trace.append((step.name, str(path.relative_to(sandbox.root))))

    with at_each_step(note):
        sandbox.settle(sandbox.first)

    renamed = [path for name, path in trace if name == "replace"]
    for path in renamed:
        assert trace.index(("fsync", path)) < trace.index(("replace", path))
    groups = [
        "under-way" if path.endswith("/.under-way.json.vpatch-new")
        else "originals" if "/originals/" in path or "/patches/" in path
        else "added" if "/_vpatch/" in path or "added.py" in path
        else "modules" if path.startswith("vllm/")
        else "lists"
        for path in renamed
    ]  # fmt: skip
    assert list(dict.fromkeys(groups)) == ["under-way", "originals", "added", "modules", "lists"]
    assert groups == sorted(groups, key=list(dict.fromkeys(groups)).index)
    assert Path(renamed[-1]).name == ".RECORD.vpatch-new"
    for path, group in zip(renamed[:-2], groups, strict=False):
        following = renamed[groups.index(group) + groups.count(group)]
        after, until = trace.index(("replace", path)), trace.index(("replace", following))
        assert ("fsync", str(Path(path).parent)) in trace[after:until]
    assert ("fsync", "vllm-1.0.dist-info") in trace[trace.index(("replace", renamed[-1])) :]


def test_no_old_code_beside_new_source(sandbox: Sandbox) -> None:
    """Not even if the run ends between two files, or an import compiled the old source meanwhile."""
    twins = {path: Path(path).parent / "__pycache__" / f"{Path(path).stem}.cpython-399.pyc" for path in sandbox.first}
    written, seen = twins[MODULE], 0
    for twin in twins.values():
        sandbox.write(str(twin), b"old")

    def compile_meanwhile(step: Step) -> None:
        nonlocal seen
        if step.name == "replace" and "originals" not in str(step.args[1]) and str(step.args[1]).endswith(".py"):
            seen += 1
            left = {twin for twin in twins.values() if (sandbox.root / twin).exists()}
            assert left == (set() if seen == 1 else {written})
            sandbox.write(str(written), b"old")

    with at_each_step(compile_meanwhile):
        sandbox.settle(sandbox.first)

    assert seen == len(sandbox.first)
    assert not list(sandbox.root.rglob("*.pyc"))


def test_a_file_size_limit(sandbox: Sandbox) -> None:
    """A write that fails in the middle, as on a full disk."""

    def run() -> None:
        limit = len(sandbox.first["vllm/layers/m2.py"]) // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
        with pytest.raises(Failure, match=r"cannot write: vllm/layers/m2.py: file too large"):
            sandbox.settle(sandbox.first)
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))  # for coverage's own file

    with unchanged(sandbox.root):
        assert in_a_child(run) == 0
    assert sandbox.settle(sandbox.first)


CHANGED = AddData("vllm/engine/table.json", "[1]", sha256(b"{}"))
# Their paths sort before and behind that of a companion.
DATA = [CHANGED, AddData("vllm/0/new.json", "{}", ""), AddData("vllm/engine/new.json", "{}", "")]


@pytest.mark.parametrize("data", DATA, ids=lambda data: data.file)
@pytest.mark.parametrize("reverted", [False, True])
def test_a_kill_never_leaves_a_data_file_as_upstreams(data: AddData, public: Path, *, reverted: bool) -> None:
    """Nothing but its companion tells vpatch's from upstream's. What a kill leaves is what is on the disk then."""
    item = overlay(data.companion, data)
    root = make(public / "site", record=f"vllm/__init__.py,,\n{CHANGED.file},,\n{INFO}/RECORD,,\n")
    (root / CHANGED.file).write_text("{}")
    (root / "vllm/engine/m.py").touch()
    before = contents_of(root)

    def applied(folder: Path) -> State:
        return apply(SitePackages(tree_at(folder)), [item])[0].before[0].state

    def revert_all(folder: Path) -> None:
        revert(SitePackages(tree_at(folder)), [item], None)

    if reverted:
        applied(root)
    left: list[Path] = []

    def fault(step: Step) -> None:
        if step.name in {"replace", "unlink", "rmdir"}:
            left.append(shutil.copytree(root, public / f"left/{step.number}", symlinks=True))

    with at_each_step(fault):
        (revert_all if reverted else applied)(root)

    assert len(left) > 5
    states = set()
    for folder in left:
        again = shutil.copytree(folder, public / "again", symlinks=True)
        revert_all(again)
        assert contents_of(again) == before, folder.name
        shutil.rmtree(again)
        states.add(applied(folder))
        assert applied(folder) is State.APPLIED
        revert_all(folder)
        assert contents_of(folder) == before, folder.name
    assert states == {State.PENDING, State.APPLIED}

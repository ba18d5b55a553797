"""Whether a defect is in a vLLM: the probes of its overlays, which run the functions of that vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vpatch.core.catalogue import discover
from vpatch.core.overlay import Overlay
from vpatch.core.verdict import MISFITS, State, Verdict
from vpatch.doctor.findings import Finding, Level, unreadable
from vpatch.doctor.running import run
from vpatch.doctor.subject import Subject
from vpatch.errors import Failure, shell
from vpatch.image.script import Ending

LIMIT_S = 120


@dataclass(frozen=True)
class Probed:
    """An overlay, its state in a vLLM, and how each of its probes ended there, by name."""

    verdict: Verdict
    overlay: Overlay
    endings: Mapping[str, Ending]

    def as_json(self) -> list[dict[str, object]]:
        """Return an object for each probe that was started, as `vpatch build --json` has them for tests of an image."""
        return [
            {"overlay": self.verdict.id, "name": name, "ok": end.ok, "because": end.because}
            for name, end in self.endings.items()
        ]


def probe(subject: Subject, watch: Callable[[str], object]) -> tuple[list[Probed], list[Finding]]:
    """Run the probes of the subject's overlays, except those that need a GPU; return the results and the findings."""
    if why := _hindrance(subject):
        return [], [why]
    assert subject.python  # noqa: S101 - for mypy: otherwise there is a hindrance
    overlays = {item.id: item.overlay for item in discover()}
    skipped = [one.id for one in subject.verified.overlays if one.state is State.NOT_APPLICABLE]
    chosen = [(one, overlays[one.id]) for one in subject.verified.overlays if one.id not in skipped]
    probes = [[probe for probe in overlay.probes if not probe.gpu] for _, overlay in chosen]
    scripts = [probe.script for own in probes for probe in own]
    count = f"running {len(scripts)} probe{'s' * (len(scripts) != 1)}"
    watch(count)
    try:
        endings = iter(run(subject.python.python, scripts, lambda done: watch(f"{count}: {done} ended"), LIMIT_S))
    except Failure as failure:
        return [], [unreadable(problem) for problem in failure.problems]
    results = [
        Probed(verdict, overlay, {probe.name: next(endings) for probe in own})
        for (verdict, overlay), own in zip(chosen, probes, strict=True)
    ]
    return results, [*(_finding(subject, one) for one in results if one.endings), *_rest(results, skipped)]


def _hindrance(subject: Subject) -> Finding | None:
    """Return why no probe can run: no interpreter is known that imports this vLLM, or vpatch may not run it."""
    python, root, refusal = subject.python, subject.tree.root, subject.located.refusal
    if python and python.root == root and not refusal:
        return None
    what = "no probe was run: no interpreter is known that imports this vLLM"
    do = subject.commands.command("doctor", "--run", "--python", "PY")
    if python and refusal:
        what = f"no probe was run: vpatch does not run {python.python}: {refusal}"
        do = f"if you trust this environment: {shell('vpatch', 'doctor', '--run', '--python', python.python, root)}"
    elif python:
        command = shell("env", f"PYTHONPATH={root}", "vpatch", "doctor", "--run", "--python", python.python, root)
        do = f"if these sources belong to no environment, use the packages of that one: {command}"
    return Finding("probe", Level.WARNING, what, (str(root),), do)


def _finding(subject: Subject, one: Probed) -> Finding:
    name, ends = one.verdict.id, one.endings.values()
    if failed := next((end for end in ends if end.ok is False), None):
        return _defect(subject, one, failed) if failed.asserted else _undecided(name, failed)
    if unknown := next((end for end in ends if end.ok is None), None):
        return Finding("probe", Level.NOTE, f"{name} could not be run: {unknown.because}")
    but = ", though it is not applied" if one.verdict.state is State.PENDING else ""
    return Finding("probe", Level.OK, f"{name} runs right here{but}: {one.overlay.summary.rstrip('.')}")


def _defect(subject: Subject, one: Probed, end: Ending) -> Finding:
    name, state = one.verdict.id, one.verdict.state
    what, commands = f"{name}: the defect is in this vLLM", subject.commands
    if state is State.PENDING:
        fits = all(other.state not in MISFITS for other in subject.verified.overlays)
        do = commands.again("apply") if fits else commands.command("apply", "--overlay", name)
    elif state in MISFITS:
        do = commands.command("status", "-v", "--overlay", name)
    else:
        what = f"{what}, although the overlay is {state}"
        do = "check the other findings for the cause; if none explains it, report a bug"
    return Finding("probe", Level.PROBLEM, f"{what}: {end.because}", do=do)


def _undecided(name: str, end: Ending) -> Finding:
    what = f"{name}: its probe does not tell whether the defect is in this vLLM: {end.because}"
    return Finding("probe", Level.WARNING, what, do="check that vLLM itself starts; if it does, report a bug")


def _rest(results: Sequence[Probed], skipped: Sequence[str]) -> Iterator[Finding]:
    if skipped:
        what = f"nothing to run in this vLLM: {', '.join(skipped)}"
        yield Finding("probe", Level.OK, what)
    if without := [one.verdict.id for one in results if not one.overlay.probes]:
        yield Finding("probe", Level.NOTE, f"no probe says whether these work: {', '.join(without)}")
    if on_gpus := [probe.name for one in results for probe in one.overlay.probes if probe.gpu]:
        do = "`vpatch test IMAGE --gpus` runs those of an image"
        yield Finding("gpu-probe", Level.NOTE, f"left out, since they need a GPU: {', '.join(on_gpus)}", do=do)

"""The last line of a command on an image: what came of it, and what to do next; and the lines of its tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from vpatch.cli.options import source_words
from vpatch.cli.wording import MODEL, command, counted, counted_are, do_not_fit, is_are, listed, options
from vpatch.core.verdict import MISFITS, State
from vpatch.errors import Code, Failure, shell
from vpatch.image.checks import Check, failed
from vpatch.image.config import NoEngineError, NoGpusError, NotHereError
from vpatch.image.order import Built, Order
from vpatch.image.patch import Label
from vpatch.image.registry.reference import parse
from vpatch.image.standing import Standing
from vpatch.plan.commands import STOCK, patched
from vpatch.plan.container import release
from vpatch.plan.deployment import NEWEST

_FEW = 2  # names that a sentence lists; more of them have stood above it
_ALGORITHM = "sha256:"
_DIGITS = 12  # of a digest, as docker shows them


def of_build(order: Order, built: Built, *, registry: bool) -> str:
    """Return the outcome of a build that came to its end."""
    if built.problems and built.pushed:
        tag = _tag(order, built.pushed)
        return f"Pushed, but not tagged: {short(built.pushed)} is complete. Tag it: {tag}."
    if built.problems:
        return f"Nothing was built: {_refusal(order, built)}.{_rest(order, built, registry=registry)}"
    if built.layer is None:
        return f"Nothing to build: {_idle(built)}. Use {short(built.base.ref)} as it is: {_run(built.base.ref)}."
    if failed(built.tests):
        left = f"; {short(built.pushed)} stays in its registry" if built.pushed else ""
        look = again(order, registry=registry, tests=frozenset())
        return f"Not built: {_failed(built.tests)}. Nothing was tagged{left}. To look into it: {look}."
    return _success(order, built, registry=registry)


def _success(order: Order, built: Built, *, registry: bool) -> str:
    size = len(built.layer.blob) / 1024 if built.layer else 0
    applied = f"{counted(len(built.applied), 'overlay')} applied, {size:,.0f} KiB added"
    what = f"on {short(built.base.ref)}: {applied}; {_tested(built.tests)}"
    if registry and not order.set_tags:
        tag = _tag(order, built.image)
        return f"Pushed without a tag, built {what}. Test it: {command('test', built.image)}, then tag it: {tag}."
    name = order.tags[0] if order.tags else short(built.image)
    called = listed(order.tags) if order.tags else f"{name} (without a name)"
    done = f"{'Built and pushed' if registry or order.push else 'Built'} {called} {what}."
    if registry or not built.tests:
        return f"{done} Test it in containers: {command('test', name)}."
    naming = "" if order.tags else f" Name it: {shell('docker', 'tag', name, patched(short(built.base.ref)))}."
    return f"{done}{naming} Run it: {_run(name)}."


def _tag(order: Order, image: str) -> str:
    """Return the command that sets the tags of an image that was pushed by digest, in its own repository."""
    repository = image.partition("@")[0]
    return command("tag", image, *(tag for tag in order.tags if parse(tag).name == repository))


def of_failure(order: Order, failure: Failure, *, registry: bool) -> str:
    """Return the outcome of a build that could not go on."""
    done = "Nothing was built."
    match failure:
        case NoGpusError() if not order.path:
            return f"{done} Without GPUs: {again(order, registry=registry, tests=order.tests - {'gpus'})}."
        case NoEngineError() if order.path or (order.tags and not order.base.startswith(_ALGORITHM)):
            return f"{done} Without an engine: {again(order, registry=True, push=False)}."
        case NoEngineError() if not order.base.startswith(_ALGORITHM):  # an ID: only an engine knows it
            return f"{done} Without an engine: add --registry, and as --tag a name in a registry of yours."
    return done


def of_all(orders: Sequence[Order], wrong: Sequence[bool], *, registry: bool) -> str:
    """Return the outcome of several builds, of which `wrong` failed."""
    lost = [order for order, failing in zip(orders, wrong, strict=True) if failing]
    if not lost:
        return f"Built {counted(len(orders), 'image')}."
    retry = command(
        "build", *(order.path for order in lost), *options("--label", lost[0].labels), *_how(lost[0], registry=registry)
    )
    done = f"Built {len(orders) - len(lost)} of {counted(len(orders), 'image')}"
    return f"{done}; {listed([order.name for order in lost])} failed. To try again: {retry}."


def of_test(image: str, tests: Sequence[Check]) -> str:
    """Return the outcome of testing an image again."""
    if failed(tests):
        return f"{image}: {_failed(tests)}. What is in it: {command('inspect', image, '-v')}."
    return f"Tested {image}: {_tested(tests).removeprefix('tests: ')}. Run it: {_run(image)}."


def of_inspect(image: str, label: Label, now: Standing) -> str:
    """Return the outcome of showing an image."""
    if now.unread:
        return "vpatch recorded these overlays; a later layer may have changed their files."
    if now.lost:
        what = "label" if label.built else "record of `vpatch apply`"
        changed = f"{counted_are(len(now.lost), 'file')} gone or changed, of the {len(label.files) + 1} that it lists"
        build = f"Patch the image anew: {command('build', '--base', image)}."
        return f"The {what} is outdated: {changed}. {build if label.built else 'Build the image anew.'}"
    applied = [one for one in label.overlays if one["state"] == State.APPLIED]
    changed = f"{counted(len(applied), 'overlay')} applied, {counted(len(label.files), 'file')} changed or added"
    files = command("inspect", image, "-v")
    if not label.built:
        record = f"{label.root}/{label.dist_info}/{label.note}"
        return f"{changed}, by `vpatch apply`, as from a Dockerfile; {record} says so. The files: {files}."
    return f"{changed}. The files: {files}. To test it: {command('test', image)}."


def of_nowhere(image: str, engine: Failure, *, pull: bool) -> str:
    """Return the outcome of showing an image that neither the engine nor the registry has; `engine` failed first."""
    if not isinstance(engine, NotHereError):
        return f"Nothing to show. The engine was asked first: {engine.problems[0].reason}."
    base = f"{STOCK}:v{release(image)[0] or NEWEST}"
    build = command("build", "--base", base, "--tag", image.partition("@")[0])
    or_pull = f", or pull it with {shell('docker', 'pull', image)}" if pull else ""
    (problem,) = engine.problems
    end = "" if problem.hint else "."  # a hint is a question
    return f"Nothing to show: {problem.reason}{end} Build it with {build}{or_pull}."


def of_tag(image: str, names: Sequence[str]) -> str:
    """Return the outcome of setting tags."""
    return f"Tagged {short(image)} as {listed(names)}. Run it: {_run(names[0])}."


def test_lines(tests: Sequence[Check], *, verbose: bool, everything: bool) -> Iterator[str]:
    """Yield what the tests found: each that failed, and the others by reason; if `verbose`, each.

    Without `everything`, what the outcome tells is left out: how many passed, and why others were not run if there is
    one reason.
    """
    if verbose:
        yield from (f"  {_WORDS[test.ok]} {_line(test)}" for test in tests)
        return
    yield from failures(tests)
    skipped = _not_run(tests)
    if everything and (passed := sum(test.ok is True for test in tests)):
        yield f"  {_WORDS[True]} {counted(passed, 'test')}"
    if everything or len(skipped) > 1:
        yield from (f"  {_WORDS[None]} {counted(count, 'test')}: {why}" for why, count in skipped.items())


_WORDS = {True: "passed ", False: "FAILED ", None: "not run"}


def failures(tests: Sequence[Check]) -> Iterator[str]:
    """Yield a line for each test that failed."""
    yield from (f"  {_WORDS[False]} {_line(test)}" for test in tests if test.ok is False)


def again(order: Order, *, registry: bool, **changes: Any) -> str:
    """Return the command that builds an order with some changes, to copy."""
    order = replace(order, **changes)
    if order.path:
        labels = options("--label", order.labels)
        return command("build", order.path, *labels, *source_words(), *_how(order, registry=registry))
    lists = {"--overlay": order.overlays, "--with": order.also, "--without": order.without, "--tag": order.tags}
    lists |= {"--label": order.labels, "--require-arch": order.architectures}
    one = {"--platform": order.platform, "--python": order.python}
    words = [word for name, values in lists.items() for word in options(name, values)]
    words += [word for name, value in one.items() if value for word in (name, value)]
    return command("build", "--base", order.base, *words, *source_words(), *_how(order, registry=registry))


def _how(order: Order, *, registry: bool) -> list[str]:
    flags = {
        "--registry": registry,
        "--push": order.push,
        "--untagged": registry and not order.set_tags,
        "--no-test": not order.tests,
        "--gpus": "gpus" in order.tests and not registry,
    }
    return [flag for flag, wanted in flags.items() if wanted]


def short(image: str) -> str:
    """Return an image's name for people: with a tag or few digits of its digest; of an ID, only these digits."""
    if image.startswith(_ALGORITHM):
        return image[len(_ALGORITHM) :][:_DIGITS]
    name, _, digest = image.partition("@")
    return f"{name}@{digest[: len(_ALGORITHM) + _DIGITS]}" if digest and ":" not in name.rpartition("/")[2] else name


def _run(image: str) -> str:
    return shell("docker", "run", "--rm", "--gpus", "all", "--ipc=host", "-p", "127.0.0.1:8000:8000", image, MODEL)


def _refusal(order: Order, built: Built) -> str:
    """Return why nothing was built, in one clause for each kind of reason."""
    vllm = f"vLLM {built.vllm}"
    states = {verdict.id: verdict.state for verdict in built.verdicts}
    misfits = [name for name, state in states.items() if state in MISFITS]
    named = order.selection.named
    idle = [name for name, state in states.items() if state is State.NOT_APPLICABLE and name in named]
    clauses = [
        do_not_fit(misfits, vllm) if misfits else "",
        f"{listed(idle)} {is_are(len(idle))} not applicable to {vllm}" if idle else "",
        f"{short(built.base.ref)} does not serve {listed(built.unserved)}" if built.unserved else "",
    ]
    return "; ".join(filter(None, clauses)) or _idle(built)


def _rest(order: Order, built: Built, *, registry: bool) -> str:
    """Return how to build after all: with the overlays that fit, or on another base."""
    if built.unserved:
        wish = f"`architectures` of {order.path}" if order.path else "--require-arch"
        return f" Choose another base, or leave out {wish}."
    if any(problem.code is Code.NOTHING_TO_BUILD for problem in built.problems) and not registry:
        return f" To give the base that name: {shell('docker', 'tag', built.base.ref, order.tags[0])}."
    if not built.fitting:
        return ""
    if order.path:
        ids = ", ".join(f'"{name}"' for name in built.fitting)
        return f" To build with the others, write `overlays = [{ids}]` in {order.path}."
    return f" To build with the others: {again(order, registry=registry, overlays=built.fitting, also=(), without=())}."


def _idle(built: Built) -> str:
    """Return why no overlay changes anything."""
    words = {State.APPLIED: "applied", State.MERGED: "merged upstream", State.NOT_APPLICABLE: "not applicable"}
    counts = [(sum(one.state is state for one in built.verdicts), words[state]) for state in words]
    (first, what), *others = [(count, word) for count, word in counts if count]
    told = [
        f"{counted_are(first, 'overlay')} {what}",
        *(f"{count} {is_are(count)} {what}" for count, what in others),
    ]
    return listed(told)


def _tested(tests: Sequence[Check]) -> str:
    """Return what the tests found, none of which failed."""
    if not tests:
        return "not tested"
    skipped, total = _not_run(tests), len(tests)
    if not skipped:
        return f"{'all ' * (total > 1)}{counted(total, 'test')} passed"
    count = sum(skipped.values())
    why = f" ({next(iter(skipped))})" if len(skipped) == 1 else ""
    return f"tests: {total - count} passed, {count} of {total} not run{why}"


def _failed(tests: Sequence[Check]) -> str:
    names = [test.name for test in tests if test.ok is False]
    which = f": {listed(names)}" if len(names) <= _FEW else ""
    return f"{len(names)} of {counted(len(tests), 'test')} failed{which}"


def _not_run(tests: Sequence[Check]) -> dict[str, int]:
    """Count the tests that were not run, by reason."""
    reasons = [test.because for test in tests if test.ok is None]
    return {why: reasons.count(why) for why in dict.fromkeys(reasons)}


def _line(test: Check) -> str:
    return f"{test.name}: {test.because}" if test.because else test.name

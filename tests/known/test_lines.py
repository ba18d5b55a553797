"""Known lines are found in what users paste, and nothing is claimed where nothing is known."""

from __future__ import annotations

import pytest
from vpatch.cli.find import FindReport, answered, outcome
from vpatch.cli.target import Target
from vpatch.core.catalogue import Selection, discover
from vpatch.core.overlay import Catalogued, Overlay, Part
from vpatch.core.verdict import PartVerdict, State, Verdict
from vpatch.known.elsewhere import ELSEWHERE
from vpatch.known.index import Index, KnownMatch, MatchKind, in_line
from vpatch.known.lines import KnownLine, line_at, telling, words_of

from tests.known.cases import KNOWN, LATER, LOCKED, UNKNOWN

INDEX = Index(discover())
IDS = {item.id for item in INDEX.overlays}


def name(match: KnownMatch) -> str:
    """Name what a match belongs to: an overlay, or the beginning of another cause's first line."""
    item, other = match.source.overlay, match.source.elsewhere
    return item.id if item else next(iter((*(other.lines if other else ()), *(other.seen if other else ()))))


def right(text: str, wanted: str) -> bool:
    found = INDEX.find(text)
    return bool(found) and name(found[0]).startswith(wanted)


def test_the_right_answer_comes_first() -> None:
    cases = [case for case in (*KNOWN, *LATER) if case[1] in IDS or case not in LATER]
    wrong = [(text, wanted, [*map(name, INDEX.find(text))]) for text, wanted in cases if not right(text, wanted)]

    assert len(cases) >= 40
    assert not wrong


@pytest.mark.parametrize("text", UNKNOWN)
def test_nothing_is_claimed(text: str) -> None:
    assert not INDEX.find(text)


def test_paths_numbers_addresses_and_quotes_do_not_matter() -> None:
    one = "0x7f3a12 at /usr/lib/a/cache.py:33 \"took\" 1.5 GiB, 'sm80' 9f3ab12c77d1 2x"
    assert [word.text for word in words_of(one)] == ["at", "cache", "py", "took", "gib", "sm"]
    assert telling("The answers of 12 requests are classes") == ("answer", "request", "classe")


def test_what_is_shown_of_a_line_begins_and_ends_with_whole_words() -> None:
    stamp = "\x1b[36m(EngineCore pid=1)\x1b[0m ERROR 11-28 22:04:11 [core.py:770] torch.AcceleratorError: "
    short, long = f"fine\n{stamp}it died\nfine", f"{stamp}{'some words ' * 40}it died {'of them ' * 40}"

    assert line_at(short, short.index("died")) == (
        "(EngineCore pid=1) ERROR 11-28 22:04:11 [core.py:770] torch.AcceleratorError: it died"
    )
    begin, *words, end = line_at(long, long.index("died")).split()
    assert (begin, end) == ("...", "...")
    assert {*words} == {"some", "words", "it", "died", "of", "them"}
    assert all(len(line_at(text, 500)) <= 250 for text in (long, "x" * 9000, " " * 9000, "a b" * 900))


def test_a_line_that_ends_before_the_word_in_quotes_does_not_tell() -> None:
    line = KnownLine("ValueError: bad literal for the setting 'window' of a layer")

    assert line.last_quoted == 6
    assert line.whole(words_of("bad literal for the setting 'window' of a layer"))
    assert not line.whole(words_of("bad literal for the setting 'other' of a layer"))
    assert not line.part(words_of("x: bad literal for the setting"))
    found = line.part(words_of("x: bad literal for the setting window"))
    assert found
    assert (found.start, found.words, found.cut) == (3, 6, True)


def test_every_line_has_its_own_answer() -> None:
    """Each line of each overlay and of each other cause, pasted as it stands, leads to it first."""
    for line, source in INDEX.lines:
        found = INDEX.find(line.text)
        assert source.key in [one.source.key for one in found], line.text
        assert found[0].source.key == source.key or found[0].source.overlay, line.text
    for one in ELSEWHERE:
        assert one.known or one.seen
        assert one.advice.endswith(".")
        assert all(one in [match.source.elsewhere for match in INDEX.find(seen)] for seen in one.seen)


def test_exclamation_marks_are_words() -> None:
    assert "Answers are garbage, as in !!!! to the end." in [one.known for one in INDEX.find("!!!!!!!!!!!!!!!!!")]


def test_a_whole_line_goes_before_words_of_another() -> None:
    first, *others = INDEX.find(f"EngineDeadError after {LOCKED}")

    assert name(first) == "turboquant-workspace"
    assert [name(one) for one in others] == ["EngineDeadError"]


def test_a_line_that_is_a_part_of_a_longer_one_there_is_left_out() -> None:
    """The system's lack of memory is not the GPU's, unless the GPU's stands in another line."""
    killed, full = "Out of memory: Killed process 4242", "CUDA out of memory"

    both = {name(one) for one in INDEX.find(f"{full}\n{killed}")}
    assert [name(one) for one in INDEX.find(killed)] == ["Out of memory: Killed process"]
    assert both == {"Out of memory: Killed process", full, "turboquant-tiles"}
    assert [name(one) for one in in_line(INDEX, killed)] == ["Out of memory: Killed process"]


def test_the_name_of_a_feature_is_no_error_line() -> None:
    assert all(one.kind is MatchKind.SYMPTOM for one in INDEX.find("turboquant kv cache"))


def item(name: str, summary: str, part: Part, **about: tuple[str, ...]) -> Catalogued:
    return Catalogued(name, Overlay(summary, (part,), **about), "")  # type: ignore[arg-type]


def test_two_overlays_with_one_line() -> None:
    """What is pending comes first, by the state of the part that has the line, and both say what they mend."""
    line = "slot table is locked at 'rows'"
    one = item("one", "Rows of drafts.", Part("p", errors=(line,)))
    two = item("two", "Rows of prompts.", Part("q"), errors=(line,), symptoms=('It ends with "died unexpectedly".',))
    found = Index((one, two)).find("E slot table is locked at 'rows' 0x7f")
    parts = {name: PartVerdict(name, state, "", ()) for name, state in (("p", State.APPLIED), ("q", State.PENDING))}
    verdicts = [Verdict("one", (parts["p"],)), Verdict("two", (parts["q"],))]
    target = Target(None, None, Selection(()), verbose=False)
    answers = answered(found, verdicts, target)

    assert [(match.source.key, match.source.part) for match in found] == [("one", "p"), ("two", "")]
    assert [(one.name, one.state) for one in answers] == [("two", State.PENDING), ("one", State.APPLIED)]
    shown = "\n".join(line.text for line in FindReport(answers=answers, verdicts=(), tree=None).shown(None))
    assert "what it mends: Rows of drafts." in shown
    assert "what it mends: Rows of prompts." in shown
    assert "tells them apart" in outcome(answers, target)
    assert [name(match) for match in Index((two,)).find("Worker proc VllmWorker-1 died unexpectedly")] == [
        "EngineDeadError"
    ]

"""One index of what is known of error lines and symptoms, from overlays and from `elsewhere`, and how it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import MISFITS, State
from vpatch.known import symptoms
from vpatch.known.elsewhere import ELSEWHERE, Elsewhere
from vpatch.known.lines import FREQUENT, MESSAGE, Hit, KnownLine, line_at, stated, telling, words_of
from vpatch.known.mentions import mentioned, named, references

LACKED = frozenset({None, State.PENDING, *MISFITS})
"""The states of an overlay that may help; None: it was not looked at, as without a vLLM."""
_HEAD = 4  # words of a log's line that may come before its level: which process wrote it
_FEW = 2  # words that tell something
_OVERLAYS = 2  # of which a text is a piece of a line, at the most


class MatchKind(StrEnum):
    """How a text led to what is known."""

    LINE = "line"
    PART = "part of a line"
    SYMPTOM = "symptom"
    POSSIBLE = "possible"
    """The line has many causes, and the overlay mends one of them."""
    MENTION = "mention"
    """The text is an overlay's id, or a pull request or issue that it names."""


@dataclass(frozen=True)
class KnownSource:
    """What a line belongs to: an overlay, perhaps one of its parts, or a cause elsewhere; the other is None."""

    overlay: Catalogued | None
    elsewhere: Elsewhere | None
    part: str = ""

    @property
    def key(self) -> object:
        """The same for all lines of an overlay, or of a cause."""
        return self.overlay.id if self.overlay else self.elsewhere


@dataclass(frozen=True)
class KnownMatch:
    """A known line or symptom in what the user gave.

    Attributes:
        source: what it belongs to.
        known: the known line, the symptom, or what is mentioned.
        seen: the user's line that has it.
        words: how many of its words are there.
        kind: how the user's line led to it.
        condition: of a possible cause, the symptom that makes it the overlay's; else "".
        beside: the other lines of the text that show that it is the overlay's, where one has many causes.
        lacks: of a symptom, the words of the user's text that it does not have.
        row: where the user's line begins in the text.
    """

    source: KnownSource
    known: str
    seen: str
    words: int
    kind: MatchKind = MatchKind.LINE
    condition: str = ""
    beside: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    row: int = 0


@dataclass(frozen=True)
class Index:
    """What is known, of overlays and of `elsewhere`."""

    overlays: Sequence[Catalogued]

    @cached_property
    def lines(self) -> Sequence[tuple[KnownLine, KnownSource]]:
        """Each known line of a log, with what it belongs to."""
        return [*self._of_overlays(), *((line, KnownSource(None, one)) for one in ELSEWHERE for line in one.known)]

    def _of_overlays(self) -> Iterator[tuple[KnownLine, KnownSource]]:
        for item in self.overlays:
            own = [(line, KnownSource(item, None)) for line in stated(item.overlay.symptoms, item.overlay.errors)]
            for part in item.overlay.parts:
                own += [(line, KnownSource(item, None, part.name)) for line in stated((), part.errors)]
            yield from ((line, source) for line, source in own if not _is_general(line))

    @cached_property
    def sentences(self) -> Sequence[tuple[KnownLine, KnownSource]]:
        """Each symptom that may be in a user's own words, of overlays and of other causes."""
        own = [(KnownLine(told), KnownSource(item, None)) for told, item in symptoms.sentences(self.overlays)]
        return [*own, *((KnownLine(told), KnownSource(None, one)) for one in ELSEWHERE for told in one.seen)]

    @cached_property
    def signs(self) -> Sequence[KnownLine]:
        """Each line that shows whether an overlay mends a line with many causes."""
        overlays = [item.overlay for item in self.overlays]
        told = (line for overlay in overlays for line in (*overlay.beside, *overlay.not_beside))
        return [*map(KnownLine, dict.fromkeys(told))]

    @cached_property
    def possible(self) -> Mapping[Elsewhere, Sequence[tuple[Catalogued, str]]]:
        """By cause, the overlays that mend a line of it under a condition, and that condition."""
        return {one: [*symptoms.possible(self.overlays, one.known)] for one in ELSEWHERE if one.shared}

    @cached_property
    def mentioned(self) -> Mapping[str, Sequence[Catalogued]]:
        """By pull request or issue, the overlays that mention it."""
        return mentioned(self.overlays)

    def find(self, text: str) -> list[KnownMatch]:
        """Return what is known of a text: lines, whole or in part, else what it mentions, else symptoms.

        A line of an overlay of which the text is a mere piece is looked for where no overlay is known otherwise, or for
        a name as in code.
        """
        found = self._lines(text) or self._mentions(text)
        if any(one.source.overlay for one in found):
            return found
        told = [] if found else self._symptoms(text)
        whole = [one for one in told if not one.lacks]
        if whole and "_" not in text:
            return told
        pieces = _best(self._around(text))
        known = {one.source.key for one in pieces}
        return [*pieces, *(one for one in (whole if pieces else told) if one.source.key not in known), *found]

    def _lines(self, text: str) -> list[KnownMatch]:
        words = words_of(text)
        whole = [_match(line, source, text, hit) for line, source in self.lines if (hit := line.whole(words))]
        for line, source in self.sentences:
            if hit := line.whole(words):
                whole.append(_match(line, source, text, hit, MatchKind.SYMPTOM))
        found = _longest(whole)
        if not any(one.source.overlay for one in found):
            found += [_match(line, source, text, hit) for line, source in self.lines if (hit := line.part(words))]
        return self.with_possible(_best(found), {sign.text for sign in self.signs if sign.whole(words)})

    def _around(self, text: str) -> Iterator[KnownMatch]:
        """Yield the lines of a few overlays of which the whole text is a piece.

        One whose word in quotes is still to come is the overlay's if that comes.
        """
        words = words_of(MESSAGE.sub("", text))
        ends = [(line, source, line.around(words)) for line, source in self.lines if source.overlay]
        found = [(line, source, end) for line, source, end in ends if end]
        if len({source.key for _, source, _ in found}) > _OVERLAYS:
            return
        for line, source, end in found:
            kind, goes_on = MatchKind.PART, ""
            if end < line.last_quoted:
                kind, goes_on = MatchKind.POSSIBLE, f"it goes on as in {line.text}"
            yield KnownMatch(source, line.text, line_at(text, 0), len(words), kind, goes_on)

    def with_possible(self, found: Sequence[KnownMatch], signs: AbstractSet[str]) -> list[KnownMatch]:
        """Return matches, and before each line of many causes the overlays that mend one of them.

        Args:
            found: the matches.
            signs: those of `signs` that the text has.
        """
        known = {one.source.key for one in found}
        sure = {one.row for one in found if one.source.overlay and one.kind is not MatchKind.PART}
        whole: list[KnownMatch] = []
        for one in found:
            possible = self.possible.get(one.source.elsewhere, ()) if one.source.elsewhere else ()
            if one.row not in sure:
                new = [_perhaps(one, item, told, signs) for item, told in possible if item.id not in known]
                new = [other for other in new if other.kind is not MatchKind.POSSIBLE] or new
                known |= {other.source.key for other in new}
                whole += sorted(new, key=self._likely)
            whole.append(one)
        return whole

    def _likely(self, one: KnownMatch) -> tuple[int, bool]:
        """Return what orders possible causes: the words that they share with the line, then lines of their own."""
        shared = symptoms.meaning(one.seen) & symptoms.meaning(one.condition)
        return -len(shared), any(source.key == one.source.key for _, source in self.lines)

    def _mentions(self, text: str) -> list[KnownMatch]:
        names = named(text)
        found = [(item, item.id) for item in self.overlays if item.id in names]
        found += [(item, one) for one in references(text) for item in self.mentioned.get(one, ())]
        return [KnownMatch(KnownSource(item, None), what, text.strip(), 1, MatchKind.MENTION) for item, what in found]

    def _symptoms(self, text: str) -> list[KnownMatch]:
        """Return the symptoms that have every word of a text that tells something, else those with the most."""
        if references(text):
            return []
        told, always = [line.text for line, _ in self.sentences], [not one.overlay for _, one in self.sentences]
        seen, asked = line_at(text, 0), len(symptoms.meanings(text))
        found: dict[object, KnownMatch] = {}
        for number, lacks in symptoms.by_words(text, told, always):
            _, source = self.sentences[number]
            new = KnownMatch(source, told[number], seen, asked - len(lacks), MatchKind.SYMPTOM, lacks=lacks)
            found[source.key] = max(found.get(source.key, new), new, key=lambda one: one.words)
        return [*found.values()]


def _match(line: KnownLine, source: KnownSource, text: str, hit: Hit, kind: MatchKind = MatchKind.LINE) -> KnownMatch:
    row = text.rfind("\n", 0, hit.start) + 1
    kind = MatchKind.PART if hit.cut else kind
    return KnownMatch(source, line.text, line_at(text, hit.start), hit.words, kind, row=row)


def _perhaps(one: KnownMatch, item: Catalogued, condition: str, signs: AbstractSet[str]) -> KnownMatch:
    """Return the match of an overlay for a line that has many causes; it is certain if the text has all its signs."""
    beside, against = item.overlay.beside, item.overlay.not_beside
    source = KnownSource(item, None)
    if beside and signs >= {*beside} and signs.isdisjoint(against):
        return KnownMatch(source, one.known, one.seen, one.words, beside=beside, row=one.row)
    return KnownMatch(source, one.known, one.seen, one.words, MatchKind.POSSIBLE, condition, row=one.row)


def _longest(found: Sequence[KnownMatch]) -> list[KnownMatch]:
    """Leave out each line that is only a part of a longer one in the same line."""
    return [one for one in found if not any(_within(one, other) for other in found)]


def _within(one: KnownMatch, other: KnownMatch) -> bool:
    if one.words >= other.words or one.row != other.row:
        return False
    return KnownLine(one.known).whole(words_of(other.known)) is not None


def _best(found: Iterable[KnownMatch]) -> list[KnownMatch]:
    """Return the match with the most words of each source; whole lines come first, overlays before other causes."""
    best: dict[object, KnownMatch] = {}
    for one in sorted(found, key=_place):
        best.setdefault(one.source.key, one)
    return sorted(best.values(), key=lambda one: (one.source.overlay is None, *_place(one)))


def _place(one: KnownMatch) -> tuple[bool, int]:
    return one.kind is MatchKind.PART, -one.words


def _is_general(line: KnownLine) -> bool:
    """Whether a line is just one that has many causes, perhaps with another word: it names no overlay."""
    words = words_of(line.text)
    tell = {*telling(MESSAGE.sub("", line.text))} - FREQUENT
    general = (one for other in ELSEWHERE if not other.named for one in other.known)
    return any(one.whole(words) and len(tell - {*telling(one.text)}) < _FEW for one in general)


def in_line(index: Index, line: str) -> list[KnownMatch]:
    """Return the known lines that one line of a log has, whole; a line of level INFO or DEBUG is no error."""
    words = words_of(line)
    if any(word.text in {"info", "debug"} for word in words[:_HEAD]):
        return []
    return _longest([_match(known, source, line, hit) for known, source in index.lines if (hit := known.whole(words))])


def signs_in(index: Index, line: str) -> set[str]:
    """Return the signs that one line of a log has, of any level."""
    words = words_of(line)
    return {sign.text for sign in index.signs if sign.whole(words)}

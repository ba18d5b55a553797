"""One index of what is known of error lines and symptoms, from overlays and from `elsewhere`, and how it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from vpatch.core.overlay import Catalogued
from vpatch.known.elsewhere import ELSEWHERE, Elsewhere
from vpatch.known.lines import MESSAGE, Hit, KnownLine, line_at, stated, telling, words_of

_HEAD = 4  # words of a log's line that may come before its level: which process wrote it
_FEW = 2  # words that tell something, of a user's own words


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
        known: the known line, or the symptom.
        seen: the user's line that has it.
        words: how many of its words are there.
        cut: whether the user's line has only a part of it.
        symptom: whether `known` is a symptom that has all of the user's words; else it is a line of a log.
    """

    source: KnownSource
    known: str
    seen: str
    words: int
    cut: bool = False
    symptom: bool = False


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

    def find(self, text: str) -> list[KnownMatch]:
        """Return what is known of a text: lines that it has, else lines of which it has a part, else symptoms."""
        words = words_of(text)
        found = _longest([_match(line, source, text, hit) for line, source in self.lines if (hit := line.whole(words))])
        if not any(one.source.overlay for one in found):
            found += [_match(line, source, text, hit) for line, source in self.lines if (hit := line.part(words))]
        return _best(found) or self._symptoms(text)

    def _symptoms(self, text: str) -> list[KnownMatch]:
        """Return the symptoms that have every word of a text that tells something."""
        asked = {*telling(text)}
        if len(asked) < _FEW and asked != {"!!!!"}:
            return []
        told = ((story, item) for item in self.overlays for story in item.overlay.symptoms)
        stories = [(story, KnownSource(item, None)) for story, item in told if not MESSAGE.match(story)]
        stories += [(story, KnownSource(None, one)) for one in ELSEWHERE for story in one.seen]
        return [
            KnownMatch(source, story, line_at(text, 0), len(asked), symptom=True)
            for story, source in stories
            if asked <= {*telling(story)}
        ]


def _match(line: KnownLine, source: KnownSource, text: str, hit: Hit) -> KnownMatch:
    return KnownMatch(source, line.text, line_at(text, hit.start), hit.words, hit.cut)


def _longest(found: Sequence[KnownMatch]) -> list[KnownMatch]:
    """Leave out each line that is only a part of a longer one in the same line."""
    return [one for one in found if not any(_within(one, other) for other in found)]


def _within(one: KnownMatch, other: KnownMatch) -> bool:
    hit = KnownLine(one.known).whole(words_of(other.known)) if one.words < other.words else None
    return hit is not None and one.seen == other.seen


def _best(found: Iterable[KnownMatch]) -> list[KnownMatch]:
    """Return the match with the most words of each source; whole lines come first, overlays before other causes."""
    best: dict[object, KnownMatch] = {}
    for one in sorted(found, key=lambda one: (one.cut, -one.words)):
        best.setdefault(one.source.key, one)
    return sorted(best.values(), key=lambda one: (one.source.overlay is None, one.cut, -one.words))


def _is_general(line: KnownLine) -> bool:
    """Whether a line is just one that has many causes, perhaps with another word: it names no overlay."""
    words = words_of(line.text)
    tell = {*telling(line.text)}
    general = (one for other in ELSEWHERE if not other.named for one in other.known)
    return any(one.whole(words) and len(tell - {*telling(one.text)}) < _FEW for one in general)


def in_line(index: Index, line: str) -> list[KnownMatch]:
    """Return the known lines that one line of a log has, whole; a line of level INFO or DEBUG is no error."""
    words = words_of(line)
    if any(word.text in {"info", "debug"} for word in words[:_HEAD]):
        return []
    return _longest([_match(known, source, line, hit) for known, source in index.lines if (hit := known.whole(words))])

"""Compare a pasted line with known ones, word by word; numbers, addresses, folders, quotes and case do not matter.

A match is proven by words that stand in both in the same order: nothing is weighed or guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

# A word, or what is passed over: codes of a terminal, HTML's `&lt;`, the folders of a path. Each repeat begins where no
# other may.
_PIECE = re.compile(r"\x1b\[[0-9;?]{0,32}[A-Za-z]|&[a-z]{2,4};|(?<![\w.~/-])(?:[\w.~-]*+/)++|(?P<word>\w++|!{4})")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,32}[A-Za-z]")
_HEX = re.compile(r"(?=[a-f]{0,8}[0-9])[0-9a-f]{8,}\Z")
MESSAGE = re.compile(r"\A\w+(?:Error|Exception): ")
"""How a whole message begins: the class of its error."""
_QUOTED = re.compile(r"(?<!\w)'([^']++)'(?!\w)|\"([^\"]++)\"")
_VARIES = "..."
_WINDOW = 2000  # characters of a line, on each side of a place, that may be shown
_FARTHEST = 40  # words that stand for one `...`
_GAP = 12  # words for one `...` at the end of a text that was cut off
FREQUENT = frozenset({"available", "cache", "cuda", "device", "error", "failed", "memory", "unknown"})
"""Words that any log has."""
_SHORT, _FEW = 6, 4  # letters of a word, as Xid, that alone is known only in a text of that few words
_CUT_WORDS = 4  # of a known line, at the least, that a cut line has
_TELLING = 2  # words, at the least, of a text that may be just a piece of a line

_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a about after all an and any are as at be been before but by can could did do does for from had has have how i"
        " if in into is it its me my no not of on one or our out so some than that the their them then there this to"
        " too up use was we were what when which while why will with without you your",
    )
)


@dataclass(frozen=True)
class Word:
    """A word of a text, and where it begins there."""

    text: str
    at: int


def words_of(text: str) -> tuple[Word, ...]:
    """Return the words of a text in lower case, without their digits; numbers, addresses and folders are no words."""
    return tuple(_words(text))


def _words(text: str) -> Iterator[Word]:
    for found in _PIECE.finditer(text):
        word = (found["word"] or "").strip("_").lower()
        letters = re.sub(r"[0-9]", "", word)
        number = word[:1].isdigit() and len(letters) < 2  # "2x", "07t12"
        if letters and not number and not word.startswith("0x") and not _HEX.match(word):
            yield Word(letters, found.start())


def line_at(text: str, at: int, most: int = 240) -> str:
    """Return the line of a text around a position without codes of a terminal; of a long one, a piece of whole words.

    `...` stands for what is left out.
    """
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    before, after = text[max(start, at - _WINDOW) : at], text[at : at + _WINDOW if end < 0 else min(end, at + _WINDOW)]
    before, after = _ESCAPE.sub("", before).lstrip(), _ESCAPE.sub("", after).rstrip()
    if len(before) + len(after) > most and len(before) > most // 4:
        before = f"... {before[-most // 4 :].partition(' ')[2]}"
    if len(before) + len(after) > most:
        after = f"{after[: most - len(before)].rpartition(' ')[0] or after[:most]} ..."
    return before + after


def telling(text: str) -> tuple[str, ...]:
    """Return the words of a text that say what it is about, each once, without the ending of a plural."""
    words = [word.text for word in words_of(text)]
    return tuple(dict.fromkeys(singular(word) for word in words if word not in _COMMON))


def singular(word: str) -> str:
    """Return a word without the ending of a plural."""
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word


@dataclass(frozen=True)
class Hit:
    """The place of a known line in a text.

    Attributes:
        start: the position of its first word.
        words: how many words of the known line are there.
        cut: whether the text has only a part of the known line.
    """

    start: int
    words: int
    cut: bool


@dataclass(frozen=True)
class KnownLine:
    """A line of a log; `...` in it stands for text that varies, and what is in single quotes must be there."""

    text: str

    @cached_property
    def runs(self) -> tuple[tuple[str, ...], ...]:
        """The words between the places that vary, without the class of the error, which a log may lack."""
        pieces = MESSAGE.sub("", self.text).split(_VARIES)
        return tuple(run for piece in pieces if (run := tuple(word.text for word in words_of(piece))))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All words, in order."""
        return tuple(word for run in self.runs for word in run)

    @property
    def tells(self) -> bool:
        """Whether its words are enough to recognize it: two that tell something, or a name in code."""
        tell = [word for word in self.words if word not in _COMMON]
        return len(tell) > 1 or any("_" in word or len(word) > 13 for word in tell)

    @cached_property
    def last_quoted(self) -> int:
        """The number of words up to the end of the last one in single quotes; 0 without quotes."""
        text = MESSAGE.sub("", self.text)
        ends = [found.end() for found in _QUOTED.finditer(text) if found[1] and words_of(found[1])]
        return len(words_of(text[: ends[-1]])) if ends else 0

    @cached_property
    def pieces(self) -> tuple[bytes, ...]:
        """Its pieces without digits, the rarest in a log first: one without any of them, in lower case, has it not."""
        text = re.sub(r"\.\.\.|[^A-Za-z_]+", " ", MESSAGE.sub("", self.text)).lower()
        found = sorted(dict.fromkeys(text.split()), key=lambda piece: (piece in FREQUENT, -len(piece)))
        return tuple(piece.encode() for piece in found)

    def whole(self, words: Sequence[Word]) -> Hit | None:
        """Find the first place where every word of the line stands, or return None."""
        if len(self.words) == 1 and len(self.words[0]) < _SHORT and len(words) > _FEW:
            return None
        first = self.runs[0]
        for at in range(len(words) - len(self.words) + 1):
            if words[at].text == first[0] and self._goes_on(words, at):
                return Hit(words[at].at, len(self.words), cut=False)
        return None

    def _goes_on(self, words: Sequence[Word], at: int) -> bool:
        """Return whether the runs stand from `at` on, each within reach of the one before it."""
        for number, run in enumerate(self.runs):
            reach = range(at, at + (_FARTHEST + 1 if number else 1))
            place = next((k for k in reach if _stands(run, words, k)), None)
            if place is None:
                return False
            at = place + len(run)
        return True

    def part(self, words: Sequence[Word]) -> Hit | None:
        """Find what is left of the line in a text that was cut off at its beginning, its end or both, or return None.

        A text that ends before a word in quotes is not recognized: that word tells which error it is.
        """
        known, longest = self.words, len(words)
        for at in range(longest):
            length = self._begun(words, at) if words[at].text == known[0] else 0
            if length and length >= self.last_quoted and _telling_enough(known[:length]):
                return Hit(words[at].at, length, cut=True)
        for length in range(min(len(known) - 1, longest), _CUT_WORDS - 1, -1):
            ending = known[len(known) - length :]
            if _equal(ending, words[:length]) and _telling_enough(ending):
                return Hit(words[0].at, length, cut=True)
        for at in range(len(known) - longest + 1):
            inside = known[at : at + longest]
            if at + longest >= self.last_quoted and _equal(inside, words) and _telling_enough(inside):
                return Hit(words[0].at, longest, cut=True)
        return None

    def around(self, words: Sequence[Word]) -> int | None:
        """Return how many of its words end with a whole text that is a piece of it and tells something, or None."""
        tell = {word.text for word in words} - _COMMON - FREQUENT
        if len(tell) < _TELLING and not any("_" in word for word in tell):
            return None
        ends = range(len(words), len(self.words) + 1)
        return next((end for end in ends if _equal(self.words[end - len(words) : end], words)), None)

    def _begun(self, words: Sequence[Word], at: int) -> int:
        """Return how many words of the line stand from `at` on to the end of the text, which may end inside a word."""
        count = 0
        for number, run in enumerate(self.runs):
            reach = range(at, min(at + (_FARTHEST if number else 0), len(words)) + 1)
            place = next((k for k in reach if _stands(run, words, k)), None)
            if place is None:
                ends = (k for k in reach if 0 < len(words) - k < len(run) + 1)
                tails = (_ends_inside(run, words[k:]) for k in ends)
                rest = next((length for length in tails if length is not None), None)
                in_gap = number > 0 and len(words) - at <= _GAP
                return count + rest if rest is not None else count if in_gap else 0
            count, at = count + len(run), place + len(run)
        return count


def _stands(run: Sequence[str], words: Sequence[Word], at: int) -> bool:
    return _equal(run, words[at : at + len(run)])


def _equal(run: Sequence[str], words: Sequence[Word]) -> bool:
    return len(run) == len(words) and all(one == word.text for one, word in zip(run, words, strict=True))


def _ends_inside(run: Sequence[str], tail: Sequence[Word]) -> int | None:
    """Return how many whole words of a run a text ends with, whose last word may be cut; None if it ends otherwise."""
    *whole, last = (word.text for word in tail)
    if [*run[: len(whole)]] != whole or not run[len(whole)].startswith(last):
        return None
    return len(whole) + (run[len(whole)] == last)


def _telling_enough(words: Sequence[str]) -> bool:
    return len({*words} - _COMMON) >= _CUT_WORDS


def stated(symptoms: Sequence[str], errors: Sequence[str] = ()) -> tuple[KnownLine, ...]:
    """Return the lines of a log that symptoms and errors state: whole messages, what is in quotes, and each error."""
    found = list(errors)
    for symptom in symptoms:
        quoted = ["".join(filter(None, one)) for one in _QUOTED.findall(symptom)]
        found += [symptom] if MESSAGE.match(symptom) else quoted
    lines = map(KnownLine, dict.fromkeys(found))
    return tuple(line for line in lines if line.tells)

"""Symptoms, as sentences: which of them state a line of many causes, and which have a user's own words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache

from vpatch.core.overlay import Catalogued
from vpatch.known.lines import FREQUENT, MESSAGE, KnownLine, singular, telling, words_of

_FEW = 2  # words that tell something, of a user's own words
_SHORT, _LONG = 3, 40  # words of a text of which one has to tell enough, and of one that may be a sentence of a user
_OF_A_LOG = re.compile(r"\b(?:ERROR|WARNING|INFO|DEBUG)\b|[A-Za-z]{2}(?:Error|Exception)\b")
_SUBJECTS = frozenset({"engine", "server", "vllm"})  # what any symptom is of
_COMPLAINTS = frozenset({"bad", "broken", "bug", "buggy", "issue", "problem", "trouble"})  # what any symptom is

# Words that users and symptoms take for one thing, without the ending of a plural; the first stands for all.
_GROUPS = (
    "die, died, dead, dying, crash, crashed, crashe, crashing, kill, killed",
    "slow, slower, slowly, speed, low throughput, high latency",
    "garbage, garbled, gibberish, nonsense, rubbish, babble, babbling",
    "wrong, wrongly, incorrect, inaccurate, accuracy, quality, worse",
    "hang, hung, hanging, stuck, freeze, frozen, stall, stalled, unresponsive, no response, not respond, not answer,"
    " not responding, not answering, never respond, never answer, never finish, stops responding, stopped responding",
    "repeat, repeated, repeating, repetition, repetitive, loop, looping, over and over, again and again",
    "speculative, speculation, mtp, decoding, num_speculative_token, multi token prediction, spec decode,"
    " spec decoding",
    "acceptance, accept, accepted",
    "answer, answered, answering, output, response, reply, replie, text",
    "caching, cache, cached",
    "out of memory, oom",
    "start, startup, starting",
)
_SAID = {said: group.split(", ")[0] for group in _GROUPS for said in group.split(", ")}
_ALIKE = {said.replace(" ", "_"): means for said, means in _SAID.items()}
_PHRASE = re.compile(rf"\b(?:{'|'.join(said.replace(' ', r'[ -]') for said in _SAID if ' ' in said)})s?\b")
_JOINED = re.compile(r"(?<!\w)[a-z]++(?:_[a-z]++)++(?!\w)")  # a name as in code
# What went wrong, by a word of it: a symptom of another failure is not the user's.
_FAILURES = {"die": "die", "slow": "slow", "hang": "hang", **dict.fromkeys(("garbage", "wrong", "repeat"), "wrong")}


def sentences(overlays: Sequence[Catalogued]) -> Iterator[tuple[str, Catalogued]]:
    """Yield each symptom with its overlay, but for messages of vLLM in which a word in quotes decides."""
    for item in overlays:
        for told in item.overlay.symptoms:
            if not MESSAGE.match(told) or not KnownLine(told).last_quoted:
                yield told, item


def meanings(text: str) -> dict[str, str]:
    """Return the words of a text that tell something, each with the one that stands for all of its meaning."""
    joined = _PHRASE.sub(lambda found: re.sub("[ -]", "_", found[0]), text.lower())
    return {word: _ALIKE.get(word, word) for word in telling(joined) if word not in _SUBJECTS | _COMPLAINTS}


@cache
def meaning(text: str) -> frozenset[str]:
    """Return the meanings of a text's words."""
    return frozenset(meanings(text).values())


@cache
def _spelled(text: str) -> str:
    """Return the words of a text with one blank around each, those of a name as in code apart."""
    return f" {' '.join(singular(word.text) for word in words_of(text.replace('_', ' ')))} "


@cache
def _names(text: str) -> Mapping[str, str]:
    """Return the names as in code of a text, each with its words apart."""
    return {name: _spelled(name) for name in _JOINED.findall(text.lower())}


def _meaning_for(text: str, told: str) -> frozenset[str]:
    """Return the meanings of a sentence, also of names that it, or the user's text, spells by underscores."""
    same = [name for name, words in _names(text).items() if words in _spelled(told)]
    same += [words for words in _names(told).values() if words in _spelled(text)]
    return meaning(told).union(*map(meaning, same))


def by_words(text: str, told: Sequence[str], always: Sequence[bool]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield which of some sentences have every word of a text, else have the most words of a user's own sentence.

    Words that no sentence has do not count, unless they are most of the text. A line of a log is no sentence of a user.

    Args:
        text: the user's.
        told: the sentences.
        always: which of them need just two of the words beside another one.

    Yields:
        the number of a sentence in `told`, and the text's words that it does not have.
    """
    asked = meanings(text)
    wanted = frozenset(asked.values())
    said = [_meaning_for(text, one) for one in told]
    shared = [len(wanted & one) if _alike(wanted, one) else 0 for one in said]
    best = max(shared, default=0)
    if not _enough(wanted, text, shared) or not (best == len(wanted) or _near(wanted, text, said, best)):
        return
    for number, one in enumerate(said):
        if shared[number] == best or (always[number] and shared[number] >= _FEW):
            yield number, tuple(word.replace("_", " ") for word, means in asked.items() if means not in one)


def _alike(one: AbstractSet[str], other: AbstractSet[str]) -> bool:
    """Whether two texts may be of one failure: one that names none may be of any."""
    failures, others = ({_FAILURES.get(word) for word in words} - {None} for words in (one, other))
    return not failures or not others or not failures.isdisjoint(others)


def _near(wanted: frozenset[str], text: str, said: Sequence[frozenset[str]], best: int) -> bool:
    """Whether the sentences with the most words are worth a look."""
    known = wanted & frozenset().union(*said)
    is_sentence = len(wanted) < _LONG and not _OF_A_LOG.search(text)
    return is_sentence and best >= _FEW and 2 * len(known) >= len(wanted)


def _enough(wanted: frozenset[str], text: str, shared: Sequence[int]) -> bool:
    """Whether these words are enough to search for: two, a failure, or a single one that few sentences have.

    Beside a complaint, as in "MTP bug", any single word is.
    """
    if len(wanted) >= _FEW:
        return True
    words = {word.text for word in words_of(text)}
    if len(words) <= _SHORT and not words.isdisjoint(_COMPLAINTS):
        return not words <= {*_COMPLAINTS, *FREQUENT, "gpu"}
    is_search = len(words) <= _SHORT and words.isdisjoint(_SUBJECTS)
    few = wanted != frozenset() and not wanted & FREQUENT and 3 * sum(shared) < len(shared)
    return few and (is_search or not wanted.isdisjoint(_FAILURES))


def possible(overlays: Sequence[Catalogued], lines: Sequence[KnownLine]) -> Iterator[tuple[Catalogued, str]]:
    """Yield each overlay that states one of these lines, which have many causes, and what makes it that overlay's.

    That is the symptom which states the line, else the overlay's first sentence, else its summary.
    """
    for item in overlays:
        overlay = item.overlay
        own = [told for told in overlay.symptoms if not MESSAGE.match(told)]
        errors = [*overlay.errors, *(line for part in overlay.parts for line in part.errors)]
        stating = [told for told in (*own, *overlay.symptoms, *errors) if _has(told, lines)]
        if stating:
            first = stating[0] if stating[0] in own else next(iter(own), overlay.summary)
            yield item, first


def _has(told: str, lines: Sequence[KnownLine]) -> bool:
    words = words_of(told)
    return any(line.whole(words) for line in lines)

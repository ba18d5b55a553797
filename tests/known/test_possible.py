"""Every symptom leads to its overlay; a line with many causes under a condition, or by all of a log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest
from vpatch.cli.find import FindReport, answered, outcome
from vpatch.cli.target import Target
from vpatch.core.catalogue import Selection
from vpatch.core.overlay import Catalogued, Overlay, Part
from vpatch.known.elsewhere import ELSEWHERE
from vpatch.known.index import Index, KnownMatch, MatchKind
from vpatch.known.logs import Tail, known_in

from tests.known.cases import LOCKED, SHARED
from tests.known.test_lines import INDEX, name
from tests.readme import README

ILLEGAL = "(EngineCore pid=7) ERROR 11-28 [core.py:9] torch.AcceleratorError: CUDA error: an illegal memory access was"
CONFIG = "INFO 11-28 [core.py:9] Initializing: speculative_config=SpeculativeConfig(method='mtp', num_spec_tokens=3)"
MAMBA = (
    "INFO [x.py:6] Setting attention block size to 528 tokens to ensure that attention page size is >= mamba page size."
)
PIECEWISE = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|####| 9/9"
FULL = "Capturing CUDA graphs (decode, FULL): 100%|####| 9/9"
SIZES, BLOCKS, TILES, KEY = "mtp-capture-sizes", "hybrid-block-units", "turboquant-tiles", "compile-cache-key"
GARBAGE = "DEBUG nothing of it\n"


def kinds(found: Sequence[KnownMatch]) -> dict[str, MatchKind]:
    return {name(one): one.kind for one in found}


def in_log(*lines: str) -> dict[str, MatchKind]:
    """Return what is known of a log, which is long or pasted; both have to be the same."""
    text = GARBAGE.join(f"{line}\n" for line in lines)
    data = text.encode()
    found = known_in(INDEX, Tail((data[:90], data[90:]), len(data), len(data)))
    assert kinds(found) == kinds(INDEX.find(text))
    return kinds(found)


def texts(item: Catalogued) -> Iterator[str]:
    yield from (*item.overlay.symptoms, *item.overlay.errors)
    for part in item.overlay.parts:
        yield from part.errors


@pytest.mark.parametrize("item", INDEX.overlays, ids=lambda item: item.id)
def test_what_an_overlay_states_leads_to_it(item: Catalogued) -> None:
    """Each symptom and error line, also in a sentence, and with the marks of a page's source."""
    for text in texts(item):
        for pasted in (text, f"I see this since today: > **{text}** Why?"):
            assert name(INDEX.find(pasted)[0]) == item.id, pasted


def test_each_row_of_the_readme_leads_to_its_overlay() -> None:
    """As a line of the file and as its cells; the links of a row lead to it, too."""
    rows = re.findall(r"^\| (.+) \| `([\w-]+)`.* \| .* \| (.*) \|$", README.read_text(), re.MULTILINE)
    wrong = []
    for cell, overlay, links in rows:
        wrong += [line for line in (cell, *cell.split("<br>")) if name(INDEX.find(line)[0]) != overlay]
        for number, address in re.findall(r"\[(#\d+)\]\(([^)]+)\)", links):
            asked = (number[1:], f"see {address} please")
            wrong += [one for one in asked if overlay not in kinds(INDEX.find(one))]

    assert len(rows) > 25
    assert not wrong


@pytest.mark.parametrize(("text", "overlay", "cause"), SHARED)
def test_an_overlay_under_its_condition_and_then_the_cause(text: str, overlay: str, cause: str) -> None:
    first, *_, last = INDEX.find(text)

    assert (name(first), first.kind) == (overlay, MatchKind.POSSIBLE)
    assert first.source.overlay
    assert first.condition in first.source.overlay.overlay.symptoms
    assert name(last).startswith(cause)


def test_the_rest_of_a_log_proves_it() -> None:
    """All graphs are PIECEWISE, of a hybrid model with speculation; FULL ones beside them, and it is open."""
    perhaps = {SIZES: MatchKind.POSSIBLE, BLOCKS: MatchKind.POSSIBLE, "illegal memory access": MatchKind.LINE}

    assert in_log(CONFIG, MAMBA, PIECEWISE, ILLEGAL) == {SIZES: MatchKind.LINE, "illegal memory access": MatchKind.LINE}
    assert in_log(CONFIG, MAMBA, PIECEWISE, FULL, ILLEGAL) == perhaps
    assert in_log(CONFIG, PIECEWISE, ILLEGAL) == perhaps
    assert in_log("Capturing CUDA graphs (PIECEWISE): 100%", CONFIG, ILLEGAL) == perhaps
    assert in_log(CONFIG, MAMBA, PIECEWISE) == {}
    (found, *_) = INDEX.find("\n".join((CONFIG, MAMBA, PIECEWISE, ILLEGAL)))
    assert (found.beside, found.condition) == (found.source.overlay.overlay.beside if found.source.overlay else (), "")


def test_other_logs_that_prove_it() -> None:
    memory, key = "torch.OutOfMemoryError: CUDA out of memory.", "KeyError: 'weight'"
    trace = 'ERROR   File "/opt/vllm/v1/attention/backends/turboquant_attn.py", line 702, in _continuation_prefill'
    loaded = "INFO 11-28 [decorators.py:306] Directly load AOT compilation from path /root/.cache/x"
    copied = "RuntimeError: Cannot copy between CPU and CUDA tensors during CUDA graph capture unless"

    assert in_log(trace, memory)[TILES] is MatchKind.LINE
    assert in_log(memory)[TILES] is MatchKind.POSSIBLE
    assert in_log(loaded, key)[KEY] is MatchKind.LINE
    assert in_log(key)[KEY] is MatchKind.POSSIBLE
    assert in_log(CONFIG, trace, copied)["turboquant-mtp"] is MatchKind.LINE
    assert in_log(CONFIG, copied)["turboquant-mtp"] is MatchKind.POSSIBLE
    assert in_log(loaded, LOCKED) == {"turboquant-workspace": MatchKind.LINE}


def test_a_line_that_names_the_code_leaves_no_other_overlay() -> None:
    assert kinds(INDEX.find("illegal memory access in precopy_mamba_align_fused_kernel")) == {
        BLOCKS: MatchKind.LINE,
        "illegal memory access": MatchKind.LINE,
    }


def test_no_advice_names_an_overlay_that_is_not_named_itself() -> None:
    """So that "no overlay mends this" never stands below advice that names one."""
    for one in ELSEWHERE:
        for text in (*one.lines, *one.seen):
            mine = {item.id for item in INDEX.overlays if item.id in one.advice}
            assert mine <= {*kinds(INDEX.find(text))}, text
    assert all(INDEX.possible[one] for one in ELSEWHERE if one.shared)


def test_of_an_overlay_that_states_just_a_line_the_condition_is_its_summary() -> None:
    message = "RuntimeError: CUDA error: an illegal memory access was encountered"
    other = Catalogued("other", Overlay("Rows of drafts.", (Part("p"),), symptoms=(message,)), "")
    first, cause = Index((other,)).find("an illegal memory access was encountered")

    assert (name(first), first.kind, first.condition) == ("other", MatchKind.POSSIBLE, "Rows of drafts.")
    assert name(cause) == "illegal memory access"


def test_names_and_numbers() -> None:
    mention = MatchKind.MENTION

    assert (
        kinds(INDEX.find(" turboquant_hybrid"))
        == kinds(INDEX.find("turboquant-hybrid"))
        == {"turboquant-hybrid": mention}
    )
    assert kinds(INDEX.find("39931")) == {"turboquant-hybrid": mention}
    assert kinds(INDEX.find("PR 46324")) == kinds(INDEX.find("issue #46324?")) == {SIZES: mention}
    assert {*kinds(INDEX.find("noonghunna/club-3090#1061")).values()} <= {mention}
    for text in (
        "99999",
        "other/vllm#39931",
        "39931.5",
        "1#39931",
        "frame #2: f()",
        "https://github.com/a/b/pull/39931",
    ):
        assert not INDEX.find(text), text
    assert "turboquant-workspace" in kinds(INDEX.find(f"{LOCKED} (as in #39931)"))


def test_words_of_which_no_symptom_has_all() -> None:
    """The nearest symptoms, with the words that they lack; a line of a log has no nearest one."""
    found = INDEX.find("MTP accuracy drop")
    target = Target(None, None, Selection(()), verbose=False)
    answers = answered(found, (), target)
    shown = "\n".join(line.text for line in FindReport(answers=answers, verdicts=(), tree=None).shown(None))

    assert {one.lacks for one in found} == {("drop",)}
    assert "      it does not say: drop\n" in shown
    assert "`vpatch show hybrid-mtp-counts`" in shown
    assert outcome(answers, target).startswith(
        "No symptom has all of these words. 4 overlays known for this, besides the"
    )
    assert not INDEX.find("ERROR [core.py:9] MTP accuracy drop")
    assert not INDEX.find("MTP accuracy benchmark drop percent")
    (whole,) = INDEX.find("worker dies when CUDA graphs are captured, expandable segments in use")
    assert (name(whole), whole.lacks) == ("custom-ar-expandable", ())


@pytest.mark.parametrize(
    "words",
    [
        *("wrong answers with MTP", "With MTP the output repeats itself", "Qwen3.5 loops with MTP"),
        *("MTP gives wrong tokens", "garbled output speculative decoding", "speculative decoding wrong output"),
        "after I turned on num_speculative_tokens the model babbles",
        *("The model returns !!!! for Qwen3.6 with MTP", "wrong answers with prefix caching", "mtp", "garbage"),
        *("MTP bug", "speculative decoding broken", "spec decode"),
    ],
)
def test_wrong_answers_have_the_page_of_all_their_causes(words: str) -> None:
    *overlays, advice = INDEX.find(words)

    assert overlays
    assert len({one.source.key for one in overlays}) == len(overlays)
    assert advice.source.elsewhere
    assert advice.source.elsewhere.link == "speculation.md"


@pytest.mark.parametrize(
    ("text", "overlay", "kind"),
    [
        ("ValueError: invalid literal for int() with base 10:", "turboquant-skip-list", MatchKind.POSSIBLE),
        ("AssertionError: Workspace is locked but allocation from '", "turboquant-workspace", MatchKind.POSSIBLE),
        ("Workspace is locked", "turboquant-workspace", MatchKind.POSSIBLE),
        ("Unknown TurboQuant cache dtype", "turboquant-auto-dtype", MatchKind.POSSIBLE),
        ("lm_head.weight_scale", "ct-fp8-lm-head", MatchKind.PART),
        ("sliding_window", "turboquant-skip-list", MatchKind.PART),
        ("Failed to advance FSM", "structured-mtp", MatchKind.PART),
    ],
)
def test_a_piece_of_a_line(text: str, overlay: str, kind: MatchKind) -> None:
    """Where the word in quotes is still to come, which decides, the overlay's condition is that it comes."""
    first = INDEX.find(text)[0]

    assert (name(first), first.kind) == (overlay, kind)
    assert first.condition == (f"it goes on as in {first.known}" if kind is MatchKind.POSSIBLE else "")

"""Read vLLM's log of a start: what was started, and what it counted.

Every number is one that vLLM prints (0.18 to the newest). Prefixes of lines, by vLLM, Docker or others, do not matter.
Of several workers, the one with the least memory for its KV cache decides in vLLM, and so here.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from vpatch.errors import Failure, Problem
from vpatch.plan.checkpoint_files import read_bytes
from vpatch.plan.deployment import MOST

LOG_BYTES = 256 << 20
UNREADABLE = "cannot use this log"
_LONGEST = 4096  # characters of an argument
_DEEPEST = 8  # lists and dictionaries inside each other, in an argument

# A log is foreign text: each repeat is bounded or possessive (`++`), and each expression begins with a word that cannot
# begin again inside its own match. So a search takes a time that grows with the text's length alone.
_NUMBER = r"(-?\d{1,7}(?:\.\d{1,9})?)"
_COUNT = r"(\d{1,3}(?:,\d{3}){1,4}|\d{1,15})"

# The numbers of a start, by name, each with the expression that finds it.
PRINTED: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "weights_gib": rf"Model loading took {_NUMBER} GiB",
        "kv_cache_gib": rf"Available KV cache memory: {_NUMBER} GiB",
        "kv_cache_in_use_gib": rf"Current kv cache memory in use is {_NUMBER} GiB",
        "needed_gib": rf"(?<!\d){_NUMBER} GiB KV cache is needed, which is larger than the available KV cache memory",
        "refused_kv_cache_gib": rf"is larger than the available KV cache memory \({_NUMBER} GiB\)",
        "estimated_graphs_gib": rf"Estimated CUDA graph memory: {_NUMBER} GiB",
        "graphs_gib": rf"Graph capturing finished in \d{{1,9}} secs, took {_NUMBER} GiB",
        "block_size": rf"Setting attention block size to {_COUNT} tokens",
        "tokens": rf"GPU KV cache size: {_COUNT} tokens",
        "max_model_len": rf"Maximum concurrency for {_COUNT} tokens per request",
        "concurrency": rf"Maximum concurrency for {_COUNT} tokens per request: {_NUMBER}x",
        "batch": rf"Chunked prefill is enabled with max_num_batched_tokens={_COUNT}",
        "total_gib": rf"Free memory on device[^(]{{0,40}}\({_NUMBER}/(\d{{1,7}}(?:\.\d{{1,9}})?) GiB\)",
        "state_blocks": rf"exceeds available Mamba cache blocks \({_COUNT}\)",
    }.items()
}
# What vLLM had for its KV cache: first counted, then as it says once it has started, or as it says when it refuses.
# `Start.counting` adds the last, which no release prints.
_KV_CACHE = ("kv_cache_gib", "kv_cache_in_use_gib", "refused_kv_cache_gib", "counted_kv_cache_gib")
_REFUSALS = re.compile(
    "KV cache is needed, which is larger than|No available memory for the cache blocks|available Mamba cache blocks"
    "|is less than desired GPU memory utilization|CUDA out of memory"
)
_ENGINE = re.compile(r"Initializing a V1 LLM engine \(v([^)\s]{1,100})\)(?: with config: )?(.*)")
_VERSION = re.compile(r"vLLM API server version (\S{1,100})|\bversion (\d{1,6}\.\d{1,6}\.\d{1,6}\S{0,100})\s{0,10}$")
_ARGUMENTS = re.compile(r"non-default args: (\{.*)")
_SETTING = re.compile(r"\b(\w++)=('[^']*+'|[^\s,]++)")
_PAIR = re.compile(r"'(\w++)': ('[^']*+'|-?[\d.]++|True|False|None)")
_DRAFTS = re.compile(r"\bSpeculativeConfig\(method='([^']{1,40})'[^)]{0,400}?num_spec_tokens=(\d{1,3})\b")
# Settings of the engine that tell what is the default of a release or of a model, by the option's name.
_SETTINGS = {
    **{name: name for name in ("tensor_parallel_size", "pipeline_parallel_size", "kv_cache_dtype", "enforce_eager")},
    **{name: name for name in ("enable_prefix_caching", "model", "data_parallel_size")},
    "max_seq_len": "max_model_len",
}


@dataclass(frozen=True)
class Start:
    """A start of vLLM as its log has it.

    Attributes:
        arguments: options of `vllm serve` with their values, given by the user or printed by the engine.
        printed: numbers by the names of `PRINTED`, in GiB, tokens or blocks.
        refused: whether vLLM did not start for want of memory.
        lines: the lines that all of this is from.
    """

    vllm: Version
    arguments: Mapping[str, Any]
    printed: Mapping[str, float]
    refused: bool
    lines: Sequence[str] = field(default=(), repr=False)

    @property
    def model(self) -> str:
        """The model's name or folder, as it was given; "" if the log does not have it."""
        return str(self.arguments.get("model") or self.arguments.get("model_tag") or "")

    @property
    def kv_cache_gib(self) -> float:
        """What vLLM had for its KV cache."""
        return next((self.printed[name] for name in _KV_CACHE if name in self.printed), 0.0)

    def counting(self, kv_cache_gib: float) -> Start:
        """Return this start with a KV cache whose size is not printed, but follows from what is in it."""
        return replace(self, printed={**self.printed, "counted_kv_cache_gib": kv_cache_gib})


def read(path: Path, vllm: str = "") -> Start:
    """Read the log in a file; `vllm` is for one that does not have the version.

    Raises:
        Failure: the file cannot be read, or is no log of one start as far as the size of the KV cache.
    """
    return start_of(read_bytes(path, LOG_BYTES).decode("utf-8", "replace").splitlines(), str(path), vllm)


def start_of(
    lines: Sequence[str], where: str, vllm: str = "", given: Mapping[str, Any] | None = None, *, counted: bool = True
) -> Start:
    """Read the lines of a log, called `where`; `vllm` and `given` are what is known of it besides.

    Args:
        counted: whether it must have the size of the KV cache.

    Raises:
        Failure: it is no log of one start, or not as far as that.
    """
    used = [line for line in lines if any(pattern.search(line) for pattern in (*PRINTED.values(), *_OTHERS))]
    engines = [found for line in used if (found := _ENGINE.search(line))]
    servers = [text[: text.rfind("}") + 1] for text in _each(_ARGUMENTS, used)]
    printed, refused = dict(_numbers(used)), any(_REFUSALS.search(line) for line in used)
    if cause := _unusable(lines, used, max(len({found[2] for found in engines}), len(servers))):
        raise Failure(Problem(UNREADABLE, where, cause))
    if counted and not refused and printed.keys().isdisjoint((*_KV_CACHE, "tokens")):
        cause = "it ends before vLLM says how much memory there is for the KV cache"
        raise Failure(Problem(UNREADABLE, where, cause))
    # The first of a name: later ones are of the draft model, and the like.
    settings = dict(reversed(_SETTING.findall(engines[0][2]))) if engines else {}
    printed_options = {option: _value(settings[name]) for name, option in _SETTINGS.items() if name in settings}
    if engines and (drafts := _DRAFTS.search(engines[0][2])):
        printed_options["speculative_config"] = {"method": drafts[1], "num_speculative_tokens": int(drafts[2])}
    arguments = {**printed_options, **(_literal(servers[0]) if servers else {}), **(given or {})}
    if odd := [name for name, value in arguments.items() if not _is_plain(name) or not _is_plain(value)]:
        raise Failure(Problem(UNREADABLE, where, f"no option of vLLM has such a value: {str(odd[0])[:40]}"))
    return Start(_version(used, vllm, where), arguments, printed, refused, used)


def _unusable(lines: Sequence[str], used: Sequence[str], starts: int) -> str:
    """Return why the lines are not those of one start; "" if they are."""
    if not used:
        return "vLLM printed none of it" if lines else "it is empty"
    if starts > 1:
        return f"it has {starts} starts: give the lines of one"
    several = len(_each(PRINTED["tokens"], used)) > 1
    return "it has KV caches of several sizes: give the lines of one start" if several else ""


def _each(pattern: re.Pattern[str], lines: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(found[1] for line in lines if (found := pattern.search(line))))


def _numbers(lines: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield each number that is printed: of several workers the least for the KV cache, and the most for the rest."""
    for name, pattern in PRINTED.items():
        found = [match.groups()[-1] for line in lines if (match := pattern.search(line))]
        values = [float(value.replace(",", "")) for value in found]
        if values:
            yield name, min(values) if name in (*_KV_CACHE, "total_gib") else max(values)


_OTHERS = (_ENGINE, _VERSION, _ARGUMENTS, _REFUSALS)


def _version(lines: Sequence[str], given: str, where: str) -> Version:
    patterns = (_ENGINE, _VERSION)
    named = [next(filter(None, found.groups())) for p in patterns for line in lines if (found := p.search(line))]
    for name in (*([given] if given else ()), *named):
        try:
            return Version(name.removeprefix("v"))
        except ValueError:  # no version, or a number of more digits than Python reads
            continue
    raise Failure(Problem(UNREADABLE, where, "it does not have the version of vLLM: give --vllm"))


def _literal(text: str) -> dict[str, Any]:
    """Read a dictionary as Python prints it; where it has values that are no literals, the plain ones."""
    try:
        found = _evaluated(text)
    except ValueError:
        return {name: _value(value) for name, value in _PAIR.findall(text)}
    return found if isinstance(found, dict) else {}


def _value(text: str) -> Any:
    try:
        return _evaluated(text)
    except ValueError:
        return text


def _evaluated(text: str) -> Any:
    """Evaluate a literal of Python; raise ValueError if it is none."""
    if len(text) > _LONGEST * _DEEPEST:
        raise ValueError("too long")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of backslashes that mean nothing
        try:
            return ast.literal_eval(text)
        except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise ValueError("no literal") from error


def _is_plain(value: object, depth: int = _DEEPEST) -> bool:
    """Return whether JSON has such a value, and its texts and numbers are no longer than an option's."""
    match value:
        case None | bool():
            return True
        case int() | float():
            return abs(value) <= MOST  # which neither infinity nor "not a number" is
        case str():
            return len(value) <= _LONGEST
        case list() | tuple():
            return depth > 0 and all(_is_plain(one, depth - 1) for one in value)
        case dict():
            return depth > 0 and all(isinstance(k, str) and _is_plain(v, depth - 1) for k, v in value.items())
    return False

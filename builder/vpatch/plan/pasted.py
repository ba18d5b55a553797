"""Read a pasted `vllm serve`, or `docker run` of it: the options that memory depends on, and the others by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from vpatch.errors import Problem, UnknownName, did_you_mean, nearest, shell
from vpatch.plan.container import SECRETS, Container, Option, absent, by_name, container
from vpatch.plan.deployment import table
from vpatch.plan.log_comparison import NOT_MODELED

_TABLE = table("options.toml")
_IGNORED, _FLAGS = frozenset(_TABLE["ignored"]), frozenset(_TABLE["flags"])
_SHORT: Mapping[str, str] = _TABLE["short"]
# What plan does not model, with the values that make no difference.
_UNMODELED: Mapping[str, Sequence[str]] = {
    **{name.replace("_", "-"): [str(usual)] for name, usual in NOT_MODELED.items()},
    **_TABLE["unmodeled"],
}
_READ = frozenset(_TABLE["read"])
_SWITCHES = frozenset(_TABLE["switches"])  # options that are read and have no value
_DRAFT = {"spec-method": "method", "spec-tokens": "num_speculative_tokens", "spec-model": "model"}
_DRAFTED = ("method", "num_speculative_tokens")  # what the printed command has of it
_SERVER = "vllm.entrypoints.openai.api_server"
_READS = "plan reads `vllm serve MODEL ...`, and `docker run ... IMAGE` of it"
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_VALUE = re.compile(r"(?!-)|-[\d.]")  # a negative number is no option


@dataclass(frozen=True)
class Pasted:
    """A pasted command.

    Attributes:
        model: its model; of a folder that a container has from this machine, where it is here.
        options: the options that plan reads, by their names in `vllm serve`: a text, of a switch whether it is on.
        drafts: tokens of multi-token prediction, None without it.
        environment: variables before the command, or of its container, as NAME=VALUE; secrets as NAME.
        extra: the arguments that plan does not read, as they are.
        ignored: names of options that memory does not depend on.
        unmodeled: names of options that memory depends on, in a way that plan does not model.
        unknown: names of options that plan does not know.
        dropped: what the printed command does not have of it, in words.
        container: the container that it runs in, None without one.
        absent: names of secrets that this shell lacks.
    """

    model: str
    options: Mapping[str, str | bool]
    drafts: int | None
    environment: tuple[str, ...]
    extra: tuple[str, ...]
    ignored: tuple[str, ...]
    unmodeled: tuple[str, ...]
    unknown: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    container: Container | None = None
    absent: tuple[str, ...] = ()

    def remarks(self) -> Iterator[str]:
        """Yield a line for each kind of options that plan does not read: what they are to it."""
        of_docker = [f"--{name}" for one in (self.container.options if self.container else ()) for name in one.names]
        for names, are in (
            (dict.fromkeys(of_docker), "of docker, not of vLLM"),
            (self.ignored, "not read, since memory does not depend on them"),
            (self.unmodeled, "not modeled, though memory depends on them: the plan is as without them"),
            ([one for one in self.unknown if not self._meant[one]], "not known: the plan is as without them"),
        ):
            if names:
                yield f"options {are}: {', '.join(names)}"
        if self.absent:
            secrets = " and ".join(self.absent)
            yield f"variables whose values are not printed: export {secrets} in the shell that runs it"
        if self.dropped:
            yield f"the printed command lacks {'; '.join(self.dropped)}"

    def mistyped(self) -> Iterator[str]:
        """Yield a line for each option that plan does not know, and that is close to one that it knows."""
        for option, meant in self._meant.items():
            if meant:
                yield f"{option} is not known: {meant} The plan is as without it; a printed command keeps it"

    @cached_property
    def _meant(self) -> Mapping[str, str]:
        """By option that is not known, the question for the one that may be meant; "" if none is close."""
        known = [f"--{name}" for name in sorted(_READ | _SWITCHES | _FLAGS | _IGNORED | {*_UNMODELED})]
        return {option: did_you_mean(nearest(option, known)) for option in self.unknown}


def read(words: Sequence[str]) -> Pasted:
    """Read the words of a command, as a shell splits them.

    Raises:
        UnknownName: it is not `vllm serve` or its module, also not in a container, it has no model, or its
            --speculative-config is no JSON object.
    """
    run, command, found = _parts(words)
    models, given = _split(command[found:])
    options: dict[str, str | bool] = {}
    draft: dict[str, Any] = {}
    rest: dict[str, list[str]] = {"ignored": [], "unmodeled": [], "unknown": []}
    secrets: dict[str, str] = {}
    dropped: list[str] = []
    extra: list[str] = []
    drafting: list[str] = []
    for name, values, raw in given:
        if name == "model":
            models = [*values, *models]
        elif name == "speculative-config" or name in _DRAFT or name.startswith("speculative-config."):
            draft |= _draft_of(name, values)
            drafting += raw
        elif (plain := name.removeprefix("no-")) in _SWITCHES:
            options[plain] = plain == name
        elif name in _READ:
            options[name] = "".join(values)  # at most one
        elif name in SECRETS and values:
            secrets.setdefault(name, values[0])
            dropped += [f"all values of --{name} but the first"] if len(values) > 1 else []
        else:
            extra += raw
            rest[_kind(name, values)].append(f"--{name}")
    drafts = _tokens(draft)
    if draft and drafts is None:
        extra += drafting
        rest["unmodeled"].append(f"--speculative-config with {str(draft.get('method', 'a draft model'))[:40]}")
    if not models:
        raise UnknownName(Problem("no model", " ".join(words)[:80], "the command names none"))
    kinds = {kind: tuple(dict.fromkeys(names)) for kind, names in rest.items()}
    variables = tuple(word for word in command[:found] if _VARIABLE.fullmatch(word))
    keys = [f"{SECRETS[name]}={value}" for name, value in secrets.items()]
    lost = [] if drafts is None else [str(key)[:40] for key in draft if key not in _DRAFTED]
    dropped += [f"these fields of --speculative-config: {', '.join(lost)}"] if lost else []
    model = models[0]
    if run:
        run = replace(run, inside=_inside(run, found, model), options=(*run.options, *map(Option.variable, keys)))
        variables, keys = (*run.environment, *variables), []
        model = run.here(model)
    variables = (*variables, *keys)
    kinds["absent"] = tuple(dict.fromkeys(absent(variables)))
    variables = tuple(dict.fromkeys(map(by_name, variables)))
    return Pasted(model, options, drafts, variables, tuple(extra), **kinds, dropped=tuple(dropped), container=run)


def _parts(words: Sequence[str]) -> tuple[Container | None, Sequence[str], int]:
    """Return the container of a command, the words of vLLM's command, and the index of the first argument of that.

    Raises:
        UnknownName: it is not `vllm serve` or its module.
    """
    run = container(words)
    command = run.command if run else words
    found = _after_program(command)
    if found is None and run and run.entrypoint is None:
        found = 0  # all of it is for the image's own
    if found is None:
        own = [word for before, word in pairwise(words) if PurePath(before).name == "vllm"]
        right = ["serve" if word in own and nearest(word, ["serve"]) else word for word in words]
        hint = f"did you mean {shell('vpatch', 'plan', '--', *right)}?" if right != [*words] else ""
        raise UnknownName(Problem("no vllm serve", " ".join(words)[:80], _READS, hint=hint))
    return run, command, found


def _inside(run: Container, found: int, model: str) -> tuple[str, ...]:
    """Return the words behind the image up to the model, which the module takes by an option only."""
    own = run.command[bool(run.entrypoint) : found]
    return (*own, *(("--model",) if own[-1:] == (_SERVER,) else ()), model)


def _after_program(words: Sequence[str]) -> int | None:
    """Return the index of the first argument of `vllm serve`; None if the words are another command."""
    for index, word in enumerate(words):
        if word == _SERVER:
            return index + 1
        if PurePath(word).name == "vllm" and list(words[index + 1 : index + 2]) == ["serve"]:
            return index + 2
    return None


def _split(arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, list[str], list[str]]]]:
    """Divide arguments into models, and options: the full name, the values, and the words as they are."""
    models: list[str] = []
    given: list[tuple[str, list[str], list[str]]] = []
    for word in arguments:
        if not _VALUE.match(word):
            option, equals, value = word.partition("=")
            given.append((_full(option), [value] if equals else [], [word]))
        elif given and _takes(given[-1]):
            given[-1][1].append(word)
            given[-1][2].append(word)
        else:
            models.append(word)
    return models, given


def _takes(option: tuple[str, list[str], list[str]]) -> bool:
    """Return whether a word behind an option is a value of it."""
    name, values, _ = option
    if name.removeprefix("no-") in _SWITCHES | _FLAGS:
        return False
    return not values or name not in _READ | {"model"}


def _full(option: str) -> str:
    """Return an option's name without dashes: of a short one the long, of one in underscores that in hyphens."""
    name = option.lstrip("-")
    if option.startswith("--"):
        head, dot, tail = name.partition(".")
        return head.replace("_", "-") + dot + tail
    return _SHORT.get(name, name if len(name) > 2 or not name.startswith("O") else "optimization-level")


def _kind(name: str, values: Sequence[str]) -> str:
    """Return what an option is that plan does not read."""
    plain = name.partition(".")[0]
    if plain in _UNMODELED:
        return "ignored" if values and set(values) <= {*_UNMODELED[plain]} else "unmodeled"
    plain = plain.removeprefix("no-")
    return "ignored" if plain in _IGNORED or plain in _FLAGS else "unknown"


def _draft_of(name: str, values: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a configuration of speculative decoding that an option sets."""
    value = values[0] if values else ""
    if name == "speculative-config":
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            hint = 'quote it, as --speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\''
            raise UnknownName(Problem("not a JSON object", "--speculative-config", value[:80], hint=hint))
        return found
    return {_DRAFT.get(name) or name.partition(".")[2]: value}


def _tokens(draft: Mapping[str, Any]) -> int | None:
    """Return the tokens of multi-token prediction; None if that is not what drafts."""
    tokens = str(draft.get("num_speculative_tokens", ""))
    mtp = "mtp" in str(draft.get("method", ""))
    return int(tokens) if mtp and re.fullmatch(r"\d{1,4}", tokens) else None

"""Read a pasted `docker run` or `podman run`: the program's own options, the image, and the command inside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath

from vpatch.errors import Problem, UnknownName
from vpatch.plan.deployment import table

PROGRAMS = ("docker", "podman")
SECRETS = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}
"""The options of `vllm serve` that are secrets, and the variables that vLLM reads without them."""

_TABLE = table("docker.toml")
_FLAGS, _VALUES = frozenset(_TABLE["flags"]), frozenset(_TABLE["values"])
_SHORT: Mapping[str, str] = _TABLE["short"]
_RUN = (("run",), ("container", "run"))
_SECRET = re.compile(r"\b(\w*(?:TOKEN|KEY|SECRET|PASS|PASSWD|PASSWORD))=([^\s'\"]+)", re.IGNORECASE)
_WORD = r"[^\s'\"-][^\s'\"]*"
_NAMES = "|".join(name.replace("-", "[-_]") for name in SECRETS)
_NAMED = re.compile(rf"--(?:{_NAMES})")
_GIVEN = re.compile(rf"({_NAMED.pattern}[ =]){_WORD}(?:\s+{_WORD})*")
_RELEASE = re.compile(r"v?(\d{1,4}\.\d{1,4}\.\d{1,4}(?:\.post\d{1,3})?)(?:-(cu\d{1,4}))?(?:-\w[\w.-]{0,99})?")


@dataclass(frozen=True)
class Option:
    """One of docker's options: its full name, of flags that are joined (`-it`) each; its value; the words to print."""

    names: tuple[str, ...]
    value: str
    words: tuple[str, ...]

    @classmethod
    def variable(cls, value: str) -> Option:
        """Return the option that sets a variable, NAME=VALUE."""
        return cls(("env",), value, ("-e", value))

    @property
    def shown(self) -> tuple[str, ...]:
        """The words, of a variable that is a secret without its value, which docker takes from the shell."""
        name = by_name(self.value)
        return ("-e", name) if self.names == ("env",) and name != self.value else self.words


@dataclass(frozen=True)
class Container:
    """A pasted `docker run`.

    Attributes:
        program: the words up to `run`.
        options: docker's own options.
        image: the image's name.
        arguments: the words behind the image.
        inside: the first of them, up to the model of vLLM, which is the last one.
    """

    program: tuple[str, ...]
    options: tuple[Option, ...]
    image: str
    arguments: tuple[str, ...]
    inside: tuple[str, ...] = ()

    @property
    def entrypoint(self) -> str | None:
        """What `--entrypoint` names, None without it: then the image's own runs, which is `vllm serve`."""
        return next((one.value for one in reversed(self.options) if one.names == ("entrypoint",)), None)

    @property
    def command(self) -> tuple[str, ...]:
        """What runs in the container, without what the image's own entry point puts before it."""
        return (self.entrypoint, *self.arguments) if self.entrypoint else self.arguments

    @property
    def environment(self) -> tuple[str, ...]:
        """The variables that have a value, as NAME=VALUE."""
        return tuple(one.value for one in self.options if one.names[-1] == "env" and "=" in one.value)

    def here(self, path: str) -> str:
        """Return where a path of the container is on this machine; the path itself if it is not mounted from here."""
        mounts = sorted(self._mounts(), key=lambda pair: len(pair[1].parts))
        for source, target in reversed(mounts):
            if PurePosixPath(path).is_relative_to(target):
                return str(source / PurePosixPath(path).relative_to(target))
        return path

    def _mounts(self) -> Iterator[tuple[PurePosixPath, PurePosixPath]]:
        """Yield the folders of this machine that are mounted, and where they are in the container."""
        for option in self.options:
            source = target = ""
            if option.names[-1] == "volume":
                source, _, target = option.value.partition(":")
                target = target.partition(":")[0]
            elif option.names[-1] == "mount":
                fields = dict(field.partition("=")[::2] for field in option.value.split(","))
                source = fields.get("source") or fields.get("src", "")
                target = fields.get("target") or fields.get("dst") or fields.get("destination", "")
            if source.startswith(("/", ".")) and target.startswith("/"):  # else it is a volume's name
                yield PurePosixPath(source), PurePosixPath(target)


def container(words: Sequence[str]) -> Container | None:
    """Read the words of a command, as a shell splits them; return None if they are no `docker run`.

    Raises:
        UnknownName: an option is not known, so that its value may be the image; or there is no image.
    """
    if (start := _after_run(words)) is None:
        return None
    options, at = [], start
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        options.append(_option(words[at:]))
        at += len(options[-1].words)
    at += words[at : at + 1] == ["--"]
    if at >= len(words):
        raise UnknownName(Problem("no image", " ".join(words)[:80], "the command names none"))
    return Container(tuple(words[:start]), tuple(options), words[at], tuple(words[at + 1 :]))


def release(image: str) -> tuple[str, str]:
    """Return the release of vLLM and the suffix for CUDA that an image's tag names, each "" if it names none.

    Only an image called `vllm-openai` has the release as its tag: those of others count something else.
    """
    repository, tag = divided(image)
    found = _RELEASE.fullmatch(tag) if PurePosixPath(repository).name == "vllm-openai" else None
    return (found[1], found[2] or "") if found else ("", "")


def divided(image: str) -> tuple[str, str]:
    """Return an image's name without tag and digest, and its tag: `latest` if it has neither, "" for a digest alone."""
    rest, at, _ = image.partition("@")
    folder, slash, last = rest.rpartition("/")
    name, _, tag = last.partition(":")
    return folder + slash + name, tag or ("" if at else "latest")


def _after_run(words: Sequence[str]) -> int | None:
    """Return the index behind `docker run` or `docker container run`; None if the words are another command."""
    for at, word in enumerate(words, 1):
        for run in _RUN if PurePath(word).name in PROGRAMS else ():
            if tuple(words[at : at + len(run)]) == run:
                return at + len(run)
    return None


def _option(words: Sequence[str]) -> Option:
    """Read the option that words begin with."""
    word = words[0]
    if word.startswith("--"):
        name, joined, value = word[2:].partition("=")
        names, known = [name], bool(joined)
    else:
        names, value = _letters(word[1:])
        known = bool(value) and names[-1] in _VALUES
    if known or {*names} <= _FLAGS:
        return Option(tuple(names), value, (word,))
    if names[-1] not in _VALUES:
        why = "plan cannot tell whether the next word is its value or the image"
        hint = f"write --{names[-1]}=VALUE, or --{names[-1]}=true if it takes none" if word.startswith("--") else ""
        raise UnknownName(Problem("unknown option of docker", word, why, hint=hint))
    return Option(tuple(names), "".join(words[1:2]), tuple(words[:2]))


def _letters(letters: str) -> tuple[list[str], str]:
    """Return the full names of short options that are joined, and the value of the last one, if it is joined, too."""
    names: list[str] = []
    for at, letter in enumerate(letters, 1):
        names.append(_SHORT.get(letter, letter))
        if names[-1] not in _FLAGS:
            return names, letters[at:].removeprefix("=")
    return names, ""


def by_name(variable: str) -> str:
    """Return a variable, NAME=VALUE, by its name alone if it is a secret: that is not printed."""
    return variable.partition("=")[0] if _SECRET.match(variable) else variable


def masked(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command with `...` for each secret in them, as in that of `bash -c`, too."""
    hidden = False
    for word in words:
        hidden = hidden and not word.startswith("-")
        yield "..." if hidden else _SECRET.sub(r"\1=...", _GIVEN.sub(r"\1...", word))
        hidden = hidden or bool(_NAMED.fullmatch(word))


def absent(variables: Sequence[str]) -> Iterator[str]:
    """Yield the name of each secret with a value that this shell does not have."""
    for variable in variables:
        name, _, value = variable.partition("=")
        if by_name(variable) != variable and value not in (os.environ.get(name), f"${name}", f"${{{name}}}"):
            yield name

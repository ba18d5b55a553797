"""A Docker engine, or any that serves the same API: find, pull, tag, push and remove images in it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import requests
from docker import DockerClient, from_env
from docker.credentials.errors import StoreError
from docker.errors import APIError, DockerException, ImageNotFound
from docker.utils import parse_host, parse_repository_tag

from vpatch.errors import Failure, Problem, UnknownName, cause, did_you_mean, nearest
from vpatch.image import Phase, Watch
from vpatch.image.config import Base, NoEngineError, NotHereError
from vpatch.image.registry.reference import login_command, parse

_NO_SPACE = "no space left"
_ENGINE = "docker engine"
_INSTEAD = "start it with `sudo systemctl start docker`, or set DOCKER_HOST to where another one listens"
_ELSEWHERE = "set DOCKER_HOST to where an engine listens, or unset it for the one of this machine"
_LET_IN = "run `sudo usermod -aG docker $USER` and log in again, or set DOCKER_HOST to a socket of your own"
_DENIED = re.compile(r"denied|unauthorized|authentication required|no basic auth")
_FREE = "`docker system df` shows what takes up its disk"
_FEW = 3  # tags that a message names
_UNNAMED = "<none>:<none>"  # of an image without a tag, in older engines
_TIMEOUT = 600  # seconds for one answer: unpacking a layer on a slow disk
# The engine's name of a field beside an image's configuration -> its name in the configuration.
_FIELDS = {"Architecture": "architecture", "Os": "os", "Variant": "variant", "Created": "created", "Author": "author"}
_ENDED = frozenset({"Download complete", "Pull complete", "Pushed"})  # a layer's status

Line = Mapping[str, Any]  # of the engine, during a pull or a push


@contextmanager
def engine() -> Iterator[DockerClient]:
    """Yield a client of the engine at `DOCKER_HOST`, or at the usual socket."""
    _check_socket()
    try:
        client = from_env(timeout=_TIMEOUT, version="auto")
    except ValueError as error:
        raise Failure(Problem("cannot read", "docker config", "its credentials are not what docker writes")) from error
    except DockerException as error:
        text = message_of(error)
        inner = re.search(r"\[errno -?\d+\] ([^\[\]()\"']+)", text)  # the libraries wrap it several times
        why = f"{os.environ.get('DOCKER_HOST', '')}: {inner[1].strip() if inner else text}"
        raise NoEngineError(Problem("no engine", _ENGINE, why, hint=_ELSEWHERE)) from error
    try:
        yield client
    finally:
        client.close()


def _check_socket() -> None:
    """Try a local engine's socket: docker's library reports a failure unreadably, and leaks a socket."""
    scheme, _, path = str(parse_host(os.environ.get("DOCKER_HOST"))).partition("://")
    if scheme != "http+unix":
        return
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
    except PermissionError as error:
        raise NoEngineError(Problem("no permission", _ENGINE, f"{path}: {cause(error)}", hint=_LET_IN)) from error
    except OSError as error:
        raise NoEngineError(Problem("no engine", _ENGINE, f"{path}: {cause(error)}", hint=_INSTEAD)) from error


@contextmanager
def engine_errors(what: str, where: str) -> Iterator[None]:
    """Turn an error of the engine, or of the connection to it, into a `Failure`."""
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        text = message_of(error)
        raise (_full(where, text) if _NO_SPACE in text else Failure(Problem(what, where, text))) from error


def _full(where: str, text: str) -> Failure:
    return Failure(Problem(_NO_SPACE, where, text, hint=_FREE))


def message_of(error: Exception) -> str:
    """Return the first line of an engine's error, in lower case."""
    if isinstance(error, StoreError) or isinstance(error.__cause__, StoreError):
        return "the credential helper of the docker config fails"  # its output may hold a secret
    text = str(error.explanation or error) if isinstance(error, APIError) else str(error)
    return (text.strip().splitlines() or ["no reason given"])[0].lower()


def resolve(client: DockerClient, ref: str, platform: str | None, watch: Watch, *, pull: bool = True) -> Base:
    """Return the image that `ref` names; pull it if the engine lacks it, unless `pull` is false."""
    watch.phase(f"looking for {ref}")
    found = _inspect(client, ref)
    if pull and (found is None or (platform and platform != _platform(found))):
        _pull(client, ref, platform, watch)
        found = _inspect(client, ref)
    if found is None:
        hint = _similar(client, ref)
        raise NotHereError(Problem("no such image", ref, "the engine does not have it", hint=hint))
    if platform and platform != _platform(found):
        raise Failure(Problem("wrong platform", ref, f"it is for {_platform(found)}, not for {platform}"))
    layers = found["RootFS"]["Layers"]
    config = {ours: found[theirs] for theirs, ours in _FIELDS.items() if found.get(theirs)}
    config |= {"config": found["Config"], "rootfs": {"type": "layers", "diff_ids": layers}}
    with engine_errors("cannot read", found["Id"]):
        steps = list(reversed(client.api.history(found["Id"])))
    if sum(step["Size"] > 0 for step in steps) == len(layers):  # else it does not show which step made a layer
        empty = ({} if step["Size"] else {"empty_layer": True} for step in steps)
        config["history"] = [{"created_by": step["CreatedBy"], **more} for step, more in zip(steps, empty, strict=True)]
    return Base(ref, found["Id"], config, _digest(found, ref))


def _inspect(client: DockerClient, ref: str) -> dict[str, Any] | None:
    with engine_errors("cannot read", ref):
        try:
            return dict(client.api.inspect_image(ref))
        except ImageNotFound:
            return None


def _platform(found: dict[str, Any]) -> str:
    return f"{found['Os']}/{found['Architecture']}"


def _digest(found: dict[str, Any], ref: str) -> str:
    if ref.startswith("sha256:"):
        return ""
    named = parse(ref)
    pairs = [parse(pair) for pair in found.get("RepoDigests") or ()]
    return named.digest or next((str(pair.digest) for pair in pairs if pair.name == named.name), "")


def _pull(client: DockerClient, ref: str, platform: str | None, watch: Watch) -> None:
    verbs = {"Downloading": "pulling", "Extracting": "unpacking"}
    try:
        for _ in followed(client.api.pull(ref, platform=platform, stream=True, decode=True), ref, watch.phase, verbs):
            pass
    except (DockerException, requests.RequestException) as error:
        raise _not_pulled(client, ref, message_of(error)) from error


def _not_pulled(client: DockerClient, ref: str, text: str) -> Failure:
    if _NO_SPACE in text:
        return _full(ref, text)
    what, why, hint = "no such image", f"check its name and its tag ({text})", ""
    kind: type[Failure] = UnknownName
    if _DENIED.search(text):
        log_in = f"log in with `{login_command(parse(ref).host)}`, or check the name"
        why, kind = f"private, or not there: {log_in} ({text})", Failure
    elif re.search(r"manifest unknown|not found|no matching manifest", text):
        from vpatch.image.registry.image import similar_tags  # late: it imports what asks registries

        hint = similar_tags(parse(ref))
    elif "invalid reference" in text:
        return UnknownName(Problem(what, ref, why))
    else:
        what, why, kind = "cannot pull", text, Failure
    return kind(Problem(what, ref, why, hint=hint or _similar(client, ref)))


def _similar(client: DockerClient, ref: str) -> str:
    """Return the question for other tags of an image, or one spelled like it, in the engine; "" if there are none."""

    def tag_of(name: str) -> str:
        return str(parse(name).tag)

    with suppress(DockerException, requests.RequestException, Failure):
        names = sorted({name for image in client.api.images() for name in image.get("RepoTags") or ()} - {_UNNAMED})
        own = [name for name in names if parse(name).name == parse(ref).name]
        return did_you_mean(nearest(ref, own, key=tag_of) or own[:_FEW] or nearest(ref, names))
    return ""


def followed(lines: Iterable[Line], ref: str, phase: Phase, verbs: Mapping[str, str]) -> Iterator[Line]:
    """Yield the engine's lines, and show the bytes of all layers together.

    `verbs` are names of phases by the status that the engine gives a layer, in order. While one layer is behind, the
    phase is the one of that layer, so that it never changes back.

    Raises:
        DockerException: a line is an error.
    """
    layers: dict[str, dict[str, tuple[int, int]]] = {status: {} for status in verbs}
    phase(f"{next(iter(verbs.values()))} {ref}")
    for line in lines:
        if "error" in line:
            raise DockerException(line["error"])
        yield line
        layer, status, detail = str(line.get("id")), line.get("status"), line.get("progressDetail") or {}
        if status in layers and detail.get("total"):
            layers[status][layer] = (min(detail.get("current") or 0, detail["total"]), detail["total"])
        elif status in _ENDED:
            for known in layers.values():
                if layer in known:
                    known[layer] = (known[layer][1],) * 2
        started = [(verbs[status], known.values()) for status, known in layers.items() if known]
        behind = (one for one in started if any(done < total for done, total in one[1]))
        if started:
            verb, sizes = next(behind, started[-1])
            whole = max(sum(total for _, total in known.values()) for known in layers.values())
            phase(f"{verb} {ref}", sum(done for done, _ in sizes), whole)


def layers_of(client: DockerClient, image: str) -> list[str] | None:
    """Return the diffIDs of an image's layers, None if the engine lacks the image."""
    found = _inspect(client, image)
    return None if found is None else list(found["RootFS"]["Layers"])


def load_archive(client: DockerClient, archive: bytes, ref: str) -> None:
    """Load an archive as `docker save` writes it. Raises only if the disk is full: an engine may well refuse it."""
    try:
        for line in client.api.load_image(archive):  # the engine is done when its answer ends
            if "error" in line:
                raise DockerException(line["error"])
    except DockerException as error:
        if _NO_SPACE in message_of(error):
            raise _full(ref, message_of(error)) from error


@contextmanager
def tagged(client: DockerClient, image: str, names: Sequence[str]) -> Iterator[None]:
    """Tag an image; if that or the block fails, every tag points again to what it did before."""
    before: dict[str, str | None] = {}
    try:
        for name in names:
            with engine_errors("cannot tag", name):
                before[name] = None
                with suppress(ImageNotFound):
                    before[name] = str(client.api.inspect_image(name)["Id"])
                client.api.tag(image, *parse_repository_tag(name))
        yield
    except BaseException:
        for name, old in before.items():
            with suppress(DockerException, requests.RequestException):
                if old:
                    client.api.tag(old, *parse_repository_tag(name))
                else:
                    client.api.remove_image(name, noprune=True)
        raise


def push(client: DockerClient, names: Sequence[str], watch: Watch) -> str:
    """Push each tag to the registry that it names; return `repository@digest` of the first."""
    pushed = []
    for name in names:
        repository, label = parse_repository_tag(name)
        try:
            lines = client.api.push(repository, label, stream=True, decode=True)
            parts = [line.get("aux") or {} for line in followed(lines, name, watch.phase, {"Pushing": "pushing"})]
        except (DockerException, requests.RequestException) as error:
            text = message_of(error)
            if _DENIED.search(text):
                text = f"you may not push there: log in with `{login_command(parse(name).host)}` ({text})"
            raise (_full(name, text) if _NO_SPACE in text else Failure(Problem("cannot push", name, text))) from error
        digest = next((part["Digest"] for part in reversed(parts) if "Digest" in part), "")
        if not digest:
            raise Failure(Problem("cannot push", name, "the engine did not say under which digest"))
        pushed.append(f"{repository}@{digest}")
    return pushed[0]


def discard(client: DockerClient, image: str) -> None:
    """Remove an image unless it has a tag."""
    with engine_errors("cannot remove", image):
        if not client.api.inspect_image(image)["RepoTags"]:
            client.api.remove_image(image, noprune=True)  # or an untagged base would be removed with it

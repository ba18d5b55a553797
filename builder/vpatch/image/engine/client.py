"""Reach the engine, and say in words what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import docker
import requests
from docker.errors import APIError, DockerException

from vpatch.errors import Failure, Problem

_PATIENCE = 600  # seconds for one answer: unpacking a layer on a slow disk


@contextmanager
def engine() -> Iterator[docker.DockerClient]:
    """Give a client of the engine that `DOCKER_HOST`, or the current context's default socket, names.

    Raises:
        Failure: there is none, or it does not let us in.
    """
    try:
        client = docker.from_env(timeout=_PATIENCE, version="auto")
    except DockerException as error:
        raise _unreachable(error) from error
    try:
        yield client
    finally:
        client.close()


def _unreachable(error: DockerException) -> Failure:
    where = "docker engine"
    if "Permission denied" in str(error) or "PermissionError" in str(error):
        cause = "permission denied: add this user to the engine's group, or set DOCKER_HOST to a socket of your own"
        return Failure(Problem("no permission", where, cause))
    told = re.search(r"'([A-Z][^']+)'\)", str(error))
    cause = (told[1] if told else str(error)).lower()
    more = "start one, set DOCKER_HOST, or build without one: --registry"
    return Failure(Problem("no engine", where, f"{cause}; {more}"))


@contextmanager
def naming(what: str, where: str) -> Iterator[None]:
    """Turn what the engine answers into a failure.

    Raises:
        Failure: the block raised an error of the engine or of the connection to it.
    """
    try:
        yield
    except (DockerException, requests.RequestException) as error:
        text = said(error)
        raise Failure(Problem("no space left" if "no space left" in text else what, where, text)) from error


def said(error: Exception) -> str:
    """Give the first line of what the engine says, in lower case."""
    text = str(error.explanation or error) if isinstance(error, APIError) else str(error)
    return (text.strip().splitlines() or ["no reason given"])[0].lower()

"""Reach the engine, and say in words what it refuses."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import docker
import requests
from docker.credentials.errors import StoreError
from docker.errors import APIError, DockerException
from docker.utils import parse_host

from vpatch.errors import Failure, Problem
from vpatch.errors import cause as cause_of

_ENGINE = "docker engine"
_INSTEAD = "start one, set DOCKER_HOST, or build without one: --registry"
_PATIENCE = 600  # seconds for one answer: unpacking a layer on a slow disk


@contextmanager
def engine() -> Iterator[docker.DockerClient]:
    """Give a client of the engine at `DOCKER_HOST`, or at the usual socket.

    Raises:
        Failure: there is none, or it does not let us in.
    """
    _knock()
    try:
        client = docker.from_env(timeout=_PATIENCE, version="auto")
    except ValueError as error:
        raise Failure(Problem("cannot read", "docker config", "its credentials are not what docker writes")) from error
    except DockerException as error:
        raise Failure(Problem("no engine", _ENGINE, f"{said(error)}; {_INSTEAD}")) from error
    try:
        yield client
    finally:
        client.close()


def _knock() -> None:
    """Try a local engine's socket: what docker's library says of it is hard to read, and it leaves a socket open."""
    scheme, _, path = str(parse_host(os.environ.get("DOCKER_HOST"))).partition("://")
    if scheme != "http+unix":
        return
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(path)
    except PermissionError as error:
        cause = "permission denied: add this user to the engine's group, or set DOCKER_HOST to a socket of your own"
        raise Failure(Problem("no permission", _ENGINE, cause)) from error
    except OSError as error:
        raise Failure(Problem("no engine", _ENGINE, f"{path}: {cause_of(error)}; {_INSTEAD}")) from error


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
    if isinstance(error, StoreError) or isinstance(error.__cause__, StoreError):
        return "the credential helper of the docker config fails"  # what it prints may be a secret
    text = str(error.explanation or error) if isinstance(error, APIError) else str(error)
    return (text.strip().splitlines() or ["no reason given"])[0].lower()


def split(name: str) -> tuple[str, str]:
    """Give the repository and the tag of a full name, as the engine wants them."""
    repository, _, label = name.rpartition(":")
    return repository, label

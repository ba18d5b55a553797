"""`python reap.py OWNER`: once the process at the other end of stdin dies, remove its containers and new images."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

# A container that was being created when the process died may appear a little later.
_ATTEMPTS, _PAUSE = 4, 0.5


def main(owner: str) -> None:
    """At the end of stdin, unless a line says `done`, remove the run's containers and untagged images named there."""
    images = sys.stdin.read().splitlines()
    if "done" in images:
        return
    import docker
    import requests
    from docker.errors import DockerException, ImageNotFound

    from vpatch.image.engine.containers import NAME

    for _ in range(_ATTEMPTS):
        with suppress(DockerException, requests.RequestException):
            client = docker.from_env()
            for left in client.api.containers(all=True, filters={"name": f"{NAME}{owner}"}):
                client.api.remove_container(left["Id"], force=True, v=True)
            for image in images:
                with suppress(ImageNotFound):
                    if not client.api.inspect_image(image)["RepoTags"]:
                        client.api.remove_image(image, noprune=True)
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main(sys.argv[1])

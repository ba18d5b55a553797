"""Copies of releases, and changes of their modules."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from vpatch.core import patch_file

from tests.conftest import Ran
from tests.paths import link
from tests.releases import tree_of

Capture = Callable[..., Ran]
LEFT = "vllm/utils/torch_utils.py"
HAND = "vllm/v1/core/sched/request_queue.py"


def copied(release: str, to: Path) -> Path:
    """Copy a release by hard links. Replace files; never write into them."""
    return shutil.copytree(tree_of(release), to, copy_function=link)


def rewrite(file: Path, data: bytes) -> None:
    """Write a file anew: the old one may be a hard link to the pristine release."""
    file.unlink(missing_ok=True)
    file.write_bytes(data)


def edit(tree: Path, path: str, change: Callable[[str], str]) -> None:
    """Replace a module by a changed one."""
    text = (tree / path).read_bytes().decode()
    now = change(text)
    assert now != text
    rewrite(tree / path, now.encode())


def prioritized(text: str) -> str:
    """Change a call in `HAND`, and add the method that it calls."""
    pop = '    def pop_request(self) -> Request:\n        """Pop a request from the queue according to FCFS'
    put = "    def _put(self, request: Request) -> None:\n        self.append(request)\n\n"
    return text.replace("        self.append(request)\n", "        self._put(request)\n", 1).replace(pop, put + pop, 1)


def the_file(tmp_path: Path, name: str = "captured") -> patch_file.PatchFile:
    return patch_file.parse((tmp_path / f"patches/{name}.vpatch").read_bytes())

"""git for one repository, asked by commands that run no program that the repository names.

Whoever wrote it chose its settings and attributes: `core.fsmonitor`, filters, hooks, pagers, `ext::` addresses. So it
is asked only by commands that read objects, references and attributes (`rev-parse`, `describe`, `ls-tree`, `cat-file
blob`, `for-each-ref`, `check-attr`), and by none that compares the files of a work tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from git import Git


def plumbing(folder: Path, protocols: Sequence[str] = ()) -> Git:
    """Return git for the repository in a folder: a work tree, or without one.

    It asks no questions, and fetches only by the named protocols, not even what a partial clone lacks.

    Raises:
        ImportError: there is no gitpython, or no git.
    """
    from git import Git

    git_dir = folder / ".git" if (folder / ".git").exists() else folder
    git = Git(folder)
    git.update_environment(
        GIT_DIR=str(git_dir.absolute()),  # both may be set for another repository, whose hook started vpatch
        GIT_WORK_TREE=str(folder.absolute()),  # not what `core.worktree` names
        GIT_ALLOW_PROTOCOL=":".join(protocols) or "none",
        GIT_NO_LAZY_FETCH="1",
        GIT_NO_REPLACE_OBJECTS="1",
        GIT_TERMINAL_PROMPT="0",
        SSH_ASKPASS_REQUIRE="never",  # nor is there a terminal, as a fetch runs in a session of its own
    )
    return git

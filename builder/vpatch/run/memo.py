"""What a plan came to, remembered by what it read, so that a second start neither parses nor imports overlays."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path

from vpatch.core import sources
from vpatch.core.catalogue import Selection
from vpatch.manifest import sha256
from vpatch.run.content import Content
from vpatch.run.store import make_private
from vpatch.run.upkeep import MEMOS, touch
from vpatch.stamps import Stamp, surroundings, unchanged
from vpatch.tree.locate import Loaded, Tree


@dataclass(frozen=True)
class Watched(Tree):
    """A tree that notes the hash of whatever is read of it; None for what does not exist."""

    seen: dict[str, str | None] = field(default_factory=dict, compare=False)

    def load(self, path: str) -> Loaded | None:
        """Read `path` as any tree does."""
        loaded = super().load(path)
        self.seen[path] = None if loaded is None else sha256(loaded.content)
        return loaded


@dataclass(frozen=True)
class Memo:
    """A file of the farms' folder that remembers one plan.

    Attributes:
        file: its path; its name follows from the vLLM, the selection, the bytes of patch files that no package ships,
            and where this vpatch finds itself and overlays.
    """

    file: Path

    @classmethod
    def of(cls, store: Path, tree: Tree, selection: Selection) -> Memo:
        """Return the memo of a plan."""
        chosen = [lists and sorted(lists) for lists in astuple(selection)]
        patches = sources.current().fingerprint
        asked = json.dumps([str(tree.root), tree.dist_info, chosen, patches, surroundings()])
        return cls(store / MEMOS / f"{sha256(asked.encode())[:32]}.json")

    def recall(self, tree: Tree) -> Content | None:
        """Return what the plan came to.

        None if vpatch, an overlay or a file that it read is not as it was, or if the files are not those of the digest.
        """
        try:
            about = json.loads(self.file.read_text("utf-8"))
            again = Watched(tree.root, tree.dist_info, tree.version)
            for path in about["read"]:
                again.load(path)
            if again.seen != about["read"] or not unchanged(about["code"]):
                return None
            files = {file: bytes.fromhex(data) for file, data in about["files"].items()}
            hashes = (dict(about[key]) for key in ("applied", "replaced", "release", "patches"))
            content = Content(tree.root, tuple(about["overlays"]), files, *hashes)
            if content.digest != about["digest"]:
                return None
            touch(self.file)
            return content
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def keep(self, content: Content, read: Mapping[str, str | None], code: Mapping[str, Stamp]) -> None:
        """Remember a plan. A folder that cannot be written to is no failure: the next start plans again.

        Args:
            content: what it came to.
            read: the hashes of what it read of the tree.
            code: what else was opened for it, from `opened`.
        """
        tree = {os.path.normpath(f"{content.root}/{path}") for path in read}  # whose stamps may differ on equal bytes
        code = {path: stamp for path, stamp in code.items() if path not in tree}
        files = {file: data.hex() for file, data in content.files.items()}
        about = {"overlays": content.overlays, "digest": content.digest, "files": files, "applied": content.applied}
        more = {"replaced": content.replaced, "release": content.release, "patches": content.patches}
        part = self.file.with_suffix(f".{os.getpid()}")
        try:
            make_private(self.file.parent)
            part.write_text(json.dumps({"code": code, "read": read, **about, **more}))
            part.replace(self.file)
        except OSError:
            with suppress(OSError):
                part.unlink()

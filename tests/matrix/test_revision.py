"""A git revision: real repositories, made of real releases, in folders and behind git's own server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.core.listing import unpack
from vpatch.matrix.trees import Revision
from vpatch.matrix.verdicts import FilesRead

from tests.conftest import Trees
from tests.failures import problem_of
from tests.hybrid import HYBRID
from tests.matrix.git_server import Served, git, serving
from tests.tiers import deep

pytestmark = pytest.mark.usefixtures("temporary")

OLD, NEW = "0.20.2", "0.21.0"
ABSENT = "vllm/v1/no_such_file.py"


def code(tree: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in sorted(tree.rglob("vllm/**/*.py"))}


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory, slim: Trees) -> Path:
    """Two releases on `main`, one with an annotated tag; the branch `later` has a commit without a tag."""
    root = tmp_path_factory.mktemp("git") / "upstream"
    git(root.parent, "init", "-q", "-b", "main", "upstream")
    git(root, "config", "uploadpack.allowFilter", "true")
    sources = shutil.ignore_patterns("*.pyc")
    for version, tag in ((OLD, ("-a", "-m", "it")), (NEW, ())):
        shutil.copytree(slim(version) / "vllm", root / "vllm", dirs_exist_ok=True, ignore=sources)
        for file in code(root).keys() - code(slim(version)).keys():
            (root / file).unlink()
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", f"release {version}")
        git(root, "tag", *tag, f"v{version}")
    git(root, "tag", f"v{NEW}rc3")
    git(root, "tag", "nightly")
    git(root, "branch", "later")
    git(root, "commit", "-q", "--allow-empty", "-m", "more")
    git(root, "branch", "-f", "later")
    git(root, "reset", "-q", "--hard", f"v{NEW}")
    return root


@pytest.fixture
def server(upstream: Path) -> Iterator[Served]:
    with serving(upstream.parent) as served:
        yield served


def read(address: object, rev: str, files: dict[str, bytes]) -> FilesRead:
    return Revision(str(address), rev).read([*files, ABSENT])


@pytest.mark.parametrize(
    ("kind", "rev", "release", "version"),
    [
        ("folder", "main~1", OLD, OLD),
        ("folder", "later", NEW, None),
        ("folder", f":/release {OLD}", OLD, OLD),
        deep("folder", f"refs/tags/v{NEW}", NEW, NEW),
        deep("folder", "HEAD", NEW, NEW),
        ("http", "later", NEW, None),
        ("file", "COMMIT", OLD, OLD),
        deep("http", f"v{OLD}", OLD, OLD),
        deep("http", "HEAD", NEW, NEW),
        deep("http", "COMMIT", OLD, OLD),
        deep("file", "main", NEW, NEW),
    ],
)
def test_a_revision(
    upstream: Path, server: Served, slim: Trees, kind: str, rev: str, release: str, version: str | None
) -> None:
    files = code(slim(release))
    addresses = {"folder": str(upstream), "file": f"file://{upstream}", "http": server.url("upstream/.git")}
    commit = git(upstream, "rev-parse", f"{f'v{OLD}' if rev == 'COMMIT' or ':' in rev else rev}^{{commit}}")

    tree = read(addresses[kind], commit if rev == "COMMIT" else rev, files)

    assert len(files) > 15
    assert (tree.files, tree.version, tree.origin) == (files, version, f"{addresses[kind]} {commit}")
    assert (tree.received > 10_000) == (kind != "folder")
    assert Revision(addresses[kind], rev).name == rev
    assert read(upstream, commit[:10], files).files == files


def test_what_is_read_of_a_revision(upstream: Path) -> None:
    """The listing of a folder, and what the engine judges: whether a fix is there."""
    found = Revision(str(upstream), f"v{OLD}").read(["vllm/engine/", "vllm/nowhere/", "vllm/engine/arg_utils.py"])
    assert found.files.keys() == {"vllm/engine/", "vllm/engine/arg_utils.py"}
    assert "arg_utils.py" in unpack(found.files["vllm/engine/"])
    overlays = select(discover(), (HYBRID,))
    engine = Engine(overlays)
    states = [engine.status(Revision(str(upstream), rev).read(engine.files).files.get) for rev in (f"v{OLD}", "main")]
    assert [verdict.state for (verdict,) in states] == ["pending", "merged"]


@pytest.mark.parametrize("kind", ["bare", deep("shallow"), deep("worktree")])
def test_other_folders(upstream: Path, slim: Trees, tmp_path: Path, kind: str) -> None:
    folder, files = tmp_path / kind, code(slim(NEW))
    if kind == "worktree":
        git(upstream, "worktree", "add", "-q", "--detach", str(folder), f"v{OLD}")
    else:
        how = ("--bare",) if kind == "bare" else ("--depth", "1")
        git(tmp_path, "clone", "-q", *how, f"file://{upstream}", kind)

    assert read(folder, "main", files).files == files


def test_a_folder_is_not_touched(upstream: Path, slim: Trees, tmp_path: Path) -> None:
    """Changes in it, staged or not, and its checked-out branch make no difference."""
    root = Path(shutil.copytree(upstream, tmp_path / "clone"))
    git(root, "checkout", "-q", "-b", "mine", f"v{OLD}")
    (root / "vllm/__init__.py").write_text("staged = 1\n")
    git(root, "add", "vllm/__init__.py")
    (root / "vllm/__init__.py").write_text("changed = 1\n")
    (root / "vllm/config/cache.py").unlink()

    def all_of_it() -> dict[str, tuple[int, bytes | None]]:
        return {
            str(path): (path.lstat().st_mtime_ns, None if path.is_dir() else path.read_bytes())
            for path in [root, *root.rglob("*")]
        }

    before = all_of_it()

    for rev, release in (("main", NEW), ("HEAD", OLD)):
        assert read(root, rev, code(slim(release))).files == code(slim(release))
    assert all_of_it() == before


def test_started_by_a_hook_of_another_repository(
    upstream: Path, slim: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git passes its location to hooks, and so to all that they start."""
    git(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))

    for address in (upstream, f"file://{upstream}"):
        assert read(address, "main", code(slim(NEW))).files == code(slim(NEW))
    assert not list((tmp_path / "other/.git/objects").rglob("*.pack"))


def test_only_what_is_wanted_is_fetched(upstream: Path, server: Served, tmp_path: Path) -> None:
    """A server that can leave files out sends fewer bytes; the result is the same."""
    git(tmp_path, "clone", "-q", "--bare", str(upstream), "plain")
    git(tmp_path, "-C", "plain", "config", "uploadpack.allowFilter", "false")
    server.root = tmp_path
    shutil.copytree(upstream, tmp_path / "able")
    one = ["vllm/config/cache.py"]

    sparing, plain = (Revision(server.url(name), "main").read(one) for name in ("able/.git", "plain"))

    assert sparing.files == plain.files
    assert sparing.received < plain.received / 4


@pytest.mark.deep
@pytest.mark.parametrize("can_filter", ["true", "false"])
def test_an_old_server(upstream: Path, server: Served, slim: Trees, tmp_path: Path, can_filter: str) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(upstream), "old")
    git(tmp_path, "-C", "old", "config", "uploadpack.allowFilter", can_filter)
    server.root, server.modern = tmp_path, False

    tree = read(server.url("old"), f"v{OLD}", code(slim(OLD)))

    assert (tree.files, tree.version) == (code(slim(OLD)), OLD)


@pytest.mark.deep
def test_several_at_once(upstream: Path, server: Served, slim: Trees) -> None:
    releases = {f"v{OLD}": OLD, "main": NEW, "later": NEW}
    addresses = (upstream, f"file://{upstream}", server.url("upstream/.git"))
    asked = [(address, rev, code(slim(release))) for address in addresses for rev, release in releases.items()]

    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(lambda one: read(*one).files, asked))

    assert found == [files for _, _, files in asked]


def test_a_login(upstream: Path, server: Served, slim: Trees) -> None:
    """A password is in no message, however it is written, and git never prompts for one."""
    server.login = "some body:s/cr@t"
    address = server.url("upstream/.git")

    tree = read(server.url("upstream/.git", "some%20body:s%2Fcr%40t"), "main", code(slim(NEW)))

    assert tree.origin == f"{address} {git(upstream, 'rev-parse', 'main')}"
    for login in ("", "some%20body:wr%2Fng", "s3cr3t-t0ken", "some%20body"):
        line = str(problem_of(read, server.url("upstream/.git", login), "main", {}))
        assert line.startswith(f"cannot fetch: {address}: ")
        assert "\n" not in line
        assert not [word for word in ("some", "body", "wr%2Fng", "wr/ng", "s3cr3t") if word in line]


def test_environment_of_the_user_narrows_what_is_allowed(
    upstream: Path, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "https:file")

    assert read(f"file://{upstream}", "main", {}).version == NEW
    assert "transport 'http' not allowed" in str(problem_of(read, server.url("upstream/.git"), "main", {}))
    assert os.environ["GIT_ALLOW_PROTOCOL"] == "https:file"

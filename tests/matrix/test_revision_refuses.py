"""Git revisions that cannot be read: no secret is shown, no wait is endless, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from vpatch.installation import how_to_add
from vpatch.matrix import trees
from vpatch.matrix.trees import Revision, shown

from tests.conftest import Program
from tests.failures import problem_of
from tests.matrix.git_server import Served, git, serving
from tests.processes import PATIENCE, ending, processes
from tests.tiers import deep

pytestmark = pytest.mark.usefixtures("temporary")

CACHE = "vllm/config/cache.py"
FILES = (CACHE, "vllm/__init__.py")
READ = "import sys; from vpatch.matrix.trees import Revision; Revision(*sys.argv[1:]).read([])"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    git(tmp_path, "init", "-q", "-b", "main", "repository")
    for file in FILES:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(f"file = {file!r}\n")
    commit(root)
    return root


def commit(root: Path) -> str:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "some")
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as served:
        yield served


def refused(address: object, rev: str = "main") -> str:
    return str(problem_of(Revision(str(address), rev).read, FILES))


NAMES = "of a URL it is a branch, a tag or the whole id of a commit"
UNKNOWN = "git knows no commit by that name there"
NONE = "there is neither a branch nor a tag nor a commit that is called so"


@pytest.mark.parametrize(
    ("kind", "rev", "cause"),
    [
        ("folder", "nope", UNKNOWN),
        ("folder", "HEAD:vllm", UNKNOWN),  # no commit
        deep("folder", "0" * 40, UNKNOWN),
        deep("folder", "v1 2", UNKNOWN),
        ("folder", "", UNKNOWN),
        ("url", "nope", NONE),
        ("url", "0" * 40, NONE),
        ("url", "a..b", NAMES),
        ("url", "", NAMES),
        ("url", "main~1", NAMES),
        deep("url", "v1 2", NAMES),
        deep("url", "main^{tree}", NAMES),
        ("url", "main:refs/heads/x", NAMES),
        ("url", "refs/*", NAMES),
        ("url", "^main", NAMES),
    ],
)
def test_no_such_revision(repository: Path, kind: str, rev: str, cause: str) -> None:
    address = repository if kind == "folder" else f"file://{repository}"

    assert refused(address, rev) == f"no such revision: {address}: {rev}: {cause}"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("{tmp}/gone", "cannot read: {tmp}/gone: there is no such folder, and it is no URL"),
        ("{tmp}", "cannot read: {tmp}: not a git repository: '{tmp}'"),
        ("{tmp}/repository/vllm", "cannot read: {tmp}/repository/vllm: not a git repository: '{tmp}/repository/vllm'"),
        ("file://{tmp}/gone", "cannot fetch: file://{tmp}/gone: '{tmp}/gone' does not appear to be a git repository"),
        ("file://{tmp}/me@home", "cannot fetch: file://{tmp}/me@home: '{tmp}/me@home' does not appear to be a git rep"),
        ("http://us:pw@[bad/x?t=pw", "cannot fetch: http://[bad/x: "),
        ("ssh://us@127.0.0.1:1/x", "cannot fetch: ssh://127.0.0.1:1/x: ssh: connect to host"),
        ("nonsense://{tmp}", "cannot fetch: nonsense://{tmp}: transport 'nonsense' not allowed"),
        ("--upload-pack={tmp}/x", "cannot read: --upload-pack={tmp}/x: a git address cannot begin with a hyphen"),
        ("file://{tmp}/repository -x", "cannot read: -x: a git revision cannot begin with a hyphen"),
    ],
)
def test_no_repository(repository: Path, tmp_path: Path, address: str, message: str) -> None:
    found = refused(*address.format(tmp=tmp_path).split())

    assert found.startswith(message.format(tmp=tmp_path))
    assert "pw" not in found.replace(str(tmp_path), "")


def test_a_transport_that_runs_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused even if the user's settings allow it, or rewrite a harmless address to it."""
    evil = f"ext::sh -c touch% {tmp_path}/done"
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text(
        f'[protocol "ext"]\nallow = always\n[url "{evil}#"]\ninsteadOf = https://example.org/\n'
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    ran = subprocess.run(["git", "ls-remote", evil], capture_output=True, check=False)
    assert (tmp_path / "done").exists(), ran.stderr  # without vpatch, git runs it
    (tmp_path / "done").unlink()

    for address in (evil, "https://example.org/", f"fd::{tmp_path}"):
        assert "not allowed" in refused(address)
    assert not (tmp_path / "done").exists()


def test_a_folder_that_lacks_the_file_and_would_run_a_command(repository: Path, tmp_path: Path) -> None:
    """Git fetches what a partial clone lacks, by the command in the clone's settings; vpatch prevents that."""
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--bare", "--filter=blob:none", f"file://{repository}", "partial")
    git(tmp_path / "partial", "config", "remote.origin.uploadpack", f"touch {tmp_path}/done; false")

    told = refused(tmp_path / "partial")

    assert told.startswith(f"cannot read: {tmp_path}/partial: ")
    assert not (tmp_path / "done").exists()


def test_no_vllm(repository: Path) -> None:
    git(repository, "mv", "vllm", "other")
    commit(repository)

    assert refused(repository) == f"no vLLM: {repository} main: it has no folder vllm/"


@pytest.mark.parametrize(
    ("at", "kind"), [(CACHE, "symbolic link"), ("vllm/config", "submodule"), deep("vllm/config", "symbolic link")]
)
def test_not_a_plain_file(repository: Path, at: str, kind: str) -> None:
    """The object store has the target of a link, not its content."""
    before = git(repository, "rev-parse", "HEAD")
    git(repository, "rm", "-q", "-r", at)
    if kind == "submodule":
        git(repository, "update-index", "--add", "--cacheinfo", f"160000,{before},{at}")
    else:
        (repository / at).parent.mkdir(exist_ok=True)
        (repository / at).symlink_to("elsewhere")
        git(repository, "add", at)
    git(repository, "commit", "-q", "-m", "some")

    assert refused(repository) == f"not a plain file: {repository} main: {at} is a {kind}"
    assert Revision(str(repository), "main").read([FILES[1]]).files.keys() == {FILES[1]}


def test_a_link_elsewhere_and_an_executable(repository: Path) -> None:
    (repository / "vllm/link.py").symlink_to("__init__.py")
    (repository / CACHE).chmod(0o755)
    commit(repository)

    assert Revision(str(repository), "main").read(FILES).files == {f: f"file = {f!r}\n".encode() for f in FILES}


def test_a_server_that_does_not_answer(repository: Path, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "SILENCE", 0.5)
    server.silent = threading.Event()

    told = refused(server.url("repository/.git", "somebody:s3cret"))

    assert told == f"cannot fetch: {server.url('repository/.git')}: no sign of life within 0.5 s"
    server.silent.set()
    assert processes(f"127.0.0.1:{server.port}/") == []


IN_THREADS = """
import os, select, signal, sys, threading
from vpatch.matrix.trees import Revision
woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)  # so that a signal just before the wait ends it, too
for _ in range(4):
    threading.Thread(target=Revision(*sys.argv[1:]).read, args=([],), daemon=True).start()
select.select([woken], [], [])
"""


@pytest.mark.usefixtures("heeding_interrupts")
def test_interrupted(repository: Path, server: Served, temporary: Path) -> None:
    """No folder and no process is left of those that daemon threads use."""
    server.silent = threading.Event()
    command = [sys.executable, "-c", IN_THREADS, server.url("repository/.git"), "main"]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE) as child:
        assert all(server.arrived.acquire(timeout=PATIENCE) for _ in range(4))
        assert len(list(temporary.iterdir())) == 4
        running = processes(f"127.0.0.1:{server.port}/")
        assert len(running) > 4
        with ending(*running) as wait:
            child.send_signal(signal.SIGINT)
            _, told = child.communicate(timeout=PATIENCE)
            wait()

    assert b"KeyboardInterrupt" in told
    assert list(temporary.iterdir()) == []
    server.silent.set()


@pytest.mark.parametrize("lacking", ["git", deep("gitpython")])
def test_without(repository: Path, tmp_path: Path, lacking: str) -> None:
    (tmp_path / "blocker").mkdir()
    (tmp_path / "blocker/git.py").write_text("raise ImportError('blocked')\n")
    way = {"PYTHONPATH": str(tmp_path / "blocker")} if lacking == "gitpython" else {"PATH": str(tmp_path)}
    command = [sys.executable, "-c", READ, str(repository), "main"]

    ran = subprocess.run(command, env={**os.environ, **way}, capture_output=True, text=True, check=False)

    cause = f"a git revision needs git and gitpython: {how_to_add('git')}"
    assert ran.stderr.splitlines()[-1] == f"vpatch.errors.Failure: cannot read: {repository}: {cause}"


# --- secrets --------------------------------------------------------------------------------------------------------


SECRETS = ("SECRET", "SEC/", "SEC ", "SEC?", "RETPW", "us3r:", "us3r@")


@pytest.mark.parametrize(
    ("address", "safe"),
    [
        ("https://us3r:SECRET@host/x", "https://host/x"),
        ("https://SECRET@host/x", "https://host/x"),
        ("https://us3r:SEC/RETPW@host/x", "https://host/x"),
        ("https://us3r:SEC@KEPT@host/x", "https://host/x"),
        ("https://us3r:SEC?RETPW@host/x", "https://..."),  # a login and a query cannot be told apart here
        ("https://us3r:SEC#RETPW@host/x", "https://..."),
        ("https://us3r:SECRET@host/x?t=RETPW@KEPT", "https://..."),
        ("https://us3r:SECRET@host/x?t=KEPT#RETPW", "https://host/x"),
        ("ssh://git@host:22/x", "ssh://host:22/x"),
        ("us3r:SECRET@host:path", "host:path"),
        ("us3r:SEC/RETPW@host:path", "host:path"),
        ("us3r:SEC://RETPW@host:path", "host:path"),
        ("https:/us3r:SECRET@host/x", "host/x"),
        ("git@host:path", "git@host:path"),
        ("host:path", "host:path"),
        ("file:///home/me@host/x", "file:///home/me@host/x"),
        ("/home/me@host/a:b", "/home/me@host/a:b"),
        ("./a:b@c", "./a:b@c"),
    ],
)
def test_an_address(address: str, safe: str) -> None:
    assert shown(address) == safe


@pytest.mark.parametrize(
    ("address", "where"),
    [
        ("http://us3r:SEC/RETPW@{host}/x", "address"),
        ("us3r:SEC/RETPW@{host}", "settings"),
        *(
            deep(address, where)
            for where in ("address", "settings")
            for address in (
                "http://us3r:WRONG-SECRET@{host}/x",
                "http://SECRET@{host}/x",
                "http://us3r:SEC RETPW@{host}/x",
                "http://us3r:SEC?RETPW@{host}/x",
                "http://{host}/x?token=SECRET",
                "us3r:SECRET@{host}",
            )
        ),
    ],
)
def test_no_output_has_a_secret(
    vpatch: Program, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, where: str
) -> None:
    """On the terminal, in the JSON and on the page; the secret is in the address, or in git's settings."""
    server.login = "us3r:SECRET"
    secret = address.format(host=f"127.0.0.1:{server.port}")
    given = "https://example.org/x" if where == "settings" else secret
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text(f'[url "{secret}"]\ninsteadOf = https://example.org/x\n')
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_SSH_COMMAND", "echo >&2 fatal: no way to")  # its arguments follow
    page = tmp_path / "page.html"
    asked = ("matrix", "--git", given, "--rev", "main", "--overlay", "turboquant-hybrid", "--html", page)

    text, object_ = vpatch(*asked), vpatch(*asked, "--force", "--json")

    assert (text.code, object_.code) == (1, 1)
    assert json.loads(object_.out)["rows"][0]["problems"][0]["what"] == "cannot fetch"
    for output in (text.out, text.err, object_.out, object_.err, page.read_text()):
        assert not [word for word in SECRETS if word in output], output

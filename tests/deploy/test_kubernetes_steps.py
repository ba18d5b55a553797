"""The commands of deploy/kubernetes run for real, in a root like a container's: read-only, and no privileges."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from vpatch.core.catalogue import Selection
from vpatch.run.launch import planned
from vpatch.tree.locate import locate

from tests.conftest import Trees
from tests.deploy.test_manifests import SERVERS, pods
from tests.docs.machine import package_index
from tests.docs.registry import ADDRESS
from tests.needs import need, root_only
from tests.run.conftest import install

pytestmark = pytest.mark.deep

PINNED = f"{ADDRESS}@COMMIT"
USER = 54321  # has no name, as there is no /etc/passwd either

# Of the machine, only its programs, and the Python that runs the tests; of vLLM, an environment.
ROOT = r"""
mount -t tmpfs -o mode=755 none "$NEW"
cd "$NEW"
mkdir -p etc dev proc srv/env run/vpatch tmp cache
cp -r /etc/ld.so.* etc/
for folder in dev proc; do mount --rbind /$folder $folder; done
for folder in bin sbin lib lib64 usr; do
  if [ -h /$folder ]; then cp -P /$folder .; elif [ -d /$folder ]; then mkdir $folder; mount --bind /$folder $folder; fi
done
case $PREFIX in /usr*) ;; *) mkdir -p "./$PREFIX"; mount --bind "$PREFIX" "./$PREFIX" ;; esac
mount --bind "$ENVIRONMENT" srv/env
mount -o remount,ro,bind srv/env
mount -t tmpfs -o mode=2777,noexec,nosuid,nodev none run/vpatch
mount -t tmpfs -o mode=1777,nosuid,nodev none tmp
mount -o remount,ro,bind .
run() {
  chroot . setpriv --reuid=$USER_ID --regid=$USER_ID --clear-groups --bounding-set=-all --inh-caps=-all \
    --no-new-privs env -i PATH=/srv/env/bin:/usr/bin:/bin ${LIBRARIES:+LD_LIBRARY_PATH="$LIBRARIES"} "$@"
}
echo "init:"
run PIP_INDEX_URL="$INDEX" PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 VPATCH_RUN="$DIGEST" \
  VPATCH_OPTIONS="$OPTIONS" sh -euc "$INIT"
mount -o remount,ro,noexec,nosuid,nodev run/vpatch
echo "server:"
run PYTHONPATH=/run/vpatch VPATCH_RUN="$DIGEST" HOME=/cache USER=vllm python3 -c "$SERVER"
"""
# vLLM itself needs torch, so its package is found, not imported.
SERVER = """
import importlib.util
from importlib.metadata import entry_points
origin = importlib.util.find_spec("vllm").origin
(point,) = entry_points(group="vllm.general_plugins", name="vpatch_receipt")
point.load()()
import vpatch_receipt
print(origin, vpatch_receipt.digest())
try:
    open("/run/vpatch/vllm/more.py", "w")
except OSError as error:
    print(error.strerror)
"""


@root_only
def test_the_manifests_commands_make_a_farm_that_the_server_imports(slim: Trees, tmp_path: Path) -> None:
    need("unshare", "setpriv")
    options = "--with turboquant-tiles"
    vllm = install(tmp_path, slim("0.20.2"))
    also = tuple(options.split()[1:])
    digest = planned(locate(vllm.root), Selection(also=also)).digest

    ran = pod(vllm.python, tmp_path, slim, digest[:12], options)

    assert ran.returncode == 0, ran.stderr
    _, _, digests = ran.stdout.partition("init:\n")
    assert digests.splitlines() == [
        digest,
        "server:",
        f"/run/vpatch/vllm/__init__.py {digest}",
        "Read-only file system",
    ]


@root_only
def test_another_digest_keeps_the_server_from_starting(slim: Trees, tmp_path: Path) -> None:
    need("unshare", "setpriv")
    vllm = install(tmp_path, slim("0.20.2"))

    ran = pod(vllm.python, tmp_path, slim, "0123", "")

    assert (ran.returncode, ran.stdout) == (1, "init:\n")
    assert "unexpected overlays: /srv/env/lib/" in ran.stderr
    assert ran.stderr.endswith("not 0123\nNothing was exported.\n")


def pod(python: Path, top: Path, trees: Trees, digest: str, options: str) -> subprocess.CompletedProcess[str]:
    """Run the init container, and then the server's environment."""
    subprocess.run([python, "-m", "ensurepip"], check=True, capture_output=True)
    (top / "root").mkdir()
    (init,) = pods(SERVERS[0])[0]["initContainers"]
    shell, flags, script = init["command"]
    assert (shell, flags) == ("sh", "-euc")
    assert PINNED in script
    with package_index(trees) as index:
        given = {
            "NEW": str(top / "root"),
            "PREFIX": sys.base_prefix,
            "ENVIRONMENT": str(top / "env"),
            "USER_ID": str(USER),
            "LIBRARIES": os.environ.get("LD_LIBRARY_PATH", ""),
            "INDEX": index,
            "DIGEST": digest,
            "OPTIONS": options,
            "INIT": script.replace(PINNED, "vpatch"),  # a wheel of the index
            "SERVER": SERVER,
        }
        return subprocess.run(
            ["unshare", "-m", "sh", "-euc", ROOT],
            env={"PATH": os.environ["PATH"], **given},
            capture_output=True,
            text=True,
            check=False,
        )

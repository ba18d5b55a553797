"""What vLLM's processes prove of a farm, with vLLM's own loader of plugins and its own logger."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from vpatch.guest.vpatch_claim import RECEIPT
from vpatch.guest.vpatch_receipt import MANIFEST
from vpatch.manifest import sha256

from tests.needs import root_only
from tests.run.standin import ADDED, APPLIED, CHANGED, LOAD, Farm, farm_for, standing_in
from tests.tiers import deep

pytestmark = pytest.mark.deep  # these start interpreters

HELD = """
import os
def held():
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return [os.readlink(link) for link in links if os.path.lexists(link) and "vpatch-receipt" in os.readlink(link)]
print(*held())
"""
METRIC = "import prometheus_client as p\nprint(p.generate_latest().decode())\n"
ADDED_UP = """
import prometheus_client as p, prometheus_client.multiprocess as m
registry = p.CollectorRegistry()
m.MultiProcessCollector(registry)
print(p.generate_latest(registry).decode())
"""
IN_MEMORY = f"/memfd:{RECEIPT} (deleted)"
CONTAINED = ("unshare", "--pid", "--fork", "--mount-proc")
CONFIGURED = "import vllm.logger as l\nl._configure_vllm_root_logger()\n"  # as vLLM does
MOVED = "import os, vllm.engine.core\nos.chdir('/')\n"


@pytest.mark.parametrize("release", [deep("0.20.2"), "0.33.0"])
def test_a_process_that_runs_the_farm_says_so_once(release: str, tmp_path: Path) -> None:
    """Up to 0.30 vLLM's logger is configured when it is imported; from 0.31 on, after the first process's plugins."""
    farm = farm_for(standing_in(tmp_path / "site", release), tmp_path / "cache")
    early = farm.start(f"{LOAD}import vllm.engine.core\n{HELD}{METRIC}")
    late = farm.run(f"{CONFIGURED}{LOAD}", VLLM_LOGGING_STREAM="ext://sys.stdout")
    quiet = farm.run(f"{CONFIGURED}{LOAD}{HELD}", VLLM_LOGGING_LEVEL="WARNING")

    assert early.returncode == late.returncode == 0, early.stderr + late.stderr
    assert early.stdout.startswith(f"{IN_MEMORY}\n")
    assert farm.metric in early.stdout
    assert early.stderr.startswith("vpatch: process ")
    assert early.stderr.endswith(f"{farm.line}\n")
    assert (early.stderr.count("\n"), late.stderr, "INFO" in late.stdout) == (1, "", True)
    assert late.stdout.endswith(f"{farm.line}\n")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, f"{IN_MEMORY}\n", "")


def replace(path: Path, data: bytes = b"x = 1\n") -> None:
    path.unlink()
    path.write_bytes(data)


def put_what_apply_makes(farm: Farm) -> None:
    """As a later `vpatch apply` of the same overlays; a server starts more processes at any time."""
    replace(farm.root / CHANGED, farm.content.files[CHANGED])


SAME: dict[str, tuple[str, Mapping[str, str]]] = {
    "no standard error": ("import sys\nsys.stderr = None\n", {}),
    "a module that may not be imported": ("import sys\nsys.modules['vllm.engine.core'] = None\n", {}),
    "a vLLM without metrics": ("import sys\nsys.modules['prometheus_client'] = None\n", {}),
    "an exported farm": ("", {"VPATCH_RUN": ""}),
    "a plugin of several": ("", {"VLLM_PLUGINS": "other,vpatch_receipt"}),
    "a relative path": (MOVED, {"PYTHONPATH": "cache/NAME:SITE"}),
    "a path with dots": (MOVED, {"PYTHONPATH": "SITE/../cache/NAME:SITE"}),
    "a link": (MOVED, {"PYTHONPATH": "link:SITE"}),
    "what apply puts in place of a file": ("", {}),
}


@pytest.mark.parametrize("case", SAME)
def test_what_makes_no_difference(case: str, farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(farm.path)
    before, variables = SAME[case]
    if "apply" in case:
        put_what_apply_makes(farm)
    named = {name: farm.placed(text) for name, text in variables.items()}
    ran = farm.run(f"{before}{LOAD}{HELD}", **named)

    assert (ran.returncode, ran.stdout) == (0, f"{IN_MEMORY}\n"), ran.stderr


def manifest(**fields: object) -> Callable[[Farm], None]:
    def change(farm: Farm) -> None:
        replace(farm.path / MANIFEST, json.dumps({**json.loads(farm.content.manifest), **fields}).encode())

    return change


def claim_other_files(farm: Farm) -> None:
    replace(farm.path / CHANGED)
    files = {**json.loads(farm.content.manifest)["files"], CHANGED: sha256(b"x = 1\n")}
    manifest(files=files)(farm)


Spoil = Callable[[Farm], object]


def nothing(_: Farm) -> None:
    """Only the environment differs."""


def half_a_manifest(farm: Farm) -> None:
    replace(farm.path / MANIFEST, b'{"schema": 3')


OTHER = {"VPATCH_RUN": "0" * 64}
OF_ANOTHER_VERSION = f"CACHE/{MANIFEST}: not a manifest of this version"
NOT_PROVED = f"cannot prove what it runs: CACHE/{MANIFEST}: "
OF_OTHERS = f"CACHE/{MANIFEST}: its digest is not that of the files"
RELEASE = {"info": "vllm-0.20.2.dist-info", "modules": ""}
CHANGES: dict[str, tuple[Spoil, Mapping[str, str], str]] = {
    "other digest": (nothing, OTHER, "started for 000000000000, and finds "),
    "stock first": (nothing, {"PYTHONPATH": "SITE:CACHE"}, "vllm comes from SITE/vllm/__init__.py"),
    "changed": (lambda farm: replace(farm.path / CHANGED), {}, f"CACHE/{CHANGED}: it has changed"),
    "gone": (lambda farm: (farm.path / ADDED).unlink(), {}, f"CACHE/{ADDED}: no such file or directory"),
    "upgraded": (lambda farm: replace(farm.root / CHANGED), {}, f"SITE/{CHANGED}: it has changed"),
    "reverted": (lambda farm: replace(farm.root / APPLIED), {}, f"SITE/{APPLIED}: it has changed"),
    "no manifest": (lambda farm: (farm.path / MANIFEST).unlink(), {}, f"{NOT_PROVED}[Errno 2]"),
    "half a manifest": (half_a_manifest, {}, f"{NOT_PROVED}Expecting"),
    "of a newer vpatch": (manifest(schema=99), {}, OF_ANOTHER_VERSION),
    "whose digest counts no release": (manifest(schema=3), {}, OF_ANOTHER_VERSION),
    "of other files": (claim_other_files, {}, OF_OTHERS),
    "of another digest": (manifest(digest="0" * 64), OTHER, OF_OTHERS),
    "of another release": (manifest(release=RELEASE), {}, f"{OF_OTHERS} and the release"),
    "a file elsewhere": (manifest(replaced={"vllm/../../x": "0"}), {}, f"CACHE/{MANIFEST}: it names a file elsewhere"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_process_that_runs_something_else_ends(change: str, farm: Farm) -> None:
    spoil, variables, message = CHANGES[change]
    spoil(farm)
    ran = farm.run(f"{LOAD}print('serves')", **{name: farm.placed(text) for name, text in variables.items()})

    assert (ran.returncode, ran.stdout) == (1, "")
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: vpatch: this process ")
    assert farm.placed(message) in last


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("m.__file__ = '/elsewhere/core.py'", "vllm.engine.core comes from /elsewhere/core.py"),
        ("m.__file__ = None", "vllm.engine.core comes from no file"),
        ("del m.__file__", "vllm.engine.core comes from no file"),
    ],
)
def test_a_module_that_was_loaded_from_elsewhere_ends_it(before: str, message: str, farm: Farm) -> None:
    ran = farm.run(f"import vllm.engine.core as m\n{before}\n{LOAD}")

    assert ran.returncode == 1
    assert message in ran.stderr.splitlines()[-1]


def test_registered_twice(farm: Farm) -> None:
    """vLLM may load its plugins again; a module that is loaded anew registers its metric again."""
    again = "import vllm.plugins, vpatch_receipt, importlib\nvllm.plugins.plugins_loaded = False\nload()\n"
    anew = "importlib.reload(vpatch_receipt).register()\n"
    ran = farm.run(LOAD + again + anew + METRIC)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count(farm.metric) == 1


def test_a_fork_inherits_the_receipt_and_a_new_program_does_not(farm: Farm) -> None:
    fork = "import sys\nsys.stdout.flush()\nif os.fork() == 0:\n    print(*held())\nelse:\n    os.wait()\n"
    new = f"import subprocess\nsubprocess.run([sys.executable, '-c', {HELD!r}], close_fds=False)\n"
    ran = farm.start(f"{LOAD}{HELD}{fork}    sys.stdout.flush()\n    {new.replace(chr(10), chr(10) + '    ')}")

    # Its own, and that of the process that it was forked from, which is none of its.
    assert ran.stdout.splitlines() == [IN_MEMORY, f"{IN_MEMORY} {IN_MEMORY}", ""], ran.stderr


def test_the_digest_is_what_was_proved(farm: Farm) -> None:
    """By a worker, too; also after another farm was exported into the folder."""
    spoils = f"open({str(farm.path / MANIFEST)!r}, 'w').write('{{}}')\n"
    code = f"import vllm, vpatch_receipt as r\nprint(r.Proof().vpatch_digest())\n{HELD}{spoils}print(r.digest())\n"

    assert farm.run(code).stdout == f"{farm.content.digest}\n{IN_MEMORY}\n{farm.content.digest}\n"


@pytest.mark.parametrize("named", ["", "other"])
def test_the_plugin_is_loaded_only_where_it_is_named(named: str, farm: Farm) -> None:
    """`vpatch run` names it: see tests/cli/run/test_run.py."""
    assert farm.run(f"{LOAD}{HELD}", VLLM_PLUGINS=named).stdout == "\n"


# --- the metric -----------------------------------------------------------------------------------------------------


def shared(farm: Farm) -> dict[str, str]:
    """Return the variables of API servers that share their metrics."""
    folder = farm.root.parent / "shared"
    folder.mkdir(exist_ok=True)
    return {"PROMETHEUS_MULTIPROC_DIR": str(folder)}


def test_several_api_servers_share_one_metric(farm: Farm) -> None:
    """Metrics of others stay: vLLM removes its own, or not."""
    of_others = f"{ADDED_UP.partition('registry')[0]}p.Gauge('other', 'x', multiprocess_mode='livemax').set(1)\n"
    farm.run(of_others, **shared(farm))
    with farm.serving(**shared(farm)), farm.serving(**shared(farm)):
        ran = farm.run(ADDED_UP, **shared(farm))

    assert ran.stdout.count("vpatch_info{") == 1
    assert farm.metric in ran.stdout
    assert "other 1.0" in ran.stdout


def killed(farm: Farm, _: int) -> None:
    farm.start(f"{LOAD}import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", **shared(farm))


def killed_and_reused(farm: Farm, living: int) -> None:
    """Another process has its number by now."""
    killed(farm, 0)
    (file,) = Path(shared(farm)["PROMETHEUS_MULTIPROC_DIR"]).iterdir()
    file.rename(file.with_name(re.sub(r"\d+", str(living), file.name)))


def killed_in_a_container(farm: Farm, _: int) -> None:
    """The process of the next container has the same number. It is the first one in both."""
    farm.start(LOAD, wrapper=CONTAINED, **shared(farm))


@root_only
@pytest.mark.parametrize("end", [killed, deep(killed_and_reused), deep(killed_in_a_container)])
def test_the_metric_of_an_ended_process_is_not_counted(
    end: Callable[[Farm, int], None], farm: Farm, tmp_path: Path
) -> None:
    """The folder may outlive a server. Two digests, one of them right, would keep Prometheus silent."""
    earlier = farm_for(farm.root, tmp_path / "other", added=b"added = 2\n")
    wrapper = CONTAINED if end is killed_in_a_container else ()
    with farm.serving() as living:
        end(earlier, living)
        assert earlier.metric in farm.run(ADDED_UP, **shared(farm)).stdout
        ran = farm.start(f"{LOAD}{ADDED_UP}", wrapper=wrapper, **shared(farm))

    assert ran.stdout.count("vpatch_info{") == 1, ran.stdout + ran.stderr
    assert farm.metric in ran.stdout


def test_a_metric_that_cannot_be_shared_is_a_warning(farm: Farm, tmp_path: Path) -> None:
    ran = farm.run(f"{CONFIGURED}{LOAD}{HELD}", PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "gone"))

    assert (ran.returncode, ran.stdout.count(RECEIPT)) == (0, 1)
    assert "vpatch: no metric vpatch_info: [Errno 2]" in ran.stdout

"""What vLLM's processes prove of a farm: real processes, with vLLM's own loader of plugins and its own logger."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from vpatch.guest.vpatch_claim import RECEIPT
from vpatch.guest.vpatch_receipt import MANIFEST

from tests.needs import root_only
from tests.run.standin import ADDED, APPLIED, CHANGED, LOAD, Farm, farm_for, standing_in

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


@pytest.mark.parametrize("release", ["0.20.2", "0.33.0"])
def test_a_process_that_runs_the_farm_says_so_once(release: str, tmp_path: Path) -> None:
    """Up to 0.30 vLLM's logger is configured when it is imported; from 0.31 on, after the first process's plugins."""
    farm = farm_for(standing_in(tmp_path / "site", release), tmp_path / "cache")
    early = farm.run(f"{LOAD}import vllm.engine.core\n{HELD}{METRIC}")
    late = farm.run(f"{CONFIGURED}{LOAD}", VLLM_LOGGING_STREAM="ext://sys.stdout")

    assert early.returncode == late.returncode == 0, early.stderr + late.stderr
    assert early.stdout.startswith(f"{IN_MEMORY}\n")
    assert farm.metric in early.stdout
    assert early.stderr.startswith("vpatch: process ")
    assert early.stderr.endswith(f"{farm.line}\n")
    assert early.stderr.count("\n") == 1
    assert late.stderr == ""
    assert "INFO" in late.stdout
    assert late.stdout.endswith(f"{farm.line}\n")


def test_a_server_that_logs_warnings_only_logs_no_receipt(farm: Farm) -> None:
    ran = farm.run(f"{CONFIGURED}{LOAD}{HELD}", VLLM_LOGGING_LEVEL="WARNING")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"{IN_MEMORY}\n"


def test_a_closed_standard_error_is_no_failure(farm: Farm) -> None:
    ran = farm.run(f"import sys\nsys.stderr = None\n{LOAD}{HELD}")

    assert (ran.returncode, ran.stdout) == (0, f"{IN_MEMORY}\n")


def replace(path: Path, data: bytes = b"x = 1\n") -> None:
    path.unlink()
    path.write_bytes(data)


def other_digest(farm: Farm) -> dict[str, str]:
    return {"VPATCH_RUN": "0" * 64}


def changed_farm(farm: Farm) -> dict[str, str]:
    replace(farm.path / CHANGED)
    return {}


def file_gone(farm: Farm) -> dict[str, str]:
    (farm.path / ADDED).unlink()
    return {}


def older_manifest(farm: Farm) -> dict[str, str]:
    """One of a vpatch whose digests do not tell releases apart."""
    told = json.loads((farm.path / MANIFEST).read_bytes())
    replace(farm.path / MANIFEST, json.dumps({**told, "schema": 3}).encode())
    return {}


def upgraded(farm: Farm) -> dict[str, str]:
    replace(farm.root / CHANGED)
    return {}


def reverted(farm: Farm) -> dict[str, str]:
    replace(farm.root / APPLIED)
    return {}


def no_manifest(farm: Farm) -> dict[str, str]:
    (farm.path / MANIFEST).unlink()
    return {}


def half_a_manifest(farm: Farm) -> dict[str, str]:
    replace(farm.path / MANIFEST, b'{"schema": 3')
    return {}


def other_manifest(farm: Farm) -> dict[str, str]:
    replace(farm.path / MANIFEST, b'{"schema": 99, "digest": "0"}')
    return {}


def claimed_release(farm: Farm) -> dict[str, str]:
    told = json.loads((farm.path / MANIFEST).read_bytes())
    release = {"info": "vllm-0.20.2.dist-info", "modules": ""}
    replace(farm.path / MANIFEST, json.dumps({**told, "release": release}).encode())
    return {}


def claimed_digest(farm: Farm) -> dict[str, str]:
    """A manifest whose digest is not that of its files."""
    told = json.loads((farm.path / MANIFEST).read_bytes())
    replace(farm.path / MANIFEST, json.dumps({**told, "digest": "0" * 64}).encode())
    return other_digest(farm)


def file_elsewhere(farm: Farm) -> dict[str, str]:
    told = json.loads((farm.path / MANIFEST).read_bytes())
    replace(farm.path / MANIFEST, json.dumps({**told, "replaced": {"vllm/../../secret": "0"}}).encode())
    return {}


def stock_first(farm: Farm) -> dict[str, str]:
    """Another vLLM stands before the farm, which comes later on the path."""
    return {"PYTHONPATH": f"{farm.root}:{farm.path}"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_digest, "started for 000000000000, and finds "),
        (changed_farm, f"CACHE/{CHANGED}: it has changed"),
        (file_gone, f"CACHE/{ADDED}: no such file or directory"),
        (upgraded, f"SITE/{CHANGED}: it has changed"),
        (reverted, f"SITE/{APPLIED}: it has changed"),
        (no_manifest, f"cannot prove what it runs: CACHE/{MANIFEST}: [Errno 2]"),
        (half_a_manifest, f"cannot prove what it runs: CACHE/{MANIFEST}: Expecting"),
        (other_manifest, f"CACHE/{MANIFEST}: not a manifest of this version"),
        (older_manifest, f"CACHE/{MANIFEST}: not a manifest of this version"),
        (claimed_digest, f"CACHE/{MANIFEST}: its digest is not that of the files"),
        (claimed_release, f"CACHE/{MANIFEST}: its digest is not that of the files and the release"),
        (file_elsewhere, f"CACHE/{MANIFEST}: it names a file elsewhere"),
        (stock_first, "vllm comes from SITE/vllm/__init__.py"),
    ],
)
def test_a_process_that_runs_something_else_ends(
    change: Callable[[Farm], Mapping[str, str]], said: str, farm: Farm
) -> None:
    ran = farm.run(f"{LOAD}print('serves')", **change(farm))

    assert (ran.returncode, ran.stdout) == (1, "")
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: vpatch: this process ")
    assert said.replace("CACHE", str(farm.path)).replace("SITE", str(farm.root)) in last


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("m.__file__ = '/elsewhere/core.py'", "vllm.engine.core comes from /elsewhere/core.py"),
        ("m.__file__ = None", "vllm.engine.core comes from no file"),
        ("del m.__file__", "vllm.engine.core comes from no file"),
    ],
)
def test_a_module_that_was_loaded_from_elsewhere_ends_it(before: str, said: str, farm: Farm) -> None:
    ran = farm.run(f"import vllm.engine.core as m\n{before}\n{LOAD}")

    assert ran.returncode == 1
    assert said in ran.stderr.splitlines()[-1]


def test_a_module_that_may_not_be_imported_is_no_other_module(farm: Farm) -> None:
    assert farm.run(f"import sys\nsys.modules['vllm.engine.core'] = None\n{LOAD}").returncode == 0


@pytest.mark.parametrize("way", ["relative", "dotted", "linked"])
def test_the_farm_may_be_named_otherwise(way: str, farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(farm.path)
    first = {
        "relative": f"cache/{farm.path.name}",
        "dotted": f"{tmp_path}/site/../cache/{farm.path.name}",
        "linked": "link",
    }
    code = f"import os, vllm.engine.core\nos.chdir('/')\n{LOAD}{HELD}"
    ran = farm.run(code, PYTHONPATH=f"{first[way]}:{farm.root}")

    assert (ran.returncode, ran.stdout) == (0, f"{IN_MEMORY}\n"), ran.stderr


def test_an_environment_without_the_digest_is_that_of_an_exported_farm(farm: Farm) -> None:
    assert farm.run(f"{LOAD}{HELD}", VPATCH_RUN="").stdout == f"{IN_MEMORY}\n"


def test_an_editable_vllm(farm: Farm, tmp_path: Path) -> None:
    """Its folder stands on the path behind the farm; start-up code adds it."""
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup/sitecustomize.py").write_text(f"import sys\nsys.path.append({str(farm.root)!r})\n")
    ran = farm.run(f"{LOAD}{HELD}", PYTHONPATH=f"{farm.path}:{tmp_path}/startup")

    assert (ran.returncode, ran.stdout) == (0, f"{IN_MEMORY}\n"), ran.stderr


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
    ran = farm.run(f"{LOAD}{HELD}{fork}    sys.stdout.flush()\n    {new.replace(chr(10), chr(10) + '    ')}")

    # Its own, and that of the process that it was forked from, which is none of its.
    assert ran.stdout.splitlines() == [IN_MEMORY, f"{IN_MEMORY} {IN_MEMORY}", ""], ran.stderr


def test_a_worker_proves_the_digest(farm: Farm) -> None:
    ran = farm.run(f"import vllm, vpatch_receipt\nprint(vpatch_receipt.Proof().vpatch_digest())\n{HELD}")

    assert ran.stdout == f"{farm.content.digest}\n{IN_MEMORY}\n"


def test_the_digest_is_what_was_proved(farm: Farm) -> None:
    """Also after another farm was exported into the folder."""
    farm_files = f"open({str(farm.path / MANIFEST)!r}, 'w').write('{{}}')\n"
    ran = farm.run(f"{LOAD}import vpatch_receipt as r\nd = r.digest()\n{farm_files}print(r.digest() == d, len(d))")

    assert (ran.returncode, ran.stdout) == (0, "True 64\n")


def test_a_vllm_without_metrics(farm: Farm) -> None:
    ran = farm.run(f"import sys\nsys.modules['prometheus_client'] = None\n{LOAD}{HELD}")

    assert (ran.returncode, ran.stdout) == (0, f"{IN_MEMORY}\n"), ran.stderr


def shared(farm: Farm) -> dict[str, str]:
    """Return the variables of API servers that share their metrics."""
    folder = farm.root.parent / "shared"
    folder.mkdir(exist_ok=True)
    return {"PROMETHEUS_MULTIPROC_DIR": str(folder)}


def test_several_api_servers_share_one_metric(farm: Farm) -> None:
    with farm.serving(**shared(farm)), farm.serving(**shared(farm)):
        ran = farm.run(ADDED_UP, **shared(farm))

    assert ran.stdout.count("vpatch_info{") == 1
    assert farm.metric in ran.stdout


def other(farm: Farm, tmp_path: Path) -> Farm:
    """Return a farm with another digest, of the same vLLM."""
    return farm_for(farm.root, tmp_path / "other", added=b"added = 2\n")


def killed(farm: Farm, _: int) -> None:
    farm.run(f"{LOAD}import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", **shared(farm))


def killed_and_reused(farm: Farm, living: int) -> None:
    """Another process has its number by now."""
    killed(farm, 0)
    (file,) = Path(shared(farm)["PROMETHEUS_MULTIPROC_DIR"]).iterdir()
    file.rename(file.with_name(re.sub(r"\d+", str(living), file.name)))


def killed_in_a_container(farm: Farm, _: int) -> None:
    """The process of the next container has the same number. It is the first one in both."""
    farm.run(LOAD, **shared(farm), wrapper=CONTAINED)


@root_only
@pytest.mark.parametrize("end", [killed, killed_and_reused, killed_in_a_container])
def test_the_metric_of_an_ended_process_is_not_counted(
    end: Callable[[Farm, int], None], farm: Farm, tmp_path: Path
) -> None:
    """The folder may outlive a server. Two digests, one of them right, would keep Prometheus silent."""
    earlier = other(farm, tmp_path)
    wrapper = CONTAINED if end is killed_in_a_container else ()
    with farm.serving() as living:
        end(earlier, living)
        assert earlier.metric in farm.run(ADDED_UP, **shared(farm)).stdout
        ran = farm.run(f"{LOAD}{ADDED_UP}", **shared(farm), wrapper=wrapper)

    assert ran.stdout.count("vpatch_info{") == 1, ran.stdout + ran.stderr
    assert farm.metric in ran.stdout


def test_metrics_of_others_stay(farm: Farm) -> None:
    """vLLM removes its own, or not."""
    of_others = f"{ADDED_UP.partition('registry')[0]}p.Gauge('other', 'x', multiprocess_mode='livemax').set(1)\n"
    farm.run(of_others, **shared(farm))

    assert "other 1.0" in farm.run(f"{LOAD}{ADDED_UP}", **shared(farm)).stdout


def test_a_metric_that_cannot_be_shared_is_a_warning(farm: Farm, tmp_path: Path) -> None:
    ran = farm.run(f"{CONFIGURED}{LOAD}{HELD}", PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "gone"))

    assert (ran.returncode, ran.stdout.count(RECEIPT)) == (0, 1)
    assert "vpatch: no metric vpatch_info: [Errno 2]" in ran.stdout


def test_the_plugin_is_loaded_only_where_it_is_named(farm: Farm) -> None:
    """`vpatch run` names it: see tests/cli/run/test_run.py."""
    for named, receipts in (("", 0), ("other", 0), ("other,vpatch_receipt", 1), ("vpatch_receipt", 1)):
        assert farm.run(f"{LOAD}{HELD}", VLLM_PLUGINS=named).stdout.count(RECEIPT) == receipts


def test_what_apply_puts_in_place_of_a_replaced_file_is_right(farm: Farm) -> None:
    """A later `vpatch apply` of the same overlays; a server starts more processes at any time."""
    replace(farm.root / CHANGED, farm.content.files[CHANGED])
    ran = farm.run(f"{LOAD}{HELD}")

    assert (ran.returncode, ran.stdout.count(RECEIPT)) == (0, 1), ran.stderr

"""What a process sees of its vLLM: run as a script, it writes a JSON object. Its vLLM is the one of test_seen.py."""

from __future__ import annotations

import importlib.resources
import inspect
import json
import linecache
import multiprocessing
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any


def answer(queue: Any, thing: Any) -> None:
    queue.put(thing.tell())


def answered_by(method: str, thing: object) -> Any:
    """Return the answer of a child process that was started in this way."""
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=answer, args=(queue, thing))
    child.start()
    found = queue.get(timeout=60)
    child.join()
    return found


def lines_of_failure(fail: Any) -> str:
    try:
        fail()
    except ValueError:
        return traceback.format_exc()
    return ""


def run(*flags: str) -> str:
    """What `python FLAGS -m vllm.main` prints; the start of its error if it fails."""
    ran = subprocess.run([sys.executable, *flags, "-m", "vllm.main"], capture_output=True, text=True, check=False)
    return ran.stdout.strip() or ran.stderr.strip().splitlines()[-1].partition(":")[2][:30]


def seen() -> dict[str, Any]:
    from vllm.layers import mod, registry
    from vllm.layers.other import Thing

    code = mod.fail.__code__
    return {
        "runs": Thing().tell(),
        "source of a class": inspect.getsource(Thing),
        "traceback": "word()" in lines_of_failure(mod.fail),
        "file that vLLM hashes for its compile cache": Path(code.co_filename).read_text(),
        "source that vLLM compares before it loads a compiled model": "".join(inspect.getsourcelines(mod)[0])
        == Path(inspect.getfile(mod)).read_text(),
        "file beside registry.py, that vLLM hashes": registry.AT.read_text(),
        "data beside a changed file": (Path(mod.__file__).parent / "configs/a.json").read_text(),
        "importlib.resources": (importlib.resources.files("vllm.layers") / "configs/a.json").read_text(),
        "line of a debugger": linecache.getline(code.co_filename, code.co_firstlineno + 1),
        **{method: answered_by(method, Thing()) for method in ("spawn", "fork", "forkserver")},
        **{f"python {flag} -m": run(flag) for flag in ("-P", "-I")},
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(seen()))

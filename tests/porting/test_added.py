"""The imports that a patch file adds, wherever they stand in it."""

from __future__ import annotations

import pytest
from vpatch.core.patch_file import parse
from vpatch.porting.added import imports

HEAD = "Format: 1\nSubject: A change\nBase: 0.20.2\n\n"

# The changes of a patch file, and the imports.
CASES = {
    "at the top": ("--- vllm/m.py\n@@ import\n+from a import b, c\n", ["from a import b, c"]),
    "among statements": ("--- vllm/m.py\n@@ f\n x = 1\n+import a.b as c\n y = 1\n", ["import a.b as c"]),
    "in a block that comes": ("--- vllm/m.py\n@@ f\n x = 1\n+if x:\n+    import a\n y = 1\n", ["import a"]),
    "in a function that comes": ("--- vllm/m.py\n@@\n+def g():\n+    from . import a\n", ["from . import a"]),
    "in a new module": ("+++ vllm/_vpatch/x.py\n+import a\n+\n+def g():\n+    import b\n", ["import a", "import b"]),
    "what stays is none": ("--- vllm/m.py\n@@ f\n import a\n-x = 1\n+x = 2\n", []),
    "twice": ("--- vllm/m.py\n@@ f\n x = 1\n+import a\n@@ g\n x = 1\n+import a\n", ["import a"]),
}


@pytest.mark.parametrize("case", CASES)
def test_imports(case: str) -> None:
    changes, wanted = CASES[case]

    found = imports(parse(f"{HEAD}{changes}".encode()))

    assert [statement for _, statement in found] == wanted

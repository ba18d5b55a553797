"""Which test runs the commands of which page.

A page in `ON_A_MACHINE` or `WITH_TORCH` is run by `test_recipes.py` in this folder, a page in `IN_AN_ENGINE` by
`tests/image/test_recipes.py`. `BY_NAME` has single blocks of other pages, by the comment above them, and the test that
takes them from the page. `test_pages.py` finds the blocks that no test runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.paths import ROOT


@dataclass(frozen=True)
class Recipe:
    """How to run a page.

    Attributes:
        before: commands that make what the page says its reader has.
        replace: by text on the page, what the test has instead.
        terminal: whether commands print to a terminal of 80 columns, in place of a pipe.
    """

    before: str = ""
    replace: Mapping[str, str] = field(default_factory=dict)
    terminal: bool = False


VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

ENVIRONMENT = """uv venv --quiet .venv
. .venv/bin/activate
uv pip install --quiet pip
"""
VLLM = "uv pip install --quiet vllm==0.20.2\n"
ADDRESS = "git+https://github.com/vpatch/vpatch"
EXTRAS = f'uv pip install --quiet "vpatch[matrix,plan] @ {ADDRESS}"\n'
PROJECT = f"""cat > pyproject.toml <<'END'
[project]
name = "server"
version = "1.0"
requires-python = "=={VERSION}.*"
dependencies = ["vllm==0.20.2"]
END
"""
PATCH = "tests/third_party/vpatch_machine_names/i586-machines.vpatch"
PATCHES = f"mkdir patches\ncat > patches/i586-machines.vpatch <<'END'\n{(ROOT / PATCH).read_text()}END\n"
CARRIED = sorted((ROOT / "tests/docs/carried").iterdir())
DIFFS = {one.stem: f"cat > fixes/{one.name} <<'END'\n{one.read_text()}END\n" for one in CARRIED}
FIXES = "mkdir fixes\n" + "".join(DIFFS.values())
SITE = f".venv/lib/python{VERSION}/site-packages"
MOUNTED = rf"""sed 's/for func in plugins.values():/for name, func in plugins.items():/
s/^        func()/        logger.info("Running the plugin %s", name)\n&/' {SITE}/vllm/plugins/__init__.py > plugins.py
"""
CHANGES = rf"""{MOUNTED}git init --quiet fork
cp -r {SITE}/vllm fork
commit() {{ git -C fork add . && git -C fork -c user.name=test -c user.email=test@example.org commit --quiet -m "$1"; }}
commit "vLLM 0.20.2"
git -C fork tag v0.20.2
git -C fork checkout --quiet -b our-branch
cp plugins.py fork/vllm/plugins/__init__.py
commit "Name the plugin that runs"
"""
CONFIG = "vllm.model_executor.layers.quantization.turboquant.config"
OTHER_CODE = """uv pip install --quiet --link-mode copy --target nightly vllm==0.26.0
sed -i 's/\\bexisting\\b/present/g' nightly/vllm/engine/arg_utils.py
"""
CHECKPOINT = """mkdir my-checkpoint my-model
cat > my-checkpoint/config.json <<'END'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
 "num_hidden_layers": 4, "num_attention_heads": 32, "hidden_size": 2048}
END
echo '{"architectures": ["MyForCausalLM"], "num_hidden_layers": 4, "num_attention_heads": 32, "hidden_size": 2048}' \
  > my-model/config.json
"""
TORCH = f"""uv pip install --quiet vllm==0.20.2 "vpatch @ {ADDRESS}"
python - <<'END'
import os, pathlib, sysconfig
torch = f"import site; site.addsitedir({{os.environ['PACKAGES']!r}})"
pathlib.Path(sysconfig.get_path("purelib"), "torch.pth").write_text(torch)
END
"""
AUTHOR = """export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@example.org GIT_COMMITTER_NAME=test
export GIT_COMMITTER_EMAIL=test@example.org GIT_CONFIG_COUNT=2
export GIT_CONFIG_KEY_1="url.file://$PWD/my-model-fix.insteadOf" GIT_CONFIG_VALUE_1=https://github.com/YOU/my-model-fix
"""

# Of vLLM's sources, for want of the packages that it imports, only the path.
IMPORTED = """python -c 'import importlib.util as u, os; assert "vpatch/run/" in u.find_spec("vllm").origin'"""
PYTHON = {"python3.12": f"python{VERSION}"}  # the one that runs the tests
READING = {"vpatch[all]": "vpatch[import,matrix]"}  # and not what works on images
LIKE_THE_BASE = "try:recipes"  # the stand-in for vllm/vllm-openai:v0.20.2, with pip

ON_A_MACHINE: Mapping[str, Recipe] = {
    "README.md": Recipe(
        ENVIRONMENT + VLLM,
        {
            f"uv tool install {ADDRESS}": f'uv tool install "vpatch[matrix,plan] @ {ADDRESS}"',
            "vpatch build --base": ": ",  # there is no engine
            "--from 0.24.0 --to 0.33.0 ": "--from 0.20.2 --to 0.26.0 ",  # the index has no others
            "vllm serve MODEL  ": f"{IMPORTED}  ",
            "vpatch apply --check": "vpatch apply; vpatch apply --check",
        },
    ),
    "docs/decode-speed.md": Recipe(f"{ENVIRONMENT}{EXTRAS}{VLLM}"),
    "docs/doctor.md": Recipe(f"{ENVIRONMENT}{EXTRAS}{VLLM}vpatch apply\ntouch server.log\n"),
    "docs/faq.md": Recipe(ENVIRONMENT + VLLM),
    "docs/getting-started.md": Recipe(
        ENVIRONMENT + VLLM,
        {"vpatch[fetch] @": "vpatch[matrix] @", "--vllm 0.33.0": "--vllm 0.26.0"},  # the index has no 0.33.0
    ),
    "docs/index.md": Recipe(ENVIRONMENT + VLLM),
    "docs/kubernetes.md": Recipe(f"{ENVIRONMENT}{EXTRAS}{VLLM}{PATCHES}"),
    "docs/matrix.md": Recipe(replace={"--vllm 0.33.0": "--vllm 0.26.0", "--vllm 0.34.0": "--vllm 0.26.0"}),
    "docs/patching-already.md": Recipe(f"{ENVIRONMENT}{EXTRAS.replace('[', '[import,')}{VLLM}{FIXES}{CHANGES}", PYTHON),
    "docs/plan.md": Recipe(
        CHECKPOINT,
        {"plan ORG/NAME --download": "plan Qwen3.6-35B-A3B-NVFP4"},  # it would ask the hub
    ),
    "docs/project.md": Recipe(f"{ENVIRONMENT}{EXTRAS}uv pip install --quiet pytest\n{VLLM}{PATCHES}"),
    "docs/recipes/air-gapped.md": Recipe(
        "uv venv --quiet .venv\nuv pip install --quiet --python .venv vllm==0.20.2\n"
        "uv venv --quiet online\n. online/bin/activate\nuv pip install --quiet pip\n"
    ),
    "docs/recipes/model-publisher.md": Recipe(AUTHOR + ENVIRONMENT + EXTRAS),
    "docs/recipes/requirements.md": Recipe(ENVIRONMENT),
    "docs/recipes/upgrade.md": Recipe(f"{ENVIRONMENT}{EXTRAS}{VLLM}vpatch apply\n{OTHER_CODE}", PYTHON),
    "docs/recipes/uv.md": Recipe(f"{PROJECT}{PATCHES}uv sync --quiet\n", {"vllm serve": "echo serve"}),
    "docs/run.md": Recipe(
        f"{ENVIRONMENT}{EXTRAS}{VLLM}",
        {
            "-- vllm serve MODEL": f"-- {IMPORTED}",
            "-m vllm.entrypoints.cli.main serve MODEL": "-c pass",
        },
    ),
    "docs/speculation.md": Recipe(
        f"{ENVIRONMENT}{EXTRAS}{VLLM}",
        {"vpatch doctor --run": "! vpatch doctor --run"},  # stock has the defects
    ),
    "docs/writing-overlays.md": Recipe(
        f"git clone --quiet https://github.com/vpatch/vpatch .\n{ENVIRONMENT}uv pip install --quiet -e '.[fetch]'\n",
        {"/tmp/vllm": "../vllm"},  # noqa: S108 - the page's
    ),
}

BESIDE = "uv venv --quiet .venv\nuv pip install --quiet vllm=="  # the environment is not the active one
WALKS: Mapping[str, Recipe] = {
    "docs/walks/rtx-5090.md": Recipe(f"{BESIDE}0.20.2\n", PYTHON, terminal=True),
    "docs/walks/pinned.md": Recipe(f"{BESIDE}0.24.0\n", {**PYTHON, **READING}, terminal=True),
    "docs/walks/own-patches.md": Recipe(
        f"{BESIDE}0.20.2\nmkdir fixes\n{DIFFS['log-ngram-drafts']}{MOUNTED}", {**PYTHON, **READING}, terminal=True
    ),
    "docs/walks/wrong-answers.md": Recipe(f"{BESIDE}0.22.1\n", PYTHON, terminal=True),
    "docs/walks/contribute.md": Recipe(
        replace={
            "python3 -m venv .venv": "uv venv --quiet .venv",  # the same, in less time
            ".venv/bin/pip install -q -e '.[test]'": "uv pip install --quiet -e '.[fetch,calls]' pytest pytest-xdist",
        },
        terminal=True,
    ),
}
"""The pages of first hours, on a machine of their own; `python -m tests.walks` writes what their commands print."""

WITH_TORCH: Mapping[str, Recipe] = {
    "docs/recipes/training.md": Recipe(
        ENVIRONMENT + TORCH,
        # An import that only the patched module has.
        {"    import vllm\n": f"    import vllm\n    from {CONFIG} import boundary_skip_layers\n"},
    ),
}

IN_AN_ENGINE: Mapping[str, Recipe] = {
    "docs/images.md": Recipe(
        """docker tag vllm/vllm-openai:v0.20.2 $REGISTRY/vllm/vllm-openai:v0.20.2
docker push --quiet $REGISTRY/vllm/vllm-openai:v0.20.2
""",
        {
            "registry.example": "$REGISTRY",
            "docker.io/vllm": "$REGISTRY/vllm",
            "vpatch test me/vllm:v0.20.2 --gpus\n": "\n",  # there is no GPU
        },
    ),
    "docs/recipes/compose.md": Recipe(PATCHES),
    "docs/recipes/dockerfile.md": Recipe(
        FIXES,
        replace={
            "FROM vllm/vllm-openai:v0.20.2": f"FROM {LIKE_THE_BASE}",
            ADDRESS: "vpatch",  # a wheel in the stand-in, which has no git
        },
    ),
}

VERIFIED = "tests/test_images_page.py::test_the_page_has_the_verification_that_the_workflow_runs"
BY_NAME: Mapping[tuple[str, str], str] = {
    **{("docs/images.md", name): VERIFIED for name in ("cosign", "gh", "sbom")},
    ("README.md", "demo"): "tests/test_readme.py::test_the_first_command_does_its_work_once",
    ("README.md", "tests"): "tests/test_hygiene.py::test_the_documents_have_the_commands",
}

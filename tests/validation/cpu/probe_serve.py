"""What `vllm serve` makes of the named argument lists in a JSON file: the parsed values of each, or the error."""

from __future__ import annotations

import contextlib
import io
import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Parse as `vllm serve` does, up to the engine's arguments, and look up the named parsers."""
    from vllm.config import CacheConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    newer = find_spec("vllm.entrypoints.common")
    own = import_module("vllm.entrypoints.common.cli_args" if newer else "vllm.entrypoints.openai.cli_args")
    parser = FlexibleArgumentParser()
    serve = parser.add_subparsers(dest="subparser").add_parser("serve")
    own.make_arg_parser(serve)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args = parser.parse_args(["serve", *arguments])
            own.validate_parsed_serve_args(args)
            args.model = args.model_tag
            engine = AsyncEngineArgs.from_cli_args(args)
            CacheConfig(cache_dtype=engine.kv_cache_dtype)  # since 0.33 only this class knows the types, not the parser
            for name, known in (
                (args.tool_call_parser, ToolParserManager.list_registered()),
                (engine.reasoning_parser, ReasoningParserManager.list_registered()),
            ):
                if name and name not in known:
                    raise ValueError(f"no parser {name} among {', '.join(known)}")
    except SystemExit:
        return {"refused": said.getvalue()}
    except (TypeError, ValueError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    return {"values": vars(args) | vars(engine)}


def main(_home: str, file: str) -> dict[str, Any]:
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = False  # otherwise vLLM looks for the model in a cache that is empty
    found = {name: parsed(arguments) for name, arguments in json.loads(Path(file).read_text()).items()}
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain

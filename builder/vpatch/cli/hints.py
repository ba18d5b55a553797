"""What to type instead of a command line that click refuses: a table of what newcomers type first."""

from __future__ import annotations

import re

import click

from vpatch.cli.wording import command

WAYS = (
    (r"vpatch: No such command '(undo|uninstall|remove|restore|unpatch)'", "did you mean {revert}?"),
    (r"vpatch: No such command '(install|patch|add|enable)'", "did you mean {apply}?"),
    (
        r"vpatch: No such command '(upgrade|update)'",
        "what an upgrade brings: {matrix --from 0.24.0 --to newest}",
    ),
    (r"vpatch: No such command 'version'", "did you mean {--version}?"),
    (r"vpatch: No such command '(search|explain)'", "did you mean {find}?"),
    (r"matrix: .* extra argument \((v?\d\S*)\)", r"did you mean {matrix --vllm \1}?"),
    (r"matrix: .* extra arguments \((v?\d\S*) (v?\d\S*)\)", r"did you mean {matrix --from \1 --to \2}?"),
    (r"list: .* extra arguments? \((.*)\)", r"{find \1} searches the overlays"),
    (r"rebase v?\d\S*: Missing option '--onto'", "the patch, a file or an id, comes first, the release behind --onto"),
    (r"rebase (\S+): Missing option '--onto'", r"for example {rebase \1 --onto newest}"),
    (r"fetch (v?\d\S*): Missing argument 'DIR'", r"for example {fetch \1 vllm-\1}"),
    (
        r"(?:status|diff|apply|verify|find|doctor): No such option '--vllm'",
        "for example {matrix --vllm newest}, or {fetch newest vllm-newest}, whose folder is a TREE",
    ),
    (r"plan: No such option '(--gpus|-t|--tp)'", "for two GPUs: --tensor-parallel-size 2"),
    (r"apply: No such option '(-y|--yes)'", "it asks no question: leave it out"),
    (r"apply: No such option '(-a|--all)'", "all that are not opt-in is the default: leave it out"),
    (
        r"apply: No such option '(-f|--force)'",
        "it never overwrites what others edited: {diff --edits} shows that, {revert --force} discards it",
    ),
)
"""The command and click's message, as a pattern, and the way on, in which {words} are a command of vpatch.

`newest` stands for the newest release that vpatch knows.
"""


def with_way(error: click.UsageError) -> str:
    """Return the message of a refused command line, with the way on if it is a frequent one."""
    said, context = error.format_message(), error.ctx
    given = context.params.values() if context and isinstance(error, click.MissingParameter) else ()
    words = [context.info_name or "" if context else "", *(value for value in given if isinstance(value, str))]
    about = f"{' '.join(words)}: {said}"
    for pattern, way in WAYS:
        if found := re.match(pattern, about):
            return f"{found[0].partition(': ')[2]}: {_shown(way, found)}"
    return said


def _shown(way: str, found: re.Match[str]) -> str:
    from vpatch.plan.deployment import NEWEST  # late: every command imports this module

    way = way.replace("newest", str(NEWEST))
    return re.sub(r"\{([^{}]*)\}", lambda words: command(*map(found.expand, words[1].split())), way)

"""The command line. What it promises to scripts is in the contract: commands, JSON, exit codes."""

from vpatch.cli.main import main, run

__all__ = ["main", "run"]

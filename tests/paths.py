"""The repository, and the folder of what tests fetch (ignored by git)."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"

"""A hook of the site: the addresses of the repository and of the site, from the URLs in pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the repository, and the address at which GitHub Pages publishes its site."""
    project = tomllib.loads(Path(config.config_file_path).with_name("pyproject.toml").read_text("utf-8"))["project"]
    repository = project["urls"]["Issues"].removesuffix("/issues")
    owner, _, name = urlsplit(repository).path.strip("/").partition("/")
    config.repo_url, config.repo_name = repository, f"{owner}/{name}"
    config.site_url = config.site_url or f"https://{owner}.github.io/{name}/"
    return config

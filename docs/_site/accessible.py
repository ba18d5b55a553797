"""A hook of the site: what the theme's pages lack for a keyboard and a screen reader, as axe finds it."""

from __future__ import annotations

from typing import Any


def on_page_content(html: str, **_: Any) -> str:
    """Put each table into a box that scrolls if the table is wide, also by keyboard."""
    return html.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace("</table>", "</table></div>")


def on_post_page(output: str, **_: Any) -> str:
    """Name the dialog of the search."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def on_post_template(output_content: str, *, template_name: str, **_: Any) -> str:
    """Do the same for the page of an address that does not exist."""
    return on_post_page(output_content) if template_name == "404.html" else output_content

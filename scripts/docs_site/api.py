"""The API page on the site: the headings of docs/api.md, with a mkdocstrings directive in place of the text below each name."""

from __future__ import annotations

import re
from typing import Final

import zsq

PUBLIC: Final = frozenset(zsq.__all__) - {"__version__", "aio"}
SPARK: Final = "\n## Spark\n\n::: zsq.apps.spark.register\n    options:\n      show_root_heading: true\n      heading_level: 3\n"


def with_directives(markdown: str) -> str:
    """Return the page with `::: zsq.NAME` below each heading of a public name; other sections stay as they are."""
    head, *sections = re.split(r"^(?=#{2,3} )", markdown, flags=re.MULTILINE)
    return "".join([head, *map(_section, sections)]) + SPARK


def _section(text: str) -> str:
    heading, _, _ = text.partition("\n")
    name = heading.lstrip("# ")
    if heading.startswith("### ") and name in PUBLIC:
        return f"{heading}\n\n::: zsq.{name}\n\n"
    if name == "asyncio":
        return f"{text}\n" + "".join(_asyncio(one) for one in zsq.aio.__all__ if hasattr(zsq, one) or one == "run")
    return text


def _asyncio(name: str) -> str:
    return f"\n### aio.{name}\n\n::: zsq.aio.{name}\n"

"""API page of the site: docs/api.md, with a mkdocstrings directive in place of each name's text."""

from __future__ import annotations

import re
from typing import Final

import zsq

PUBLIC: Final = frozenset(zsq.__all__) - {"__version__", "aio"}
DIRECTIVE: Final = """<a id="{anchor}"></a>

::: zsq.{path}
    options:
      heading: {title}
      heading_level: 3
      show_root_heading: true
      show_root_toc_entry: true
      toc_label: {title}

"""


def with_directives(markdown: str) -> str:
    """Return the page with a directive in place of each section about a public name.

    Other sections stay as they are.
    """
    head, *sections = re.split(r"^(?=#{2,3} )", markdown, flags=re.MULTILINE)
    return (
        "".join([head, *map(_section, sections)])
        + f"\n## Spark\n\n{_directive('apps.spark.register', 'register')}"
        + f"\n{_directive('apps.spark.behind', 'behind')}"
    )


def _section(text: str) -> str:
    heading = text.partition("\n")[0]
    name = heading.lstrip("# ")
    if heading.startswith("### ") and name in PUBLIC:
        return _directive(name, name)
    if name == "asyncio":
        return f"{text}\n" + "".join(
            _directive(f"aio.{one}", f"aio.{one}")
            for one in zsq.aio.__all__
            if hasattr(zsq, one) or one == "run"
        )
    return text


def _directive(path: str, title: str) -> str:
    return DIRECTIVE.format(path=path, title=title, anchor=title.lower().replace(".", ""))

"""MkDocs hooks of the site: its files, its generated pages, and no parts from other servers.

The folders of the site are those of the repository. So each relative link works on the site and in
the repository. No page may make a browser load anything from another server.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs_site.api import with_directives
from docs_site.commands import commands_page
from docs_site.http_api import http_api_page

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENTS: Final = (
    "README.md", "CHANGELOG.md", "HACKING.md", "CONTRIBUTING.md", "SECURITY.md", "storage/FORMAT.md", "transport/PROTOCOL.md",
    "scripts/docs_site/site.css",
)  # fmt: skip
API: Final = "docs/api.md"
TABLE_ROW: Final = re.compile(r"^\|.*\|$", re.MULTILINE)
CODE: Final = re.compile(r"`[^`\n]+`")
# Parts of a page that a browser loads without a click of the reader. Links that a reader may follow
# are not included.
FETCHED: Final = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|"""
    r"""<link\b[^>]*\bhref=["']?(?:https?:)?//"""
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Give the site all documents with their paths in the repository, and the generated pages."""
    # These are the files of the theme.
    found = [one for one in files if one.src_dir != config.docs_dir]
    names = [
        *DOCUMENTS,
        *(
            path.relative_to(ROOT).as_posix()
            for path in sorted((ROOT / "docs").rglob("*"))
            if path.is_file()
        ),
    ]
    found += [File(name, str(ROOT), config.site_dir, config.use_directory_urls) for name in names]
    found.append(File.generated(config, "docs/commands.md", content=commands_page()))
    found.append(
        File.generated(
            config,
            "docs/http-api.md",
            content=http_api_page((ROOT / "docs/openapi.yaml").read_text()),
        )
    )
    return Files(found)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the directives into the API page, and adapt code in tables to Python-Markdown.

    Git hosts show `\\|` in a table as a pipe, also in code. Python-Markdown would show the
    backslash in code, and does not need it.
    """
    text = with_directives(markdown) if page.file.src_uri == API else markdown
    return TABLE_ROW.sub(
        lambda row: CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0]), text
    )


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that makes a browser load something from another server."""
    asks = FETCHED.search(output)
    if asks is not None:
        raise PluginError(
            f"{page.file.src_uri} makes browsers load something from another server: "
            f"{output[asks.start() : asks.end() + 60]}"
        )
    return output

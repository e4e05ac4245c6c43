"""Bundle of the console: all modules as one script, and all style sheets as one sheet.

A module becomes a function that is called once, in the order of the imports, and returns its
exports. So a module sees only what it imports. Only the forms that the console's sources use are
supported, each on a separate line:

    import { a, b as c } from "./other.js";
    export function f, export async function f, export class C, export const c

Browsers load modules by themselves, but one by one. Over a link with 100 ms of latency and 200 KB a
second, Chromium first painted the page after 1.4 s with the bundle, 2.1 s with single modules, and
3.1 s with a `modulepreload` for each of them. When the page was loaded again, it was 0.5, 1.7 and
2.0 s. The bundle has 4 files of 96 KB, and the single modules are 68 files of 147 KB.

Two other ways were rejected: a bundler, which needs a build step and a package of another language,
and modules joined without functions, because two modules may each have a `row`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Final

FIRST: Final = "main.js"
SCRIPT: Final = "all.js"
STYLE: Final = "all.css"

_IMPORT: Final = re.compile(r'^import \{([^}]*)\} from "(\.[^"]+)";$', re.MULTILINE)
_EXPORT: Final = re.compile(
    r"^export (?=(?:async function|function|class|const) ([A-Za-z_$][\w$]*))", re.MULTILINE
)
_OTHER: Final = re.compile(r"^(?:import|export)\b.*$|\bimport\s*\(|\bimport\.meta\b", re.MULTILINE)
_SHEET: Final = re.compile(r'^<link rel="stylesheet" href="/console/([^"]+)">\n', re.MULTILINE)
_SCRIPT: Final = re.compile(
    rf'^(<script type="module" src="/console/){re.escape(FIRST)}(")', re.MULTILINE
)


class CannotJoin(ValueError):
    """Raised if a source has an unsupported form. The text names the file and the line.

    The page then works with its single files.
    """


def join_modules(sources: Mapping[str, str]) -> str:
    """Return one module with the effect of `main.js`.

    `sources` are the modules by path from the folder's root. Modules that are not imported are left
    out. Raises `CannotJoin`.
    """
    done: dict[str, str] = {}
    parts: list[str] = []
    _join(FIRST, sources, (), done, parts)
    return "".join(parts)


def join_sheets(page: str, sources: Mapping[str, str]) -> tuple[str, str]:
    """Return the page that requests the two joined files, and the joined sheet.

    The sheet joins the sheets that the page names, in its order. Raises `CannotJoin`.
    """
    named = _SHEET.findall(page)
    missing = [name for name in named if name not in sources]
    if missing or not named or not _SCRIPT.search(page):
        raise CannotJoin(
            f"the page does not name a style sheet or {FIRST}, or names missing style sheets: "
            f"{missing}"
        )
    first = True

    def once(_: re.Match[str]) -> str:
        nonlocal first
        link, first = f'<link rel="stylesheet" href="/console/{STYLE}">\n' if first else "", False
        return link

    return _SCRIPT.sub(rf"\g<1>{SCRIPT}\g<2>", _SHEET.sub(once, page)), "\n".join(
        sources[name] for name in named
    )


def _join(
    name: str,
    sources: Mapping[str, str],
    above: tuple[str, ...],
    done: dict[str, str],
    parts: list[str],
) -> str:
    """Add a module and its imports to `parts`. Return the variable that holds its exports."""
    if name in above:
        raise CannotJoin(f"{name} imports itself: {' > '.join([*above, name])}")
    if name in done:
        return done[name]
    source = sources.get(name)
    if source is None:
        raise CannotJoin(
            f"{above[-1] if above else 'the page'} imports {name}, which does not exist"
        )

    def imported(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[2]))
        return (
            f"const {{{match[1].replace(' as ', ': ')}}} = "
            f"{_join(target, sources, (*above, name), done, parts)};"
        )

    exports: list[str] = _EXPORT.findall(source)
    body = _EXPORT.sub("", _IMPORT.sub(imported, source))
    if other := _OTHER.search(body):
        raise CannotJoin(
            f"{name} has an import or export that cannot be joined: {other[0].strip()[:100]}"
        )
    done[name] = f"module{len(done)}"
    parts.append(
        f"// {name}\nconst {done[name]} = (() => {{\n{body}\nreturn {{ {', '.join(exports)} "
        f"}};\n}})();\n"
    )
    return done[name]

"""The console's modules joined into one, and its style sheets into another: a browser asks for two files, not for fifty. Pure.

A module becomes a function that is called once, in the order of the imports, and that returns its exports: nothing of one module is seen in
another that does not import it. Only what the console's own sources have is understood, each on a line of its own:

    import { a, b as c } from "./other.js";
    export function f, export async function f, export class C, export const c

Rejected: a bundler (a build step, and a package of another language), and names joined as they are (two modules may each have a `row`).
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
_EXPORT: Final = re.compile(r"^export (?=(?:async function|function|class|const) ([A-Za-z_$][\w$]*))", re.MULTILINE)
_OTHER: Final = re.compile(r"^(?:import|export)\b.*$|\bimport\s*\(|\bimport\.meta\b", re.MULTILINE)
_SHEET: Final = re.compile(r'^<link rel="stylesheet" href="/console/([^"]+)">\n', re.MULTILINE)
_SCRIPT: Final = re.compile(rf'^(<script type="module" src="/console/){re.escape(FIRST)}(")', re.MULTILINE)


class CannotJoin(ValueError):
    """A source is not as described above; the sentence says which and where. The page works with its files one by one."""


def join_modules(sources: Mapping[str, str]) -> str:
    """One module that does what `main.js` does. `sources`: by its path from the folder's root; those that nothing imports are left out."""
    done: dict[str, str] = {}
    parts: list[str] = []
    _join(FIRST, sources, (), done, parts)
    return "".join(parts)


def join_sheets(page: str, sources: Mapping[str, str]) -> tuple[str, str]:
    """The page that asks for the two joined files, and the joined sheet: those that the page names, in its order."""
    named = _SHEET.findall(page)
    missing = [name for name in named if name not in sources]
    if missing or not named or not _SCRIPT.search(page):
        raise CannotJoin(f"the page names no sheet, no {FIRST}, or a sheet that is not there: {missing}")
    first = True

    def once(_: re.Match[str]) -> str:
        nonlocal first
        link, first = f'<link rel="stylesheet" href="/console/{STYLE}">\n' if first else "", False
        return link

    return _SCRIPT.sub(rf"\g<1>{SCRIPT}\g<2>", _SHEET.sub(once, page)), "\n".join(sources[name] for name in named)


def _join(name: str, sources: Mapping[str, str], above: tuple[str, ...], done: dict[str, str], parts: list[str]) -> str:
    """The variable that holds what the module exports."""
    if name in above:
        raise CannotJoin(f"{name} imports itself: {' > '.join([*above, name])}")
    if name in done:
        return done[name]
    source = sources.get(name)
    if source is None:
        raise CannotJoin(f"{above[-1] if above else 'the page'} asks for {name}, which is not there")

    def imported(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), found[2]))
        return f"const {{{found[1].replace(' as ', ': ')}}} = {_join(target, sources, (*above, name), done, parts)};"

    exports: list[str] = _EXPORT.findall(source)
    body = _EXPORT.sub("", _IMPORT.sub(imported, source))
    if other := _OTHER.search(body):
        raise CannotJoin(f"{name} has a line that is not understood: {other[0].strip()[:100]}")
    done[name] = f"module{len(done)}"
    parts.append(f"// {name}\nconst {done[name]} = (() => {{\n{body}\nreturn {{ {', '.join(exports)} }};\n}})();\n")
    return done[name]

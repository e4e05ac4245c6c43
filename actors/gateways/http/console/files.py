"""Files of the console's pages: read once from one folder, with modules and style sheets joined.

Only these files are served, and the pages load nothing from other hosts. All modules are joined
into one script and all style sheets into one sheet, so that a browser requests two files and not
fifty. The page is changed to request these two. The single modules are served too, for people who
read them.

A module becomes a function that is called once, in the order of the imports, and returns its
exports. So a module sees only what it imports. Only the forms that the console's sources use are
supported, each on a separate line:

    import { a, b as c } from "./other.js";
    export function f, export async function f, export class C, export const c

Two other ways were rejected: a bundler, which needs a build step and a package of another language,
and modules joined without functions, because two modules may each have a `row`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from .....transport.settings import CHANNEL, SYNC_MODES, TOPIC
from ..web.responses import api_error

FIRST: Final = "main.js"
SETTINGS: Final = "base/settings.js"  # this module is generated from the table of settings
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


def settings_module() -> str:
    """Return the module with the settings of channels and topics for the pages."""
    columns = (
        "name",
        "kind",
        "label",
        "hint",
        "none_label",
        "no_bound",
        "fixed",
        "choices",
        "default",
    )
    tables = {"CHANNEL": CHANNEL, "TOPIC": TOPIC}
    constants: dict[str, object] = {
        name: [{column: getattr(row, column) for column in columns} for row in rows]
        for name, rows in tables.items()
    }
    constants["SYNC_MODES"] = SYNC_MODES
    lines = [f"export const {name} = {json.dumps(value)};\n" for name, value in constants.items()]
    return "// Made from transport/settings.py.\n" + "".join(lines)


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

    def imported(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), found[2]))
        return (
            f"const {{{found[1].replace(' as ', ': ')}}} = "
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


log = logging.getLogger("zsq")

FILES_MAX: Final = 500
BYTES_MAX: Final = 16 * 1024 * 1024
INDEX: Final = "index.html"
KINDS: Final = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".json": "application/json", ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}  # fmt: skip
_PACKED: Final = frozenset({".html", ".js", ".css", ".svg", ".json", ".webmanifest"})
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src "
    "'self'; connect-src 'self';"
    " manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # browsers ask each time, and get 304 if it is unchanged
}


class _File(NamedTuple):
    body: bytes
    packed: bytes  # the compressed bytes, or b"" if they are not fewer
    kind: str
    etag: str


class ConsoleFiles:
    def __init__(self, folder: str) -> None:
        self._files: dict[str, _File] = {}
        root = Path(folder)
        size = 0
        for path in sorted(root.rglob("*")) if folder else []:
            if path.suffix not in KINDS or not path.is_file():
                continue
            body = path.read_bytes()
            size += len(body)
            if len(self._files) >= FILES_MAX or size > BYTES_MAX:
                text = (
                    "the console's folder %s has more than %d files or %d bytes; the other "
                    "files are not served"
                )
                log.error(text, folder, FILES_MAX, BYTES_MAX)
                break
            self._add(path.relative_to(root).as_posix(), body)
        if FIRST in self._files and INDEX in self._files:
            self._add(SETTINGS, settings_module().encode())
            self._join()

    def _add(self, name: str, body: bytes) -> None:
        suffix = name[name.rindex(".") :]
        packed = gzip.compress(body, 9, mtime=0) if suffix in _PACKED else b""
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        self._files[name] = _File(
            body, packed if len(packed) < len(body) else b"", KINDS[suffix], etag
        )

    def _join(self) -> None:
        try:
            text = {
                name: self.read(name).decode()
                for name in self._files
                if name.endswith((".js", ".css", INDEX))
            }
            page, sheet = join_sheets(text[INDEX], text)
            script = join_modules(text)
        except ValueError as error:  # raised also if a file is not UTF-8
            log.warning(
                (
                    "the console's files cannot be joined and are served one by one, which is "
                    "slower: %s"
                ),
                error,
            )
            return
        for name, made in ((INDEX, page), (SCRIPT, script), (STYLE, sheet)):
            self._add(name, made.encode())

    def __bool__(self) -> bool:
        return INDEX in self._files

    def read(self, name: str) -> bytes:
        """Return the file that is served by that name."""
        return self._files[name].body

    async def index(self, request: Request) -> Response:
        return self._answer(request, INDEX)

    async def named(self, request: Request) -> Response:
        return self._answer(request, request.path_params["name"])

    def _answer(self, request: Request, name: str) -> Response:
        found = self._files.get(name)
        if found is None:
            raise api_error("NOT_FOUND")
        headers = {**HEADERS, "etag": found.etag, "vary": "accept-encoding"}
        if found.etag in [
            tag.strip().removeprefix("W/")
            for tag in request.headers.get("if-none-match", "").split(",")
        ]:
            return Response(b"", 304, headers)
        body = found.body
        if found.packed and "gzip" in [
            one.partition(";")[0].strip()
            for one in request.headers.get("accept-encoding", "").split(",")
        ]:
            body, headers["content-encoding"] = found.packed, "gzip"
        return Response(body, 200, headers, media_type=found.kind)

"""Files of the console's pages, read once from one folder.

Only these files are served, and the pages load nothing from other hosts. The page requests one
script and one style sheet (`bundle.py`), so that a browser loads two files and not sixty. The
single modules are served too, for people who read them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from .....transport.settings import CHANNEL, SYNC_MODES, TOPIC
from ..web.responses import api_error
from .bundle import FIRST, SCRIPT, STYLE, join_modules, join_sheets

log = logging.getLogger("zsq")

SETTINGS: Final = "base/settings.js"  # this module is generated from the table of settings
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
    values: dict[str, object] = {
        name: [{column: getattr(row, column) for column in columns} for row in rows]
        for name, rows in tables.items()
    }
    values["SYNC_MODES"] = SYNC_MODES
    lines = [f"export const {name} = {json.dumps(value)};\n" for name, value in values.items()]
    return "// Made from transport/settings.py.\n" + "".join(lines)


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
        for name, content in ((INDEX, page), (SCRIPT, script), (STYLE, sheet)):
            self._add(name, content.encode())

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
        file = self._files.get(name)
        if file is None:
            raise api_error("NOT_FOUND")
        headers = {**HEADERS, "etag": file.etag, "vary": "accept-encoding"}
        if file.etag in [
            tag.strip().removeprefix("W/")
            for tag in request.headers.get("if-none-match", "").split(",")
        ]:
            return Response(b"", 304, headers)
        body = file.body
        if file.packed and "gzip" in [
            coding.partition(";")[0].strip()
            for coding in request.headers.get("accept-encoding", "").split(",")
        ]:
            body, headers["content-encoding"] = file.packed, "gzip"
        return Response(body, 200, headers, media_type=file.kind)

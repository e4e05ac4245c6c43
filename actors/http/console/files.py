"""The console's pages: the files of one folder, read once. Nothing else can be asked for, and nothing of them comes from elsewhere.

The page is changed to ask for the joined script and sheet (joining.py); the modules can be asked for too, for who reads them.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
from pathlib import Path
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ..errors import api_error
from .joining import FIRST, SCRIPT, STYLE, join_modules, join_sheets

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
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self';"
    " manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # asked for each time, and answered 304 while it is the same
}


class _File(NamedTuple):
    body: bytes
    packed: bytes  # b"": not worth it
    kind: str
    etag: str


class Files:
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
                log.error("the console's folder %s has more than %d files or %d bytes: the rest is left out", folder, FILES_MAX, BYTES_MAX)
                break
            self._add(path.relative_to(root).as_posix(), body)
        if FIRST in self._files and INDEX in self._files:
            self._join()

    def _add(self, name: str, body: bytes) -> None:
        suffix = name[name.rindex(".") :]
        packed = gzip.compress(body, 9, mtime=0) if suffix in _PACKED else b""
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        self._files[name] = _File(body, packed if len(packed) < len(body) else b"", KINDS[suffix], etag)

    def _join(self) -> None:
        try:
            text = {name: self.read(name).decode() for name in self._files if name.endswith((".js", ".css", INDEX))}
            page, sheet = join_sheets(text[INDEX], text)
            script = join_modules(text)
        except ValueError as error:  # also what is not UTF-8
            log.warning("the console's files are served one by one, which is slower: %s", error)
            return
        for name, made in ((INDEX, page), (SCRIPT, script), (STYLE, sheet)):
            self._add(name, made.encode())

    def __bool__(self) -> bool:
        return INDEX in self._files

    def read(self, name: str) -> bytes:
        """What is served by that name."""
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
        if found.etag in [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]:
            return Response(b"", 304, headers)
        body = found.body
        if found.packed and "gzip" in [one.partition(";")[0].strip() for one in request.headers.get("accept-encoding", "").split(",")]:
            body, headers["content-encoding"] = found.packed, "gzip"
        return Response(body, 200, headers, media_type=found.kind)

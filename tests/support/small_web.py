"""A small web server for tests. It records its requests, and answers with any bytes that the test
chooses.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit


class Question(NamedTuple):
    method: str
    path: str
    parameters: dict[str, str]  # from the query string or the form
    headers: dict[str, str]


def said(body: bytes | Any, status: str = "200 OK", headers: str = "") -> bytes:
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


class SmallWeb:
    """A web server in a thread. `answer` is called for each request. If it returns None, no answer
    is sent. `asked` lists the requests so far.
    """

    def __init__(
        self, answer: Callable[[Question], bytes | None], context: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self.asked: list[Question] = []
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._talk(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Also if it is cancelled before it begins.
        task.add_done_callback(lambda _: writer.close())

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = await self._question(reader)
            self.asked.append(question)
            answer = self.answer(question)
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        except (OSError, EOFError):
            pass

    async def _question(self, reader: asyncio.StreamReader) -> Question:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        url = urlsplit(target)
        form = (
            await reader.readexactly(int(headers.get("content-length", 0)))
        ).decode() or url.query
        found = parse_qs(
            form, keep_blank_values=True, strict_parsing=bool(form), errors="surrogateescape"
        )
        return Question(
            method, url.path, {name: values[0] for name, values in found.items()}, headers
        )

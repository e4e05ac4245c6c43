"""A fake nsqlookupd for tests: its TCP protocol V1 and the answers of its HTTP API, as nsqlookupd
1.3 gives them, and ways to make it fail.

`answer(line)` may return other bytes than nsqlookupd would (with their length), b"" to send no
answer, or None for the usual answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, Self

from .small_web import Question, SmallWeb, said

NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")


class Fatal(Exception):
    """An error that nsqlookupd sends before it closes the connection. All errors of nsqlookupd
    close the connection.
    """


class FakeLookupd:
    """`registered` has the registrations of each connection. `lines` has every line that was
    received, in order.
    """

    def __init__(self, answer: Callable[[str], bytes | None] = lambda _: None) -> None:
        self.answer = answer
        self.broadcast_address = "127.0.0.1"
        self.port = 0
        self.connections = 0
        self.lines: list[str] = []
        self.changed = asyncio.Condition()
        self.nodes: dict[asyncio.StreamWriter, dict[str, Any]] = {}
        self.registered: dict[asyncio.StreamWriter, set[tuple[str, str]]] = {}
        # nsqlookupd also keeps names whose last producer has disconnected.
        self.names: set[tuple[str, str]] = set()
        self.web = SmallWeb(self._web)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.web.__aenter__()
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self.web.__aexit__()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the listener and all connections. `start` brings it back at the same port."""
        if self._server is not None:
            self._server.close()
        await self.cut()
        if self._server is not None:
            await self._server.wait_closed()

    async def cut(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def here(self) -> set[tuple[str, str]]:
        """Return the topics and channels that are registered now."""
        return {one for some in self.registered.values() for one in some}

    async def until(self, true: Callable[[], bool]) -> None:
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(true), 20)

    # TCP

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._talk(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if await reader.readexactly(4) != b"  V1":
                self._send(writer, b"E_BAD_PROTOCOL")
                return
            while line := (await reader.readuntil(b"\n")).decode().strip():
                answer = await self._execute(line, reader, writer)
                other = self.answer(line)
                self._send(writer, answer if other is None else other)
                await self._tell(line)
        except Fatal as error:
            self._send(writer, str(error).encode())
            await writer.drain()
        except (EOFError, OSError):
            pass
        finally:
            self.nodes.pop(writer, None)
            self.registered.pop(writer, None)
            writer.close()
            await self._tell("")

    def _send(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        if answer:
            writer.write(len(answer).to_bytes(4, "big") + answer)

    async def _tell(self, line: str) -> None:
        async with self.changed:
            if line:
                self.lines.append(line)
            self.changed.notify_all()

    async def _execute(
        self, line: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes:
        command, *parameters = line.split(" ")
        if command == "PING":
            return b"OK"
        if command == "IDENTIFY":
            if writer in self.nodes:
                raise Fatal("E_INVALID cannot IDENTIFY again")
            size = int.from_bytes(await reader.readexactly(4), "big")
            return self._identify(await reader.readexactly(size), writer)
        if command not in {"REGISTER", "UNREGISTER"}:
            raise Fatal(f"E_INVALID invalid command {command}")
        if writer not in self.nodes:
            raise Fatal("E_INVALID client must IDENTIFY")
        if not parameters:
            raise Fatal(f"E_INVALID {command} insufficient number of params")
        topic, channel = parameters[0], parameters[1] if len(parameters) > 1 else ""
        self._check(command, "topic", topic)
        if channel:
            self._check(command, "channel", channel)
        if command == "REGISTER":
            self.registered[writer] |= {(topic, channel), (topic, "")}
            self.names |= {(topic, channel), (topic, "")}
        elif channel:
            self.registered[writer].discard((topic, channel))
        else:
            self.registered[writer] = {one for one in self.registered[writer] if one[0] != topic}
        return b"OK"

    def _check(self, command: str, what: str, name: str) -> None:
        if len(name) > 64 or not NAME.fullmatch(name):
            raise Fatal(f"E_BAD_{what.upper()} {command} {what} name '{name}' is not valid")

    def _identify(self, body: bytes, writer: asyncio.StreamWriter) -> bytes:
        try:
            node = json.loads(body)
        except ValueError:
            raise Fatal("E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        if not all(
            node.get(name) for name in ("broadcast_address", "tcp_port", "http_port", "version")
        ):
            raise Fatal("E_BAD_BODY IDENTIFY missing fields")
        self.nodes[writer] = node
        self.registered[writer] = set()
        me = {
            "broadcast_address": self.broadcast_address,
            "hostname": "lookup",
            "http_port": self.web.port,
        }
        return json.dumps({**me, "tcp_port": self.port, "version": "1.3.0"}).encode()

    # HTTP

    def _web(self, question: Question) -> bytes:
        topic = question.parameters.get("topic", "")
        channels = sorted(channel for name, channel in self.names if name == topic and channel)
        nodes = [
            self.nodes[writer] for writer, some in self.registered.items() if (topic, "") in some
        ]
        if question.path == "/topics":
            return said({"topics": sorted({name for name, _ in self.names})})
        if question.path not in {"/channels", "/lookup"}:
            return said({"message": "NOT_FOUND"}, "404 Not Found")
        if not topic:
            return said({"message": "MISSING_ARG_TOPIC"}, "400 Bad Request")
        if question.path == "/channels":
            return said({"channels": channels})
        if (topic, "") not in self.names:
            return said({"message": "TOPIC_NOT_FOUND"}, "404 Not Found")
        return said({"channels": channels, "producers": nodes})

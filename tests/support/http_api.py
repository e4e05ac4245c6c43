"""Helpers for tests of the HTTP application: a fake broker for it, and ways to call the application
without a network or on a local port.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import httpx
import uvloop

from zsq.actors.gateways.http.app import Guard, make_app
from zsq.actors.gateways.http.gateway import open_listeners
from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.actors.gateways.http.web.origins import Origins
from zsq.actors.gateways.http.web.places import Limiters
from zsq.actors.gateways.http.web.server import HttpServer
from zsq.actors.gateways.http.web.tls_door import Certificates
from zsq.actors.settings.options import HttpOptions, NsqOptions
from zsq.transport.errors import E_NOT_FOUND, NotFound
from zsq.transport.nsq.lookup import Node

NODE = Node("10.0.0.1", "host", 4150, 4151, "1.3.0")
CHANNEL = {
    "depth": 0, "backend_depth": 0, "in_flight_count": 0, "deferred_count": 0, "message_count": 0, "requeue_count": 0, "timeout_count": 0,
    "client_count": 0, "clients": [], "paused": False, "health": "OK", "e2e_processing_latency": {"count": 0, "percentiles": []},
}  # fmt: skip
TOPIC = {
    "depth": 0, "message_count": 0, "message_bytes": 0, "paused": False, "health": "OK", "delayed_count": 0,
    "e2e_processing_latency": {"count": 0, "percentiles": []},
}  # fmt: skip


class FakeBroker:
    """A fake broker that keeps topics and channels in memory. It is also the fake of the publisher.
    `fails` is the error that its next call raises.
    """

    def __init__(self) -> None:
        self.there: dict[str, set[str]] = {}
        self.paused: set[tuple[str, str]] = set()
        self.published: list[tuple[str, list[bytes], int]] = []
        self.calls: list[str] = []
        self.health: dict[str, str] = {}
        self.fails: BaseException | None = None
        self.asked = asyncio.Event()
        # If set, statistics and publishes wait for this event.
        self.hold: asyncio.Event | None = None

    def _called(self, name: str) -> None:
        self.calls.append(name)
        error, self.fails = self.fails, None
        if error is not None:
            raise error

    def _check(self, topic: str, channel: str | None = None) -> None:
        if topic not in self.there:
            raise NotFound(E_NOT_FOUND, f"topic {topic!r} does not exist")
        if channel is not None and channel not in self.there[topic]:
            raise NotFound(E_NOT_FOUND, f"channel {channel!r} of topic {topic!r} does not exist")

    async def publish(
        self, topic: str, bodies: Sequence[bytes], defer_ms: int, ids: Sequence[bytes] = ()
    ) -> None:
        if self.hold is not None:
            await self.hold.wait()
        self._called("publish")
        assert bodies
        self.there.setdefault(topic, set())
        self.published.append((topic, list(bodies), defer_ms))

    async def create_topic(self, name: str) -> dict[str, Any]:
        self._called("create_topic")
        self.there.setdefault(name, set())
        return {}

    async def create_channel(self, topic: str, channel: str) -> dict[str, Any]:
        self._called("create_channel")
        self.there.setdefault(topic, set()).add(channel)
        return {}

    async def delete_topic(self, name: str, force: bool = False) -> dict[str, Any]:
        self._called(f"delete_topic force={force}")
        self._check(name)
        del self.there[name]
        return {}

    async def delete_channel(self, topic: str, channel: str, force: bool = False) -> dict[str, Any]:
        self._called(f"delete_channel force={force}")
        self._check(topic, channel)
        self.there[topic].remove(channel)
        return {}

    async def pause(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        self._called("pause")
        self._check(topic, channel)
        self.paused.add((topic, channel or ""))
        return {}

    async def unpause(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        self._called("unpause")
        self._check(topic, channel)
        self.paused.discard((topic, channel or ""))
        return {}

    async def empty(self, topic: str, channel: str | None = None) -> dict[str, Any]:
        self._called("empty")
        self._check(topic, channel)
        return {}

    async def topics(self) -> dict[str, tuple[str, ...]]:
        self._called("topics")
        return {name: tuple(channels) for name, channels in self.there.items()}

    async def stats(
        self, topic: str | None = None, channel: str | None = None, *, partial: bool = False
    ) -> Any:
        # Copy the state at the time of the request.
        found = [self._row(name) for name in sorted(self.there) if topic in (None, name)]
        self.asked.set()
        if self.hold is not None:
            await self.hold.wait()
        self._called("stats")
        if topic is not None:
            self._check(topic)
        return {
            "version": "1.0.0",
            "uuid": "u",
            "start_time": 1_700_000_000,
            "health": "OK",
            "alarms": [],
            "topics": found,
            "processes": [{"kind": "topic", "private_bytes": 7_000_000, "restarts": 1}],
        }

    def _row(self, name: str) -> dict[str, Any]:
        channels = [
            {**CHANNEL, "channel_name": channel, "paused": (name, channel) in self.paused}
            for channel in sorted(self.there[name])
        ]
        own = {
            "topic_name": name,
            "paused": (name, "") in self.paused,
            "health": self.health.get(name, "OK"),
        }
        own["write_trouble"] = self.health.get(name, "")
        return {**TOPIC, **own, "channels": channels}


class Site:
    """An application over a fake broker. It is called in one event loop, without a network."""

    def __init__(
        self,
        limits: HttpLimits | None = None,
        nsq: NsqOptions | None = None,
        node: Node = NODE,
        limiters: Limiters | None = None,
        **options: Any,
    ) -> None:
        self.broker = FakeBroker()
        self.limiters = limiters or Limiters(limits or HttpLimits())
        self.app: Guard = make_app(
            cast("Any", self.broker),
            cast("Any", self.broker),
            node,
            options=HttpOptions(nsq=nsq),
            limiters=self.limiters,
            **options,
        )
        self.runner = asyncio.Runner()
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://localhost"
        )

    def call(self, method: str, target: str, content: Any = b"", **more: Any) -> httpx.Response:
        return self.runner.run(self.acall(method, target, content, **more))

    async def acall(
        self, method: str, target: str, content: Any = b"", **more: Any
    ) -> httpx.Response:
        return await self._client.request(method, target, content=content, **more)

    def get(self, target: str, **more: Any) -> httpx.Response:
        return self.call("GET", target, **more)

    def post(self, target: str, content: Any = b"", **more: Any) -> httpx.Response:
        return self.call("POST", target, content, **more)

    def close(self) -> None:
        self.runner.run(self._client.aclose())
        self.runner.close()


class Served:
    """The same application behind its server, on a port of the loopback interface, in a thread."""

    def __init__(self, limits: HttpLimits, certificates: Certificates | None = None) -> None:
        self.broker: FakeBroker
        self._context = certificates.context if certificates is not None else None
        self.server: HttpServer
        self.port = 0
        self.loop = uvloop.new_event_loop()
        self._over = asyncio.Event()
        self._ready = threading.Event()
        self.limiters = Limiters(limits)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._main())
        self.loop.close()

    async def _main(self) -> None:
        self.broker = FakeBroker()
        self.app = make_app(
            cast("Any", self.broker),
            cast("Any", self.broker),
            NODE,
            limiters=self.limiters,
            origins=Origins(["a", "x"]),
        )
        self.server = HttpServer(self.app, self.limiters.limits)
        [sock] = open_listeners("127.0.0.1:0")
        self.port = sock.getsockname()[1]
        await self.server.listen(sock, self._context)
        self._ready.set()
        await self._over.wait()
        await self.server.close(1.0)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(10)

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def hold(self) -> Callable[[], None]:
        """Block all answers of the broker, and return a function that releases them."""
        held = self.broker.hold = asyncio.Event()

        def release() -> None:
            self.loop.call_soon_threadsafe(held.set)

        return release

    def dial(self, timeout_s: float = 10.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout_s)


@contextmanager
def served(
    limits: HttpLimits | None = None, certificates: Certificates | None = None
) -> Iterator[Served]:
    one = Served(limits or HttpLimits(), certificates)
    one.start()
    try:
        yield one
    finally:
        one.close()


def all_of(sock: socket.socket) -> bytes:
    """Return all bytes until the other side closes or resets the connection."""
    found = b""
    try:
        while chunk := sock.recv(65_536):
            found += chunk
    except ConnectionError:
        pass
    return found


__all__ = ["NODE", "FakeBroker", "Served", "Site", "all_of", "served"]

"""Registration of this node's topics and channels at nsqlookupd.

Clients of NSQ and nsqadmin find this node there. `Registrar` keeps a connection to each nsqlookupd
and reconnects when it ends. The pauses grow to 15 s, which is nsqd's pause. A new connection
registers everything again. Nothing is kept for an nsqlookupd that cannot be reached.

`Discovery` registers the names and creates a new topic's channels that exist on other nodes. A
channel of NSQ gets the messages that come after its creation. So these channels are created before
the topic's first message is accepted. Otherwise a consumer that is about to connect here would miss
messages.

This order holds for publishes of NSQ's TCP clients. A topic that was created in another way (HTTP,
ZSQ clients, commands) is seen some milliseconds later. Its channels are then created to start at
its first message, which has the same effect.

The supervisor reports each change of names (`look`), so nsqlookupd has it within milliseconds.
Clients ask nsqlookupd once a minute. If nsqlookupd does not have a topic at that time, they do not
find the topic for a minute. If no report comes, the gateway requests the names once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, TypedDict, cast

from ....transport.errors import E_BAD_ARGUMENT, E_EXISTS, UsageError, ZsqError
from ....transport.names import part_of
from ....transport.nsq.lookup import (
    LookupFailed,
    LookupSession,
    Node,
    Registration,
    by_topic,
    is_name,
    parse_channels,
    registrations,
)
from ....transport.resolver import first_connection
from ...runtime.listening import join_place
from ..acting_clients import ActingAdmin
from ..shared.http_client import NotAnswered, Way, ask, parse_url

log = logging.getLogger("zsq")

CONNECT_S: Final = 2.0
PAUSE_S: Final = 0.5  # the first pause before a new attempt to connect
PAUSE_S_MAX: Final = 15.0
STEADY_S: Final = 30.0  # after a connection that lasted this long, pauses are short again
# All nsqlookupds have this time to send a topic's channels. A publish waits for them.
CHANNELS_S: Final = 5.0
ASKED_MAX: Final = 16  # the most requests for channels at the same time
REFUSED_MAX: Final = 1000  # the most refused registrations that are kept for each nsqlookupd


class Registrar:
    """The connections of this node to all nsqlookupds, in one event loop.

    `addresses` are HOST:PORT of nsqlookupd's TCP protocol.
    """

    def __init__(self, addresses: Sequence[str], node: Node, *, pause_s: float = PAUSE_S) -> None:
        self._node = node
        self._pause_s = pause_s
        self._wanted: frozenset[Registration] = frozenset()
        self._lookupds = self._new_lookupds(addresses)
        self._slots = asyncio.Semaphore(ASKED_MAX)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def _new_lookupds(self, addresses: Sequence[str]) -> dict[str, _Lookupd]:
        return {address: _Lookupd(address, self._node, self._pause_s) for address in addresses}

    def start(self) -> None:
        for address, lookupd in self._lookupds.items():
            if address not in self._tasks:
                self._tasks[address] = asyncio.get_running_loop().create_task(lookupd.run())

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Register at these nsqlookupds only. Connections to those that stay go on.

        Raises `UsageError` if an address is invalid, and changes nothing then.
        """
        before, self._lookupds = (
            self._lookupds,
            self._new_lookupds(addresses)
            | {one: lookupd for one, lookupd in self._lookupds.items() if one in addresses},
        )
        for address in before.keys() - self._lookupds.keys():
            self._tasks.pop(address).cancel()
        for address in self._lookupds.keys() - before.keys():
            self._lookupds[address].want(self._wanted)
        self.start()

    def update(self, topics: Mapping[str, Collection[str]]) -> None:
        """Set all topics and channels of this node; only changes are sent.

        A topic with parts is a topic of each node that has a part.

        Names that are invalid in NSQ are not registered.
        """
        self._wanted = registrations(topics)
        for lookupd in self._lookupds.values():
            lookupd.want(self._wanted)

    async def channels_of(self, topic: str) -> list[str]:
        """Return the channels that the topic has on other nodes.

        Directly after the start, this waits for the first connections. (nsqd does not wait, and
        creates topics without channels at that time.) This never fails: an nsqlookupd that does not
        answer within CHANNELS_S is logged and ignored, as in nsqd.
        """
        if not is_name(topic) or not self._tasks:
            return []
        asking = [
            asyncio.ensure_future(self._ask(lookupd, topic)) for lookupd in self._lookupds.values()
        ]
        done, late = await asyncio.wait(asking, timeout=CHANNELS_S)
        for task in late:
            task.cancel()
        if late:
            text = (
                "topic %s may start without some channels: %d nsqlookupd did not send its "
                "channels within %g s"
            )
            log.warning(text, topic, len(late), CHANNELS_S)
        return sorted({name for task in done for name in task.result()})

    async def close(self) -> None:
        """Close the connections, which ends the registrations."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def statistics(self) -> list[LookupdReport]:
        return [lookupd.statistics() for lookupd in self._lookupds.values()]

    async def _ask(self, lookupd: _Lookupd, topic: str) -> list[str]:
        async with self._slots:
            try:
                return await lookupd.channels_of(topic)
            except (NotAnswered, LookupFailed) as error:
                text = (
                    "topic %s may start without some channels: nsqlookupd %s did not send its "
                    "channels: %s"
                )
                log.warning(text, topic, lookupd.address, error)
                return []


class LookupdReport(TypedDict):
    """The state of one nsqlookupd in the statistics."""

    address: str
    connected: bool
    settled: bool
    registered: int
    refused: int
    tries: int
    trouble: str


class _Lookupd:
    """The client of one nsqlookupd, which connects again whenever the connection ends."""

    def __init__(self, address: str, node: Node, pause_s: float) -> None:
        host, _, port = address.rpartition(":")
        try:
            url = parse_url(f"http://{address}")
            if not host or not port.isdecimal() or url.path != "/" or address.endswith("/"):
                raise UsageError(E_BAD_ARGUMENT, "")
        except UsageError:
            raise UsageError(
                E_BAD_ARGUMENT, f"lookupd-tcp-address must be HOST:PORT, not {address[:200]!r}"
            ) from None
        self.address = address
        self._host, self._port = url.host, url.port
        self._node = node
        self._pause_s = pause_s
        self._wanted: frozenset[Registration] = frozenset()
        self._refused: set[Registration] = set()
        self._line: _LookupConnection | None = None
        self._trouble = ""
        self._tries = 0
        self._tried = asyncio.Event()  # set after the first attempt to connect

    def want(self, wanted: frozenset[Registration]) -> None:
        if wanted == self._wanted:
            return
        self._refused &= wanted  # a refused name that is removed and added again is sent again
        self._wanted = wanted
        if self._line is not None:
            self._line.want(wanted - self._refused)

    async def run(self) -> None:
        pause = self._pause_s
        while True:
            began = time.monotonic()
            self._tries += 1
            try:
                await self._connection()
            except (LookupFailed, OSError, TimeoutError) as error:
                self._note(str(error) or f"no connection within {CONNECT_S:g} s")
            if time.monotonic() - began > STEADY_S:
                pause = self._pause_s
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(pause * 2, PAUSE_S_MAX)

    async def channels_of(self, topic: str) -> list[str]:
        """Return the channels of a topic that this nsqlookupd knows.

        As nsqd does, it first asks at the address that the nsqlookupd announced. If that fails, it
        asks at the configured host. Raises `LookupFailed` or `NotAnswered`.
        """
        await self._tried.wait()
        if self._line is None:
            raise LookupFailed("it is not connected")
        session = self._line.session
        if not session.peer_port:
            raise LookupFailed("it did not announce its HTTP port")
        failure = NotAnswered("it has no valid HTTP address")
        for host in dict.fromkeys((session.peer_host, self._host)):
            try:
                url = parse_url(f"http://{join_place(host, session.peer_port)}/channels")._replace(
                    port=session.peer_port
                )
                return parse_channels(await ask(url, {"topic": topic}, _WAY))
            except UsageError:
                continue  # the announced address is invalid
            except NotAnswered as error:
                failure = error
        raise failure

    def statistics(self) -> LookupdReport:
        session = self._line.session if self._line is not None else None
        return {
            "address": self.address,
            "connected": session is not None and session.identified,
            "settled": session is not None and session.settled,
            "registered": session.registered if session is not None else 0,
            "refused": len(self._refused),
            "tries": self._tries,
            "trouble": self._trouble,
        }

    async def _connection(self) -> None:
        loop = asyncio.get_running_loop()
        line = _LookupConnection(loop, self._node)
        try:
            async with asyncio.timeout(CONNECT_S):
                await first_connection(
                    self._host,
                    CONNECT_S,
                    lambda address: loop.create_connection(lambda: line, address, self._port),
                )
            self._line = line
            line.want(self._wanted - self._refused)
            await line.identified
            if self._trouble:
                log.info("nsqlookupd %s is connected again", self.address)
            self._trouble = ""
            self._tried.set()
            await line.over
        finally:
            self._tried.set()
            self._line = None
            line.close()
            refused = line.session.refused
            if refused is not None and len(self._refused) < REFUSED_MAX:
                self._refused.add(refused)

    def _note(self, trouble: str) -> None:
        if not self._trouble:
            log.warning("nsqlookupd %s: %s; trying again", self.address, trouble)
        self._trouble = trouble


_WAY: Final = Way(connect_s=CONNECT_S, request_s=CHANNELS_S)


class _LookupConnection(asyncio.Protocol):
    """A connection to nsqlookupd. It gives `LookupSession` its bytes and the time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, node: Node) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.session = LookupSession(node, time.monotonic_ns())
        self.identified: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Uvloop's transports are not subclasses of asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        self._after()

    def data_received(self, data: bytes) -> None:
        try:
            self.session.receive(data, time.monotonic_ns())
        except LookupFailed as error:
            self._end(error)
        else:
            self._after()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc if isinstance(exc, OSError) else LookupFailed("it closed the connection"))

    def want(self, wanted: frozenset[Registration]) -> None:
        self.session.want(wanted, time.monotonic_ns())
        self._after()

    def close(self) -> None:
        self._end(LookupFailed("closed"))
        for future in (self.identified, self.over):
            if future.done() and not future.cancelled():
                future.exception()  # mark it as retrieved, else asyncio logs it

    def _after(self) -> None:
        if self.over.done() or self._transport is None:
            return
        try:
            due_ns = self.session.on_time(time.monotonic_ns())
        except LookupFailed as error:
            self._end(error)
            return
        out = self.session.take_out()
        if out:
            self._transport.write(out)
        if self.session.identified and not self.identified.done():
            self.identified.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(
            max(0.0, (due_ns - time.monotonic_ns()) / 1e9), self._after
        )

    def _end(self, error: Exception) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for future in (self.identified, self.over):
            if not future.done():
                future.set_exception(error)
        if self._transport is not None:
            self._transport.abort() if isinstance(error, LookupFailed) else self._transport.close()


LOOK_S: Final = 1.0
# The pause between two requests for all names is this time plus four times the duration of the last
# request, so that many new topics cost at most a fifth of a core.
LOOK_PAUSE_S: Final = 0.002


class Discovery:
    def __init__(self, admin: ActingAdmin, registrar: Registrar, *, look_s: float = LOOK_S) -> None:
        self._admin = admin
        self._look_s = look_s
        self.registrar = registrar
        self._known: set[str] = set()
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        registrar.start()
        self._start(self._watch())

    def knows(self, topic: str) -> bool:
        return topic in self._known

    def look(self) -> None:
        """Register changed topics and channels at once."""
        self._changed.set()

    def prepare(self, topic: str, then: Callable[[], None]) -> None:
        """Create a topic with its channels from other nodes, then call `then`.

        `then` is called even if that failed. Publishing then reports the reason.
        """
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append(then)
            return
        self._waiting[topic] = [then]
        self._start(self._prepare(topic))

    async def _prepare(self, topic: str) -> None:
        try:
            # nsqlookupd accepts no names of parts, and parts are created with their topic.
            if part_of(topic) is None and topic not in await self._admin.topics():
                channels = await self.registrar.channels_of(topic)
                await self._admin.create_topic(topic)
                for channel in channels:
                    await self._admin.create_channel(topic, channel)
            self._known.add(topic)
        except ZsqError as error:
            if error.code == E_EXISTS:  # it has parts, perhaps none at this broker
                self._known.add(topic)
                return
            log.warning(
                "cannot create topic %s with its channels from nsqlookupd: %s", topic, error
            )
        finally:
            for then in self._waiting.pop(topic):
                then()

    async def _follow(self, topic: str, known: Collection[str]) -> None:
        """Create the channels of a new topic that was not prepared."""
        for channel in await self.registrar.channels_of(topic):
            if channel in known:
                continue
            if topic not in self._known:
                return  # the topic was deleted during the request and must not be created again
            try:
                await self._admin.create_channel(topic, channel, start="earliest")
            except ZsqError as error:
                log.warning(
                    "cannot create channel %s/%s, which nsqlookupd knows from another node: %s",
                    topic,
                    channel,
                    error,
                )

    async def _watch(self) -> None:
        began = False
        while True:
            self._changed.clear()
            begun = time.monotonic()
            try:
                topics = await self._admin.topics()
            except ZsqError as error:
                log.debug("cannot list the topics: %s", error)
            else:
                for topic in (set(topics) - self._known - set(self._waiting)) if began else ():
                    self._start(self._follow(topic, topics[topic]))
                shown = by_topic(topics)
                self._known, began = topics.keys() | shown.keys(), True
                self.registrar.update(shown)
            await asyncio.sleep(min(self._look_s, LOOK_PAUSE_S + 4 * (time.monotonic() - begun)))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._look_s)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self.registrar.close()
        await self._admin.close()

    def statistics(self) -> list[LookupdReport]:
        return self.registrar.statistics()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

"""What the driver asks about topics: how far they reach, what lies where. One connection a topic, kept while the query runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from ...transport.client import Admin, Measured, Reader
from ...transport.credentials import KeyFile
from ...transport.errors import E_NOT_FOUND, NotFound, Refused, ZsqError
from .offsets import Place

__all__ = ["LOGGER", "Channel", "Extent", "Logs", "TopicLogs"]

LOGGER: Final = logging.getLogger("zsq.spark")
CHANNEL_TIMEOUT_S: Final = 10.0  # a channel that cannot be moved on is no reason to hold the query up
TRIES: Final = 5


class Extent(NamedTuple):
    """A topic as it is now: oldest offset kept, next offset to come, and which making of it this is."""

    start: int
    head: int
    uuid: str


class Logs(Protocol):
    """What planning needs to know of topics; `NotFound` says what to do about a topic that is not there."""

    def extent(self, topic: str) -> Extent: ...

    def offset_at(self, topic: str, time_ms: int) -> int: ...

    def measure(self, topic: str, start: int, stop: int, bytes_max: int = ...) -> Measured: ...


class TopicLogs:
    """`Logs` of a broker. The source never makes a topic: a misspelt name would be an empty stream."""

    def __init__(self, url: str, timeout_s: float, key_file: KeyFile = None) -> None:
        self._url = url
        self._key_file = key_file
        self._timeout_s = timeout_s
        self._readers: dict[str, Reader] = {}

    def _reader(self, topic: str) -> Reader:
        if topic not in self._readers:
            self._readers[topic] = Reader(self._url, topic, timeout=self._timeout_s, patient=True, key_file=self._key_file)
        return self._readers[topic]

    def extent(self, topic: str) -> Extent:
        reader = self._reader(topic)
        try:
            # Between two questions a topic may be deleted and made again: then the uuids around the extent differ.
            for _ in range(TRIES):
                uuid = reader.uuid()
                start, head = reader.head()
                if reader.uuid() == uuid:
                    return Extent(start, head, uuid)
            raise Refused(E_NOT_FOUND, f"topic {topic} is being deleted and made again all the time")
        except NotFound as error:
            text = (
                f"there is no topic {topic} at {self._url}: check its name and the option 'url', or make it first"
                f" (`zsq topic create {topic}`); the source makes no topics ({error.text})"
            )
            raise NotFound(E_NOT_FOUND, text) from None

    def offset_at(self, topic: str, time_ms: int) -> int:
        return self._reader(topic).offset_at(time_ms * 1_000_000)

    def measure(self, topic: str, start: int, stop: int, bytes_max: int = (1 << 63) - 1) -> Measured:
        return self._reader(topic).measure(start, stop, bytes_max)

    def close(self) -> None:
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            with contextlib.suppress(ZsqError, OSError):
                reader.close()


class Channel:
    """The channel that follows a query, so that its backlog shows. It only follows: where the query goes on is in Spark's checkpoint. So
    nothing here fails the query. To move it on clears what it holds, so it must be the query's own."""

    def __init__(self, url: str, name: str, key_file: KeyFile = None) -> None:
        self._name = name
        self._admin = Admin(url, timeout=CHANNEL_TIMEOUT_S, key_file=key_file)
        self._ready: set[str] = set()

    def begin(self, place: Place, logs: Logs, *, new: bool) -> None:
        """Make the channel where there is none yet, at this place; done once for each topic. `new`: so is the query."""
        for topic in sorted(place.offsets.keys() - self._ready):
            try:
                # Making a channel makes its topic too, so look first. One that was made again has no such offset.
                if logs.extent(topic).uuid != place.uuids[topic]:
                    continue
                if self._admin.create_channel(topic, self._name).get("existed"):
                    self._check(topic, new)
                else:
                    self._admin.seek(topic, self._name, place.offsets[topic])
                self._ready.add(topic)
            except ZsqError as error:
                LOGGER.warning("channel %s/%s could not be made, the query goes on without it for now: %s", topic, self._name, error)

    def _check(self, topic: str, new: bool) -> None:
        """It was there already: warn unless it looks like this query's own."""
        found = [channel for one in self._admin.stats(topic, self._name)["topics"] for channel in one["channels"]]
        consumers = sum(channel.get("client_count", 0) for channel in found)
        if new or consumers:
            text = "channel %s/%s %s. The query's commits move it on and clear what waits in it: give the query a channel of its own"
            LOGGER.warning(text, topic, self._name, f"has {consumers} consumers" if consumers else "was there before this query began")

    def advance(self, offsets: Mapping[str, int]) -> None:
        """Spark is done with what is below these offsets."""
        for topic in sorted(offsets.keys() & self._ready):
            try:
                self._admin.seek(topic, self._name, offsets[topic], forward=True)
            except ZsqError as error:
                if isinstance(error, NotFound):
                    self._ready.discard(topic)
                LOGGER.warning("channel %s/%s stays behind, the next batch takes it on: %s", topic, self._name, error)

    def close(self) -> None:
        with contextlib.suppress(ZsqError, OSError):
            self._admin.close()

"""Logs: what a query asks about its topics: which logs there are, and their offsets.

A *log* is a topic without parts, or one part: it has a name and offsets. The driver keeps one
connection for each log while the query runs. It asks for the log's extent, for the offset at a
time, and for the size of ranges.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from ...transport.client.blocking.client import Admin, Archive, Measured, Reader
from ...transport.errors import (
    E_BAD_ARGUMENT,
    E_FORBIDDEN,
    E_NOT_FOUND,
    E_UNSUPPORTED,
    BrokerUnreachable,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from ...transport.names import base_of, part_name
from ...transport.units import NS_PER_MS
from ...transport.wire.credentials import KeyFile
from ...transport.wire.spread import HasParts
from .pattern import matching

__all__ = ["LOGGER", "TOPICS_MAX", "Extent", "Logs", "TopicLogs", "warn_of"]

PARTS_ASKED_S: Final = 10.0  # how long the answer which parts a topic has is used
TOPICS_ASKED_S: Final = 10.0  # how long the answer which topics match a pattern is used
TOPICS_MAX: Final = 1_000  # topics that a pattern may match: each has a connection on the driver

LOGGER: Final = logging.getLogger("zsq.spark")
TRIES: Final = 5


def warn_of(names: Iterable[str]) -> None:
    """Warn of options that have no effect."""
    for name in names:
        LOGGER.warning("option %r is not an option of zsq, and has no effect", name)


class Extent(NamedTuple):
    """A topic's present extent: the oldest offset kept, the next offset, and the uuid."""

    start: int
    head: int
    uuid: str


class Logs(Protocol):
    """The requests about topics that planning needs.

    `NotFound` says what to do about a missing topic. `names` returns the topic, or its parts.
    `matching` returns the topics that a pattern matches. `ended` returns at which offset a deleted
    topic ended, if that is known.
    """

    def matching(self, pattern: str) -> list[str]: ...

    def ended(self, topic: str) -> int | None: ...

    def names(self, topic: str) -> list[str]: ...

    def extent(self, topic: str) -> Extent: ...

    def offset_at(self, topic: str, time_ms: int) -> int: ...

    def measure(self, topic: str, start: int, stop: int, max_bytes: int = ...) -> Measured: ...


class TopicLogs:
    """`Logs` of a broker.

    It never creates a topic. Otherwise a query with a misspelt name would read an empty stream.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        key_file: KeyFile = None,
        transport: str | None = None,
    ) -> None:
        self._url = url
        self._transport = transport
        self._key_file = key_file
        self._timeout_s = timeout_s
        self._readers: dict[str, Reader] = {}
        # The logs of each topic, and when they are asked for again.
        self._names: dict[str, tuple[list[str], float]] = {}
        self._admin: Admin | None = None
        # The topics that a pattern matched, and when they are asked for again.
        self._matched: tuple[str, list[str], float] | None = None

    def matching(self, pattern: str) -> list[str]:
        """Return the topics that the pattern matches and that this client may see, sorted.

        A topic with parts occurs once. If the broker does not answer now, the last answer is used:
        a topic that does not exist any more is noticed by the requests to the topic itself.

        Raises `UsageError` (E_BAD_ARGUMENT) if there are more than TOPICS_MAX.
        """
        known = self._matched
        if known is not None and known[0] == pattern and time.monotonic() < known[2]:
            return known[1]
        try:
            topics = matching(pattern, self._all())
        except (Refused, BrokerUnreachable) as error:
            if known is None or known[0] != pattern or error.code == E_FORBIDDEN:
                raise
            LOGGER.warning("the topics could not be listed; the last list is used: %s", error)
            topics = known[1]
        if len(topics) > TOPICS_MAX:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"option 'subscribePattern' is {pattern[:80]!r}, which matches {len(topics)} "
                f"topics of {self._url}; a query reads at most {TOPICS_MAX}: use several queries",
            )
        self._matched = pattern, topics, time.monotonic() + TOPICS_ASKED_S
        return topics

    def _all(self) -> list[str]:
        """Return the names of all topics that this client may see.

        Both requests are answered by the supervisor from its memory. The list of topics has the
        parts of this broker only, so the topics with parts come from the cluster's directory.
        """
        admin = self._asker()
        names = {base_of(name) for name in admin.topics()}
        try:
            names.update(row["topic"] for row in admin.cluster()["topics"])
        except UsageError as error:
            if error.code != E_UNSUPPORTED:  # the broker belongs to no cluster
                raise
        return sorted(names)

    def ended(self, topic: str) -> int | None:
        """Return the offset at which a topic ended that was deleted, or None if it is not known.

        Of a part that was removed, each broker of the cluster knows it. A part of a topic that was
        deleted may have been at any broker.
        """
        try:
            return self._asker().ended(topic)
        except NotFound:
            return None
        except UsageError as error:
            if error.code != E_UNSUPPORTED:  # the broker for tests, which is in memory
                raise
            return None

    def _asker(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(
                self._url,
                timeout=self._timeout_s,
                key_file=self._key_file,
                transport=self._transport,
            )
        return self._admin

    def names(self, topic: str) -> list[str]:
        """Return the logs of a topic: the topic itself, or all of its parts by number."""
        known, until_s = self._names.get(topic, ([], 0.0))
        if time.monotonic() < until_s:
            return known
        known = [topic]
        try:
            self.extent(topic)
        except HasParts as error:
            known = [part_name(topic, number) for number, _ in sorted(error.spread.parts)]
        self._names[topic] = known, time.monotonic() + PARTS_ASKED_S
        return known

    def _reader(self, topic: str) -> Reader:
        if topic not in self._readers:
            self._readers[topic] = Reader(
                topic,
                url=self._url,
                timeout=self._timeout_s,
                patient=True,
                key_file=self._key_file,
                transport=self._transport,
            )
        return self._readers[topic]

    def extent(self, topic: str) -> Extent:
        reader = self._reader(topic)
        try:
            # A topic may be recreated between two requests. Then the uuids before and after the
            # extent differ.
            for _ in range(TRIES):
                uuid = reader.uuid()
                start, head = reader.bounds()
                if reader.uuid() == uuid:
                    return Extent(start, head, uuid)
            raise Refused(
                E_NOT_FOUND,
                (
                    f"topic {topic} is deleted and created again repeatedly; try again when that "
                    "has stopped"
                ),
            )
        except NotFound as error:
            text = (
                f"topic {topic} does not exist at {self._url}: check its name and option 'url', "
                "or create it first"
                f" (`zsq topic create {topic}`); the source does not create topics ({error.text})"
            )
            # With a pattern, topics come and go. A connection to one that is gone is closed.
            self._close(self._readers.pop(topic))
            self._names.pop(base_of(topic), None)
            raise NotFound(E_NOT_FOUND, text) from None

    def offset_at(self, topic: str, time_ms: int) -> int:
        return self._reader(topic).offset_at(time_ms * NS_PER_MS)

    def measure(
        self, topic: str, start: int, stop: int, max_bytes: int = (1 << 63) - 1
    ) -> Measured:
        return self._reader(topic).measure(start, stop, max_bytes=max_bytes)

    def archive(self, topic: str) -> Archive | None:
        return self._reader(topic).archive()

    def close(self) -> None:
        readers, self._readers = self._readers, {}
        admin, self._admin = self._admin, None
        for reader in readers.values():
            self._close(reader)
        if admin is not None:
            self._close(admin)

    def _close(self, client: Admin | Reader) -> None:
        with contextlib.suppress(ZsqError, OSError):
            client.close()

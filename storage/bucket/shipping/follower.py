"""Follower: a standby's copy of a broker. It applies each tick as soon as it is in the bucket.

    FOLDER/TOPIC-UUID/      the directory of a topic, which is made as in `restore.py`

At its start it restores what the log of ticks has, but keeps the stores of rows open. Then it reads
one tick after the other. So a takeover has only little to do: what is put right after the last
piece, and the ordinary recovery. The time does not depend on how much history there is.

A follower that was away for long may find that ticks which it needs were removed (`LogMoved`). Then
it begins again in an empty folder. The same happens after any other surprise: `begin` reads the
log with all checks of a restore.

Takeovers by others are ticks like all others. But a takeover may be a late request that found its
name free, because the tick there was removed. So after each takeover the follower reads the
boundary. If it is above, the follower has to begin again.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ....transport.checksum import crc32c
from ...directory.store import TopicIdentity
from ...documents import loads
from ...errors import Damaged, ForeignDirectory
from ...files import Files
from ...foreign import uuid_of
from ..bucket import Bucket, BucketRefuses, ObjectMissing
from .restore import TOPICS_AT_ONCE, RestoredTopic, Target, TopicRestore
from .ship_log import newest_boundary
from .tick_format import TAKEOVER, DecodedIndex, after, decode_index, log_object
from .tick_reader import ChainCheck, LogMoved, ShippedTopic, TickReader

UNKNOWN: Final = "?"  # the name of a topic until the takeover
AHEAD: Final = 4  # ticks that are read at once while the follower is behind


def uuids_of(registry: bytes) -> frozenset[str]:
    """Return the uuids of the topics in a registry. Raises `Damaged`."""
    try:
        return frozenset(uuid_of(row["uuid"]) for row in loads(registry)["topics"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"the registry of topics cannot be read: {error!r}") from error


class Follower:
    """A copy of a broker in a folder. All calls block. `number` is the next tick to read."""

    def __init__(self, files: Files, bucket: Bucket, folder: str) -> None:
        self._files = files
        self._bucket = bucket
        self._folder = folder
        self._topics: dict[str, TopicRestore] = {}
        self._check: ChainCheck | None = None
        self.last: DecodedIndex | None = None
        """The last tick that was applied, or None before `begin`."""
        self.number = 0
        self.registry = b""
        """The newest registry of topics, b"" if there is none yet."""
        self.applied_bytes = 0
        self._readers: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[bytes]] = deque()  # from `_number_ahead` on
        self._number_ahead = -1
        self._in_row = 0  # ticks that were there when they were asked for, one after the other
        self.recent: dict[int, DecodedIndex] = {}
        """The last ticks that were applied, by their numbers, back to one with all tails."""

    def begin(self) -> None:
        """Apply the log as it is now, in an empty folder.

        What an earlier call has applied stays if the bucket has no log: it may be the last copy.
        Raises `BucketError`, or `LogMoved` to begin again.
        """
        reader = TickReader(self._bucket, self._count)
        try:
            reader.read()
            self.close()
            if self._files.exists(self._folder):
                self._files.remove_tree(self._folder)
            self._files.make_folder(self._folder)
            self.last = reader.last
            if reader.last.index.registry_number >= 0:
                self.registry = reader.registry()
            # The first ticks of a deleted topic may be removed, while later ones still name it.
            live = uuids_of(self.registry) if self.registry else frozenset(reader.topics)
            for uuid, problems in reader.wrong.items():
                if uuid in live:
                    raise BucketRefuses(f"{self._bucket.url}: topic {uuid}: {problems[0]}")
            for uuid, shipped in reader.topics.items():
                if uuid in live:
                    self._add(uuid, shipped)
            for loaded in reader.pieces(list(self._topics)) if self._topics else ():
                self._topics[loaded.piece.uuid].take(loaded.number, loaded.piece, loaded.body)
            for topic in self._topics.values():
                if topic.shipped.begins >= 0:
                    topic.settle()
        finally:
            reader.close()
        self._check = ChainCheck(self._bucket, reader.boundary)
        self._check.go_on(reader.last)
        self.number = reader.chain.number
        self.recent = {}

    def _count(self, size: int) -> None:
        self.applied_bytes += size

    def _add(self, uuid: str, shipped: ShippedTopic) -> None:
        target = Target(TopicIdentity(UNKNOWN, uuid), f"{self._folder}/{uuid}")
        topic = TopicRestore(
            self._files, self._bucket, shipped, target, eager=False, check=False,
            advance=self._count,
        )  # fmt: skip
        topic.begin()
        self._topics[uuid] = topic

    def step(self) -> bool:
        """Apply the next tick. Return False if there is none yet.

        Raises `BucketError`. After any error except `BucketAway`, `begin` must be called.
        """
        assert self._check is not None
        name = log_object(self.number)
        try:
            data = self._next()
        except ObjectMissing:
            return False
        try:
            decoded = decode_index(data)
        except (Damaged, ForeignDirectory) as error:
            raise BucketRefuses(f"{self._bucket.url}/{name}: {error}") from error
        self._check.take(decoded, self.number)
        if decoded.index.kind == TAKEOVER and newest_boundary(self._bucket).number > self.number:
            raise LogMoved(f"{self._bucket.url}/{name} was removed before: begin again")
        self._apply(decoded, memoryview(data))
        if decoded.index.tails is not None:
            self.recent = {}
        self.recent[self.number] = decoded
        self.last, self.number = decoded, after(decoded.index)
        self.applied_bytes += len(data)
        return True

    def _next(self) -> bytes:
        """Return the next tick. While there are more, read the ones after it in threads.

        Raises `ObjectMissing` if there is none yet.
        """
        if self._number_ahead != self.number:  # the last tick was a takeover, or all was new
            self._forget_ahead()
            self._number_ahead = self.number
        waiting = self._ahead
        if not waiting:
            waiting.append(self._read(self.number))
        if self._in_row > 1:
            while len(waiting) < AHEAD:
                waiting.append(self._read(self.number + len(waiting)))
        try:
            data = waiting.popleft().result()
        except BaseException:
            # What was read behind it may be older than what is there when it is asked again.
            self._forget_ahead()
            self._in_row = 0
            raise
        self._number_ahead += 1
        self._in_row += 1
        return data

    def _read(self, number: int) -> Future[bytes]:
        if self._readers is None:
            self._readers = ThreadPoolExecutor(AHEAD, thread_name_prefix="zsq-follow")
        return self._readers.submit(self._bucket.read, log_object(number))

    def _forget_ahead(self) -> None:
        for one in self._ahead:
            one.cancel()
        self._ahead.clear()
        self._number_ahead = -1

    def look(self) -> bool:
        """Return True if the tick that is read next can still be the next one.

        If old ticks were removed up to it, it never comes, and `begin` must be called.
        """
        return newest_boundary(self._bucket).number <= self.number

    def _apply(self, decoded: DecodedIndex, data: memoryview) -> None:
        index = decoded.index
        name = f"{self._bucket.url}/{log_object(index.number)}"
        for uuid, tail in (index.tails or {}).items():
            if uuid in self._topics:
                shipped = self._topics[uuid].shipped
                shipped.reserved = max(shipped.reserved, tail.reserved)
        for piece in index.pieces:
            start = decoded.body + piece.position
            body = data[start : start + piece.size]
            if len(body) != piece.size or crc32c(body) != piece.crc:
                raise BucketRefuses(f"{name}: the piece of topic {piece.uuid} is damaged")
            topic = self._topics.get(piece.uuid)
            if topic is None:
                self._add(piece.uuid, ShippedTopic(piece.uuid))
                topic = self._topics[piece.uuid]
            is_settled = topic.shipped.begins >= 0
            if wrong := topic.shipped.take(piece, index.number):
                raise BucketRefuses(f"{name}: {wrong}")
            if is_settled:
                topic.follow(index.number, piece, body)
                continue
            topic.take(index.number, piece, body)
            if piece.begins:
                topic.settle()
        if index.registry:
            position, size, crc = index.registry
            registry = bytes(data[decoded.body + position : decoded.body + position + size])
            if len(registry) != size or crc32c(registry) != crc:
                raise BucketRefuses(f"{name}: its registry of topics is damaged")
            self.registry = registry

    def keep_only(self, uuids: frozenset[str]) -> None:
        """Remove all other topics, because they were deleted."""
        for uuid in self._topics.keys() - uuids:
            self._topics.pop(uuid).close()
            with contextlib.suppress(FileNotFoundError):
                self._files.remove_tree(f"{self._folder}/{uuid}")

    def shipped(self) -> Mapping[str, ShippedTopic]:
        """Return what the log has of each topic."""
        return {uuid: topic.shipped for uuid, topic in self._topics.items()}

    def finish(self, identities: Mapping[str, TopicIdentity]) -> list[RestoredTopic]:
        """Make the directories of these topics, by uuid, ready for a broker.

        After this, only `close` and `begin` may be called. A topic with problems is incomplete.
        """
        topics = []
        for uuid, identity in identities.items():
            self._topics[uuid].name(identity)
            topics.append(self._topics[uuid])
        with ThreadPoolExecutor(TOPICS_AT_ONCE, thread_name_prefix="zsq-restore") as threads:
            return list(threads.map(TopicRestore.finish, topics))

    def close(self) -> None:
        """Close all stores."""
        self._forget_ahead()
        self._in_row = 0
        if self._readers is not None:
            self._readers.shutdown(wait=False, cancel_futures=True)
            self._readers = None
        for topic in self._topics.values():
            topic.close()
        self._topics = {}
        self.last, self.registry = None, b""

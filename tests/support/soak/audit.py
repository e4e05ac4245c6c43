"""Audit of the soak (see `run.py`): it reads the logs and the dead letters before retention removes
them, and tells the ledger what they contain.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

from support.soak.ledger import Channel, Ledger, Topic

import zsq
from zsq.transport.wire.codec import unpack_headers

READ_S: Final = 120.0


class Audit:
    """Has one reader for each topic. `dying` has the channels that have dead letters."""

    def __init__(
        self, ledger: Ledger, url: str, topics: Sequence[Topic], dying: Sequence[Channel]
    ) -> None:
        self.ledger = ledger
        self.topics = topics
        self._dying = {channel.name: channel for channel in dying}
        self._dead_read_to = dict.fromkeys(self._dying, 0)
        self._url = url
        self._lock = threading.Lock()  # needed because the operator's thread reads too

    def head(self, topic: Topic) -> tuple[int, int]:
        """Return the oldest offset that the log still has, and the next offset to be given out."""
        with zsq.Reader(topic.name, url=self._url, timeout=READ_S, patient=True) as reader:
            return reader.bounds()

    def all(self) -> None:
        """Read everything that is new. Then compare the messages that retention has removed."""
        for topic in self.topics:
            start, _ = self.head(topic)
            self.read(topic)
            for channel in self._dying.values():
                if channel.topic is topic:
                    self._read_dead(channel)
            self.ledger.removed(topic, start)

    def read(self, topic: Topic) -> None:
        """Read from the position at which the last call stopped to the present end."""
        with (
            self._lock,
            zsq.Reader(topic.name, url=self._url, timeout=READ_S, patient=True) as reader,
        ):
            deadline = time.monotonic() + READ_S
            _, head = reader.bounds()
            while topic.read_to < head and time.monotonic() < deadline:
                try:
                    found = reader.read(topic.read_to)
                except zsq.Refused:
                    continue
                for block in found.blocks:
                    for index, body in enumerate(block.body.values()):
                        if (offset := block.first_offset + index) >= topic.read_to:
                            self.ledger.logged(topic, offset, body or b"")
            if topic.read_to < head:
                self.ledger.complain(
                    f"{topic.name}: the log could be read to {topic.read_to} of {head} within "
                    f"{READ_S:g} s"
                )

    def _read_dead(self, channel: Channel) -> None:
        try:
            with (
                self._lock,
                zsq.Reader(
                    f"{channel.topic.name}.{channel.name}.dead",
                    url=self._url,
                    timeout=READ_S,
                    patient=True,
                ) as reader,
            ):
                head = reader.bounds()[1]
                while (at := self._dead_read_to[channel.name]) < head:
                    for block in reader.read(at).blocks:
                        assert block.headers is not None
                        for index, (body, packed) in enumerate(
                            zip(block.body.values(), block.headers.values(), strict=True)
                        ):
                            if block.first_offset + index >= self._dead_read_to[channel.name]:
                                headers = unpack_headers(packed)
                                where, at_ns = headers["zsq-dead-offset"], headers["zsq-dead-time"]
                                assert isinstance(where, int)
                                assert isinstance(at_ns, int)
                                self.ledger.dead(channel, where, body or b"", at_ns)
                        self._dead_read_to[channel.name] = max(
                            self._dead_read_to[channel.name], block.next_offset
                        )
        except zsq.NotFound:
            return  # the channel has no dead letters yet

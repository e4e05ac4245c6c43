"""A topic for tests without a Spark session of their own: it has methods to publish messages and to
read what is stored.
"""

from __future__ import annotations

from typing import Any

from support.broker import Broker

import zsq


class Topic:
    """A topic by name, on a broker. It need not exist yet."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.url = broker.ipc

    @property
    def options(self) -> dict[str, str]:
        """Return the options with which Spark reads from this topic or writes to it."""
        return {"url": self.url, "topic": self.name, "timeout": "60"}

    def create(self) -> Topic:
        with zsq.Admin(self.url) as admin:
            admin.create_topic(self.name)
        return self

    def delete(self) -> None:
        with zsq.Admin(self.url) as admin:
            admin.delete_topic(self.name, force=True)

    def put(self, *bodies: bytes, **more: Any) -> None:
        with zsq.Producer(self.url) as producer:
            producer.publish_many(self.name, list(bodies), **more)

    def head(self) -> int:
        with zsq.Reader(self.name, url=self.url) as reader:
            return reader.bounds()[1]

    def bodies(self) -> list[bytes]:
        """Return all bodies in the log, in order."""
        found: list[bytes] = []
        with zsq.Reader(self.name, url=self.url) as reader:
            offset, head = reader.bounds()
            while offset < head:
                got = reader.read(offset)
                for block in got.blocks:
                    found += block.body.values()  # type: ignore[arg-type]
                offset = got.next_offset
        return found

    def channel(self, name: str) -> dict[str, Any]:
        """Return the statistics of a channel."""
        with zsq.Admin(self.url) as admin:
            [topic] = admin.stats(self.name, name)["topics"]
        [found] = topic["channels"]
        return dict(found)

    def made(self) -> bool:
        """Return True if the topic exists."""
        try:
            self.head()
        except zsq.NotFound:
            return False
        return True

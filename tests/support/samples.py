"""Samples of the figures of a topic that a broker reports while something happens to it."""

from __future__ import annotations

import threading
from typing import Self

import zsq

from .broker import Broker

Figures = tuple[int, int, int]


class Samples:
    """All different figures of a topic's only channel during a `with` block.

    `found` has the depth of the channel, the number of messages that it received, and the head of
    the topic, as `stats` and the overview tell them.
    """

    def __init__(self, broker: Broker, topic: str) -> None:
        self.found: set[Figures] = set()
        self.count = 0
        self._url, self._topic = broker.ipc, topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with zsq.Admin(self._url, timeout=30) as admin:
            while not self._stopping.is_set():
                (row,) = admin.stats(self._topic)["topics"]
                (channel,) = row["channels"]
                self.found.add((channel["depth"], channel["message_count"], row["head"]))
                view = admin.overview()
                cells, channels = view["topics"][self._topic]
                (found,) = channels.values()
                by_name = dict(zip(view["channel_fields"], found, strict=True))
                head = dict(zip(view["topic_fields"], cells, strict=True))["head"]
                self.found.add((by_name["depth"], by_name["came"], head))
                self.count += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

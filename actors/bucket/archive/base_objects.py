"""Base objects: the rows of topics that are so many that they are objects of their own.

A topic writes all its rows to a file, which is uploaded here. A piece names the object. An object
may be removed when no tick that counts needs it (`log_collector.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ....storage.bucket.bucket import Bucket
from ....storage.bucket.shipping.tick_format import Tail, state_object
from ....storage.errors import StorageError
from ....storage.files import Files
from ....transport.checksum import crc32c
from ....transport.errors import E_BUCKET
from ....transport.wire import protocol as p
from ...runtime.port import Envelope
from ...runtime.worker_thread import WorkerThread

Send = Callable[[Envelope, p.Wire], object]


class BaseObjects:
    """The objects with rows that this process has uploaded, or was told of."""

    def __init__(
        self, files: Files, bucket: Bucket, threads: Sequence[WorkerThread], send: Send
    ) -> None:
        self._files = files
        self._bucket = bucket
        self._threads = threads
        self._send = send
        # Those that may be in no tick yet, and those that are in a tick by now.
        self._fresh: set[str] = set()
        self._used: set[str] = set()
        self._heard: set[str] = set()  # topics that have shipped a piece to this process

    def upload(self, envelope: Envelope, message: p.ShipBase) -> None:
        thread = min(self._threads, key=lambda thread: thread.pending)
        thread.submit(
            partial(self._uploaded, envelope, message.request), partial(self._upload, message)
        )

    def _upload(self, message: p.ShipBase) -> str:
        """Upload the file, in a thread. Its name contains the checksum, so it may be repeated."""
        crc = 0
        fd = self._files.open_read(message.path)
        try:
            position = 0
            while data := self._files.pread(fd, 1 << 20, position):
                crc = crc32c(data, crc)
                position += len(data)
        finally:
            self._files.close(fd)
        name = state_object(message.uuid, message.stream, crc)
        self._fresh.add(name)  # before it exists, because the collector runs in another thread
        self._bucket.upload(name, message.path)
        return name

    def _uploaded(self, envelope: Envelope, request: int, result: Any) -> None:
        if isinstance(result, (StorageError, OSError)):
            self._send(envelope, p.Failed(request, E_BUCKET, str(result)))
        elif isinstance(result, Exception):
            raise result
        else:
            self._send(envelope, p.Done(request, {"base": result}))

    def named(self, name: str) -> None:
        """Note that a piece names an object, or "" for none."""
        if name:
            self._fresh.add(name)

    def shipped(self, uuid: str, name: str) -> None:
        """Note that a piece of this topic is in a tick. It names an object, or "" for none."""
        self._heard.add(uuid)
        self._used.add(name)

    def forget(self, uuid: str) -> None:
        """Forget a topic that was deleted."""
        self._heard.discard(uuid)

    def needed(self, tails: Mapping[str, Tail]) -> dict[str, str]:
        """Return the objects that topics need, by topic. Other objects of these may be removed.

        A topic that this process has not heard of may still name an object that it gave to the
        process before.
        """
        self._fresh -= self._used
        self._used.clear()
        return {uuid: tail.base for uuid, tail in tails.items() if uuid in self._heard}

    def is_fresh(self, name: str) -> bool:
        """Return True if an object may be in no tick yet. Any thread may call this."""
        return name in self._fresh

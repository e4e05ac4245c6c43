"""Channel of `--bucket` that has finished a part of its messages when the broker is lost."""

from __future__ import annotations

import threading
import time
from typing import Final

from zsq.transport.client.blocking.client import Consumer
from zsq.transport.errors import ZsqError

from . import work
from .flights import Tally

FIRST_PART: Final = 100_000
POLL_S: Final = 0.2
END_WAIT_S: Final = 3.0


class Auditor(threading.Thread):
    """Consumes a part of the rows, stops, and consumes the rest after `resume`.

    The broker has confirmed that the first part is finished when `paused_at` is set. If the
    restored broker forgot a finish, or lost a message, the tally shows it.
    """

    def __init__(self, url: str, bodies: list[bytes]) -> None:
        super().__init__(name="audit", daemon=True)
        self.finished_first = 0
        self.paused_at = 0.0
        self.came = 0
        self.tally = Tally(bodies)
        self.error: ZsqError | None = None
        self._url = url
        self._rows = len(bodies)
        self._resumed = threading.Event()
        self._over = threading.Event()

    def run(self) -> None:
        try:
            self._consume(FIRST_PART)
            self.finished_first = self.came
            self.paused_at = time.monotonic()
            self._resumed.wait()
            self._consume(self._rows)
        except ZsqError as error:
            self.error = error

    def _consume(self, until: int) -> None:
        """Consume until so many messages have come in all. Closing the consumer flushes it."""
        with Consumer(work.TOPIC, work.AUDIT, url=self._url, label="audit") as consumer:
            while self.came < until and not self._over.is_set():
                if (batch := consumer.receive_batch(timeout=POLL_S)) is not None:
                    self.tally.add(batch.bodies)
                    self.came += len(batch.bodies)
                    batch.finish()

    def resume(self) -> None:
        self._resumed.set()

    @property
    def is_done(self) -> bool:
        return self.came >= self._rows

    def stop(self) -> None:
        self._over.set()
        self._resumed.set()
        self.join(END_WAIT_S)

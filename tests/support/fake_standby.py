"""A small fake standby: it listens where a broker would, and answers that it is not the primary."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Final, Self

import zmq
from support.broker import free_port
from support.router import make_router, recv_word

from zsq.transport.errors import E_STANDBY
from zsq.transport.wire import protocol as p
from zsq.transport.wire import sockets

STANDBY_TEXT: Final = "this broker is a standby; the primary is tcp://elsewhere:4153"
QUIET: Final = (p.Beat, p.Bye)


class FakeStandby:
    """Answer every message with a Failed, in a thread.

    `asked` counts the messages, and `news` is notified when one arrives. With `deaf`, it answers
    nothing.
    """

    def __init__(
        self, code: str = E_STANDBY, text: str = STANDBY_TEXT, *, deaf: bool = False, url: str = ""
    ) -> None:
        self.url = url or f"tcp://127.0.0.1:{free_port()}"
        self.code, self.text, self.deaf = code, text, deaf
        self.asked = 0
        self.news = threading.Condition()
        self._wake = os.eventfd(0)
        self._bound = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        router = make_router(self.url)
        self._bound.set()
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        try:
            while self._wake not in dict(poller.poll()):
                while (got := recv_word(router)) is not None:
                    self._answer(router, *got[:2])
        finally:
            router.close(linger=0)

    def _answer(self, router: sockets.Socket, envelope: list[bytes], message: p.Wire) -> None:
        if not self.deaf and not isinstance(message, QUIET):
            request = getattr(message, "request", 0)
            sockets.send_word(router, envelope, p.Failed(request, self.code, self.text))
        with self.news:
            self.asked += 1
            self.news.notify_all()

    def wait_asked(self, count: int, timeout_s: float = 20.0) -> None:
        """Wait until this many messages have arrived."""
        with self.news:
            met = self.news.wait_for(lambda: self.asked >= count, timeout_s)
        assert met, f"{self.asked} messages, not {count}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._bound.wait(40)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.eventfd_write(self._wake, 1)
        self._thread.join(10)
        os.close(self._wake)

"""Archive link: a topic's requests to the archive actor, each with the callback for its answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from ....transport.wire import protocol as p
from ...runtime.port import Mail, Port

Answer = p.Done | p.Failed
Then = Callable[[Answer], object]


class ArchiveLink:
    """The link of one topic to the archive actor. It is opened by the first request."""

    def __init__(self, open_link: Callable[[], Port]) -> None:
        self._open_link = open_link
        self._requests = 0
        self._out: dict[int, Then] = {}
        self._handlers: dict[type[p.Wire], Callable[[Any], object]] = {}

    @cached_property
    def _link(self) -> Port:
        port = self._open_link()
        port.route(p.Done, self._answered)
        port.route(p.Failed, self._answered)
        for kind, handler in self._handlers.items():
            port.route(kind, partial(self._handed, handler))
        return port

    @staticmethod
    def _handed(handler: Callable[[Any], object], port: Port, mail: Mail, message: p.Wire) -> None:
        handler(message)

    def handle(self, kind: type[p.Wire], handler: Callable[[Any], object]) -> None:
        """Call `handler` with the messages of this class that the archive actor sends by itself.

        This must be called before the first request.
        """
        self._handlers[kind] = handler

    def ask(self, make: Callable[[int], p.Wire], then: Then) -> int:
        """Send the message that `make` returns for the number of this request. Return it."""
        self._requests += 1
        self._out[self._requests] = then
        self._link.send((), make(self._requests))
        return self._requests

    def drop(self, request: int) -> None:
        """Ignore the answer to a request."""
        self._out.pop(request, None)

    def gone(self) -> None:
        """Forget all requests, because the archive actor died."""
        self._out.clear()

    def _answered(self, port: Port, mail: Mail, message: Answer) -> None:
        then = self._out.pop(message.request, None)
        if then is not None:  # None: it was asked again meanwhile
            then(message)

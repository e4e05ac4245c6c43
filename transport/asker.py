"""A blocking client that asks one target: a request and its answer at a time for each thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from .address import Address, Target, parse
from .block import Block
from .credentials import KeyFile
from .drive import Drive, inherit, ours, remember
from .errors import E_CLOSING, Refused
from .producer import check_times
from .protocol import Wire
from .requester import Request, RequestEngine


class Asker:
    """Asks one target, a request at a time for each thread. Fork-safe like the other clients.

    `patient`: a topic that failed and is started again, or a limit, is waited out until the time-out; else it is refused at once.
    """

    def __init__(self, url: str | None, target: Target, timeout: float, *, patient: bool = False, key_file: KeyFile = None) -> None:
        check_times(timeout, None)
        self._address: Address = parse(url, key_file)
        self._target = target
        self._timeout = timeout
        self._patient = patient
        self._closed = False
        self._made: Drive[RequestEngine] | None = None
        remember(self)

    def _ask(self, make: Callable[[int], Wire], *, repeatable: bool) -> tuple[Any, list[Block]]:
        return self._await(self._begin(make, repeatable=repeatable))

    def _begin(self, make: Callable[[int], Wire], *, repeatable: bool) -> Request:
        """Send a request; `_await` takes its answer."""
        if self._closed:
            raise Refused(E_CLOSING, "this client is closed; make a new one")
        drive = self._made
        if drive is None or drive.pid != os.getpid():
            drive = ours(lambda: self._made, self._make)
        with drive.lock:
            engine = drive.engine
            number = engine.number()
            return engine.ask(number, make(number), repeatable=repeatable)

    def _await(self, request: Request) -> tuple[Any, list[Block]]:
        """The answer and its blocks, or what went wrong. The time-out counts from now."""
        drive = self._made
        if drive is None or drive.pid != os.getpid():
            raise Refused(E_CLOSING, "this client was closed, or belongs to the process that asked; make a new one")
        with drive.lock:
            engine = drive.engine
            if not drive.wait(lambda: request.done, time.monotonic_ns() + int(self._timeout * 1e9)):
                engine.give_up(request)
                raise engine.too_late(self._timeout)
        if request.error is not None:
            raise request.error
        return request.answer, request.blocks

    def _forget(self, request: Request) -> None:
        """Its answer is of no use any more."""
        drive = self._made
        if drive is not None and drive.pid == os.getpid():
            with drive.lock:
                drive.engine.give_up(request)

    def _make(self, inherited: Drive[RequestEngine] | None) -> Drive[RequestEngine]:
        self._made = Drive(RequestEngine(self._address, self._target, patient=self._patient))
        return self._made

    def close(self, timeout: float | None = None) -> None:
        """End; nothing is in progress."""
        self._closed = True
        drive, self._made = self._made, None
        if drive is None:
            return
        if drive.pid != os.getpid():
            inherit(drive)
            return
        with drive.lock:
            drive.stop(linger_ms=200)
        drive.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

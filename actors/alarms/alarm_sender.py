"""Alarm sender: the process that sends alarms to receivers outside the broker.

It is a separate process, so that no other process waits for a receiver.

Each receiver has a thread, which makes one try at a time, and an `Outbox`, which decides what to
try and when. An outbox is a bounded queue with a limited number of tries and growing pauses. It is
pure.

| input | result |
|---|---|
| events | they wait; beyond WAITING_MAX the oldest are given up, and counted |
| `begin` (idle, no pause) | what waits, up to BATCH_MAX, is sent together in one try |
| the try succeeded | the next one may begin at once |
| the try failed | the same again after 1, 2, 4 ... s; after TRIES_MAX tries it is given up, and counted |

Newer events wait while a try is repeated. A receiver that is unreachable for longer misses the
oldest events. The newest ones, which show the current state, stay in the queue. The next message
says how many events were given up.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, TypedDict, cast

from ...transport.reports import AlarmEvent
from ...transport.units import NS_PER_MS, NS_PER_S
from ...transport.wire import protocol as p
from ..runtime.actor import Actor
from ..runtime.port import Mail, Port
from ..runtime.worker_thread import WorkerThread
from .alarm_receivers import AlarmMessage, NotSent, Receiver, receivers
from .extension import AlarmStart

WAITING_MAX: Final = 1_000
BATCH_MAX: Final = 100
TRIES_MAX: Final = 6
# The pause after the first try. It doubles after each further try, so all pauses together take half
# a minute.
PAUSE_S: Final = 1.0


class OutboxFigures(TypedDict):
    """The statistics of an outbox. `trouble` describes the failure of the last try, or is ""."""

    sent_count: int
    waiting: int
    failed_count: int
    trouble: str


class Outbox:
    """The queue and the tries of one receiver. Times are monotonic."""

    def __init__(self) -> None:
        self._waiting: deque[AlarmEvent] = deque()
        self._out: list[AlarmEvent] = []
        self._tries = 0
        self._due_ns = 0
        self._busy = False
        # The number of events given up since the last success. The next message contains it.
        self.missed = 0
        self.sent_count = 0
        self.failed_count = 0
        self.trouble = ""  # why the last try failed, "" if it succeeded

    def add(self, events: Iterable[AlarmEvent]) -> None:
        self._waiting.extend(events)
        while len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()
            self._count_lost(1)

    def begin(self, now_ns: int) -> list[AlarmEvent]:
        """Return the events to send now, or [] for none. After a try with events, call `went`."""
        if self._busy or now_ns < self._due_ns:
            return []
        if not self._out:
            while self._waiting and len(self._out) < BATCH_MAX:
                self._out.append(self._waiting.popleft())
        self._busy = bool(self._out)
        return list(self._out)

    def due_ns(self) -> int:
        """Return when the next try is due, or 0 if none waits for a time."""
        return self._due_ns if self._out and not self._busy else 0

    def went(self, trouble: str, now_ns: int) -> bool:
        """Note the end of a try.

        `trouble` is "" if it succeeded. Return True if its events are given up.
        """
        assert self._busy
        self._busy = False
        self.trouble = trouble
        self._tries += 1
        if not trouble:
            self.sent_count += len(self._out)
            self.missed = 0
        elif self._tries < TRIES_MAX:
            self._due_ns = now_ns + int(PAUSE_S * 2 ** (self._tries - 1) * NS_PER_S)
            return False
        else:
            self._count_lost(len(self._out))
        self._out = []
        self._tries = 0
        self._due_ns = 0
        return bool(trouble)

    def _count_lost(self, count: int) -> None:
        self.missed += count
        self.failed_count += count

    def idle(self) -> bool:
        return not self._busy

    def statistics(self) -> OutboxFigures:
        return {
            "sent_count": self.sent_count,
            "waiting": len(self._waiting) + len(self._out),
            "failed_count": self.failed_count,
            "trouble": self.trouble,
        }


log = logging.getLogger("zsq")
_STOP_NS = 2_000_000_000  # how long a stop waits for the current tries


class _Destination:
    def __init__(self, receiver: Receiver, thread: WorkerThread) -> None:
        self.receiver = receiver
        self.thread = thread
        self.outbox = Outbox()


class AlarmSender(Actor[AlarmStart]):
    """The process that sends alarms. Each receiver has a thread and an outbox."""

    def on_start(self) -> dict[str, Any]:
        for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # The handler does nothing. If the signals were set to be ignored, commands would
            # inherit that.
            signal.signal(ignored, lambda *_: None)
        self._stop_ns = 0
        self.supervisor.route(p.Alarm, self.send)
        self._lines: list[_Destination] = []
        for number, receiver in enumerate(receivers(self.given.alarms)):
            thread = WorkerThread(f"receiver-{number}")
            line = _Destination(receiver, thread)
            self._lines.append(line)
            self.listen_raw(thread, partial(self._sent, line))
        return {}

    def send(self, port: Port, mail: Mail, message: p.Alarm) -> None:
        for line in self._lines:
            line.outbox.add(cast("tuple[AlarmEvent, ...]", message.events))

    def _wait_ms(self) -> int:
        """Wake for the next try, because nothing else may wake this actor for minutes."""
        usual, now = super()._wait_ms(), time.monotonic_ns()
        due = [due_ns for line in self._lines if (due_ns := line.outbox.due_ns())]
        return min([usual, *(max(0, (due_ns - now) // NS_PER_MS + 1) for due_ns in due)])

    def on_turn(self) -> None:
        now = time.monotonic_ns()
        for line in self._lines:
            batch = line.outbox.begin(now)
            if batch:
                line.thread.submit(
                    None, partial(line.receiver.tell, self._message(batch, line.outbox.missed))
                )

    def _message(self, batch: list[AlarmEvent], missed: int) -> AlarmMessage:
        text = "\n".join(event["text"] for event in batch)
        if missed:
            text += f"\n{missed} earlier alarms could not be sent"
        return {"text": text, "events": batch, "missed": missed, "broker": self.given.broker}

    def _sent(self, line: _Destination) -> None:
        for _, value in line.thread.results():
            if isinstance(value, Exception) and not isinstance(value, NotSent):
                log.error("unexpected error of %s: %s", line.receiver.name, value, exc_info=value)
            trouble = f"{type(value).__name__}: {value}" if isinstance(value, Exception) else ""
            before = line.outbox.trouble
            given_up = line.outbox.went(trouble.removeprefix("NotSent: "), time.monotonic_ns())
            if given_up:
                log.error(
                    "alarms were not sent to %s: %s; given up after %d tries",
                    line.receiver.name,
                    line.outbox.trouble,
                    TRIES_MAX,
                )
            elif trouble and not before:
                log.warning(
                    "alarms were not sent to %s: %s; trying again",
                    line.receiver.name,
                    line.outbox.trouble,
                )

    def on_stop(self) -> bool:
        self._stop_ns = self._stop_ns or time.monotonic_ns()
        return self._idle() or time.monotonic_ns() - self._stop_ns > _STOP_NS

    def on_end(self) -> None:
        if self._idle():
            for line in self._lines:
                line.thread.close()
        else:  # a thread still waits for a receiver; the process has nothing else to close
            for line in self._lines:
                line.receiver.end()
            logging.shutdown()
            os._exit(0)

    def _idle(self) -> bool:
        return all(line.outbox.idle() for line in self._lines)

    def statistics(self) -> dict[str, Any]:
        return {
            "receivers": [
                {"name": line.receiver.name, **line.outbox.statistics()} for line in self._lines
            ]
        }

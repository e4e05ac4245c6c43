"""Tells alarms to those outside who want to hear of them: a process of its own, so that nobody else waits for them.

Each receiver has a thread, which tries once when told to, and an outbox (`alarm_outbox.py`), which knows what to try when.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from functools import partial
from typing import Any, cast

from ..transport import protocol as p
from .actor import Actor
from .alarm_options import AlarmOptions
from .alarm_outbox import Outbox
from .alarm_receivers import NotTold, Receiver, receivers
from .port import Mail, Port
from .worker_thread import WorkerThread

log = logging.getLogger("zsq")
_STOP_NS = 2_000_000_000  # what is being told may still end


class _Line:
    def __init__(self, receiver: Receiver, thread: WorkerThread) -> None:
        self.receiver = receiver
        self.thread = thread
        self.outbox = Outbox()


class AlarmTeller(Actor):
    """Settings: alarms (`AlarmOptions`), broker (what receivers are told of it)."""

    def on_start(self) -> dict[str, Any]:
        for ignored in (signal.SIGTERM, signal.SIGINT):  # as before they do nothing; but what is ignored would be so by commands too
            signal.signal(ignored, lambda *_: None)
        given: AlarmOptions = self.settings["alarms"]
        self._stop_ns = 0
        self._lines: dict[Any, _Line] = {}
        for number, receiver in enumerate(receivers(given)):
            thread = WorkerThread(self.context, f"receiver-{number}")
            self._lines[thread.socket] = _Line(receiver, thread)
            self.listen_raw(thread.socket)
        return {}

    def on_alarm_word(self, port: Port, mail: Mail) -> None:
        if port is self.supervisor:
            for line in self._lines.values():
                line.outbox.add(list(cast("p.Alarm", mail.word).events))

    def on_turn(self) -> None:
        now = time.monotonic_ns()
        for line in self._lines.values():
            batch = line.outbox.begin(now)
            if batch:
                line.thread.submit(None, partial(line.receiver.tell, self._message(batch, line.outbox.missed)))

    def _message(self, batch: list[dict[str, Any]], missed: int) -> dict[str, Any]:
        """`text` is what chat services show."""
        text = "\n".join(str(event["text"]) for event in batch)
        if missed:
            text += f"\n{missed} alarms before could not be told"
        return {"text": text, "events": batch, "missed": missed, "broker": self.settings["broker"]}

    def on_raw(self, source: Any) -> None:
        line = self._lines[source]
        for _, value in line.thread.results():
            if isinstance(value, Exception) and not isinstance(value, NotTold):
                log.error("%s: %s", line.receiver.name, value, exc_info=value)
            trouble = f"{type(value).__name__}: {value}" if isinstance(value, Exception) else ""
            before = line.outbox.trouble
            given_up = line.outbox.went(trouble.removeprefix("NotTold: "), time.monotonic_ns())
            if given_up:
                log.error("alarms are not told by %s: %s; given up", line.receiver.name, line.outbox.trouble)
            elif trouble and not before:
                log.warning("alarms are not told by %s: %s; tried again", line.receiver.name, line.outbox.trouble)

    def on_stop(self) -> bool:
        self._stop_ns = self._stop_ns or time.monotonic_ns()
        return all(line.outbox.idle() for line in self._lines.values()) or time.monotonic_ns() - self._stop_ns > _STOP_NS

    def on_end(self) -> None:
        if all(line.outbox.idle() for line in self._lines.values()):
            for line in self._lines.values():
                line.thread.close()
        else:  # a thread still waits for somebody outside: nothing here needs to be closed
            logging.shutdown()
            os._exit(0)

    def statistics(self) -> dict[str, Any]:
        return {"receivers": [{"name": line.receiver.name, **line.outbox.statistics()} for line in self._lines.values()]}

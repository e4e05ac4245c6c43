"""Threads of the standby torture that ask a broker the same question again and again, and record
the answers for the check of the order (`linear.py`).
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final, Generic, TypeVar

from support.torture.bucket.checks import RECOVERY_S
from support.torture.bucket.history import number_of
from support.torture.standby.linear import NEVER, Look, Read
from support.torture.standby.transacting import APP, TIMEOUT_S

import zsq

READ_EVERY_S: Final = 0.2
READ_BEHIND: Final = 400  # offsets
LOOK_EVERY_S: Final = 0.1

_Client = TypeVar("_Client", zsq.Reader, zsq.StageCommitter)
_Answer = TypeVar("_Answer", Read, Look)


def place_of(client: zsq.Reader | zsq.StageCommitter) -> str:
    """Return the address that the client has reached last."""
    made: Any = client._made
    return made.engine.rotation.present.url if made is not None else ""


class Asking(threading.Thread, Generic[_Client, _Answer]):
    """Asks every `every_s` seconds. A question that fails is left out."""

    def __init__(self, name: str, client: _Client, every_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self._client: _Client = client
        self._every_s = every_s
        self._ends = threading.Event()
        self._answers: list[_Answer] = []
        self._lock = threading.Lock()

    def ask(self, client: _Client) -> _Answer:
        raise NotImplementedError

    def run(self) -> None:
        with self._client as client:
            while not self._ends.wait(self._every_s):
                try:
                    answer = self.ask(client)
                except zsq.ZsqError:
                    continue
                with self._lock:
                    self._answers.append(answer)

    def take(self) -> list[_Answer]:
        with self._lock:
            found, self._answers = self._answers, []
            return found

    def end(self) -> None:
        self._ends.set()


class Reading(Asking[zsq.Reader, Read]):
    """Reads the newest messages of a topic."""

    def __init__(self, topic: str, url: str) -> None:
        reader = zsq.Reader(topic, url=url, timeout=RECOVERY_S, patient=True)
        super().__init__(f"reader of {topic}", reader, READ_EVERY_S)
        self._position = 0

    def ask(self, client: zsq.Reader) -> Read:
        began_s, start = time.monotonic(), max(0, self._position - READ_BEHIND)
        found = client.read(start, 1 << 20)
        ended_s = time.monotonic()
        rows = tuple(
            (block.first_offset + index, number_of(body or b""))
            for block in found.blocks
            for index, body in enumerate(block.body.values())
            if block.first_offset + index >= start
        )
        end = NEVER if found.next_offset >= found.head else float(found.next_offset)
        self._position = max(self._position, found.next_offset)
        return Read(began_s, ended_s, start, end, rows, place_of(client))


class Looking(Asking[zsq.StageCommitter, Look]):
    """Asks for the newest version of a topic's transactions."""

    def __init__(self, topic: str, url: str) -> None:
        committer = zsq.StageCommitter(topic, url=url, timeout=TIMEOUT_S)
        super().__init__(f"versions of {topic}", committer, LOOK_EVERY_S)

    def ask(self, client: zsq.StageCommitter) -> Look:
        began_s = time.monotonic()
        version = client.version_of(APP)
        return Look(began_s, time.monotonic(), version, place_of(client))

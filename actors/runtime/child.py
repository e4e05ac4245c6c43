"""Rules of supervision, as data: child specs and restart intensity, as in Erlang/OTP. No I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ...transport.errors import ZsqError
from ...transport.units import NS_PER_S
from ..settings import options
from ..settings.starts import ActorStart


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process to start. `start` opens nothing; the child opens its files in `on_start`."""

    key: int  # the number of this start of a process; it is never used twice
    kind: str
    title: str
    start: ActorStart = field(default_factory=ActorStart)
    stop_timeout_s: float = options.STOP_TIMEOUT_S


OUT_OF_FILES: Final = "OutOfFiles"
"""Failure code of an actor that found no free descriptor.

The actor is started again soon. This does not count as its failure, because the cause lies outside
the actor and may pass.
"""


class Phase(Enum):
    START = "start"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a process ended, or why a topic's processes had to end.

    `code` is the code of a `ZsqError`, the name of another exception, or "".
    """

    phase: Phase
    code: str
    text: str

    def __str__(self) -> str:
        return (
            "cannot start: " if self.phase is Phase.START else ""
        ) + f"{self.code} {self.text}".strip()

    @property
    def is_out_of_files(self) -> bool:
        return self.code == OUT_OF_FILES


class OutOfFiles(ZsqError):
    """No process can be started, because the descriptors that it needs are not available."""


_UNSTEADY_NS: Final = int(options.UNSTEADY_S * NS_PER_S)


class RestartIntensity:
    """Allows `restarts_max` restarts within `within_s`.

    After more restarts the supervisor gives up. So a failure is escalated and not repeated for
    ever.
    """

    __slots__ = ("_restarts_max", "_times_ns", "_within_ns", "count")

    def __init__(
        self, restarts_max: int = options.RESTARTS_MAX, within_s: float = options.RESTARTS_WITHIN_S
    ) -> None:
        self._restarts_max = restarts_max
        self._within_ns = int(within_s * NS_PER_S)
        self._times_ns: deque[int] = deque()
        self.count = 0

    def may_restart(self, now_ns: int) -> bool:
        """Note a restart. Return False if it exceeds the limit."""
        self.count += 1
        self._times_ns.append(now_ns)
        while self._times_ns[0] < now_ns - max(self._within_ns, _UNSTEADY_NS):
            self._times_ns.popleft()
        return self._recent(now_ns, self._within_ns) <= self._restarts_max

    def is_unsteady(self, now_ns: int) -> bool:
        """Return True if there were many restarts lately, although fewer than the limit."""
        return self._recent(now_ns, _UNSTEADY_NS) >= options.UNSTEADY_RESTARTS

    def _recent(self, now_ns: int, within_ns: int) -> int:
        return sum(time_ns >= now_ns - within_ns for time_ns in self._times_ns)

    def is_past(self, now_ns: int) -> bool:
        """Return True if the last restart is too long ago to count."""
        return not self._times_ns or self._times_ns[-1] < now_ns - self._within_ns

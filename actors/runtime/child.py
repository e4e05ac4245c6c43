"""Child specs and restart intensity: supervision as data and a policy (after Erlang/OTP's supervisor). Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ...transport.errors import ZsqError
from ..settings import options
from ..settings.starts import ActorStart

# Start order; stop goes in reverse.
KINDS: Final = ("storage", "topic", "channel", "scan_worker", "scan_loop", "gateway", "nsq_gateway", "http_gateway", "alarm_teller")
OUTSIDE: Final = frozenset({"gateway", "nsq_gateway", "http_gateway"})  # they listen where others may listen already

# Whose failure ends what. A topic and its storage share one fate, and the topic's channels start after them: a channel's
# leases stand on the rows that its storage recovered. (Rejected for now: channels that outlive their storage and attach to
# the next one; it saves redeliveries after a crash and costs a second protocol for resending what was not committed.)
FATE: Final[dict[str, str]] = {
    "storage": "topic_group",
    "topic": "topic_group",
    "channel": "self",
    "scan_worker": "self",
    "scan_loop": "self",
    "gateway": "self",
    "nsq_gateway": "self",
    "http_gateway": "self",
    "alarm_teller": "self",
}
# Beyond the intensity. A topic's actors only fail their topic, and without the teller of alarms these still stand in the log.
ENDS_TREE: Final = frozenset({"gateway", "nsq_gateway", "http_gateway", "scan_loop", "scan_worker"})


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to start. `start` opens nothing; the child opens in `on_start`."""

    key: int  # also the incarnation: never used twice in a life of the supervisor
    kind: str
    title: str
    start: ActorStart = field(default_factory=ActorStart)
    stop_timeout_s: float = options.STOP_TIMEOUT_S


OUT_OF_FILES: Final = "OutOfFiles"
"""Code of the failure of an actor that found no free descriptor. It is started again soon, and that does not count as a failure of its own,
because the cause lies outside and goes by itself."""


class Phase(Enum):
    START = "start"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a process ended, or why a topic's processes had to. `code`: of a `ZsqError`, or the name of another exception; "" for none."""

    phase: Phase
    code: str
    text: str

    def __str__(self) -> str:
        return ("cannot start: " if self.phase is Phase.START else "") + f"{self.code} {self.text}".strip()

    @property
    def is_out_of_files(self) -> bool:
        return self.code == OUT_OF_FILES


class OutOfFiles(ZsqError):
    """A process cannot be started, because none of the descriptors that it takes is free."""


class RestartIntensity:
    """More than `restarts_max` restarts within `within_s`: give up, so that failure climbs instead of spinning."""

    __slots__ = ("_restarts_max", "_times_ns", "_within_ns", "count")

    def __init__(self, restarts_max: int = options.RESTARTS_MAX, within_s: float = options.RESTARTS_WITHIN_S) -> None:
        self._restarts_max = restarts_max
        self._within_ns = int(within_s * 1_000_000_000)
        self._times_ns: deque[int] = deque()
        self.count = 0

    def may_restart(self, now_ns: int) -> bool:
        """Note one more restart; False if that is one too many."""
        self.count += 1
        self._times_ns.append(now_ns)
        while self._times_ns[0] < now_ns - self._within_ns:
            self._times_ns.popleft()
        return len(self._times_ns) <= self._restarts_max

    def is_past(self, now_ns: int) -> bool:
        """The last one is so long ago that it does not count any more."""
        return not self._times_ns or self._times_ns[-1] < now_ns - self._within_ns

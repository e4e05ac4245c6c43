"""Consumer backoff: when a consumer whose handlers fail rests, and when it probes. No I/O.

The backoff of a channel delays one message that has failed. It does not help when each message
fails, for example because a database is down: the handlers then go through the whole backlog. So
the consumer as a whole rests. It is no limit of rate, and it does not decide when a message comes
again.

The machine is the table below. It has a level. Each wait is twice as long as that of the level
below. It does not know which messages there are: `ConsumerEngine` does what `limit` says.

An outcome counts only if the state is still the one in which its handler began. `ticket` tells the
states apart. So handlers that began before the backoff change nothing, and each probe has one
outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from ...errors import E_BAD_ARGUMENT, UsageError
from ...settings import check_type
from ...units import NS_PER_MS, NS_PER_S
from ..link.timeouts import FAR_NS

MAXIMUM_S_MAX: Final = 3600.0


class Backoff:
    """The times with which a consumer backs off as a whole while its handlers fail.

    - `multiplier`, `maximum`: The consumer waits `multiplier * 2 ** level` seconds before each
      probe, at most `maximum` (an hour at most). With the defaults that is 2 s, 4 s ... 2 min.
    - `failures`: How many handlers must fail in a row, of all threads or tasks of `run`. With 1, it
      backs off after each failure, as go-nsq does.
    """

    __slots__ = ("failures", "maximum", "multiplier")

    def __init__(
        self, multiplier: float = 1.0, maximum: float = 120.0, *, failures: int = 5
    ) -> None:
        check_type("multiplier", multiplier, whole=False)
        check_type("maximum", maximum, whole=False)
        check_type("failures", failures)
        if not 0 < multiplier <= maximum <= MAXIMUM_S_MAX:
            text = (
                "multiplier must be above 0 and not above maximum, and maximum not above "
                f"{MAXIMUM_S_MAX:g} s; they are {multiplier} s and {maximum} s"
            )
            raise UsageError(E_BAD_ARGUMENT, text)
        if failures < 1:
            raise UsageError(E_BAD_ARGUMENT, f"failures must be at least 1, not {failures}")
        self.multiplier = multiplier
        self.maximum = maximum
        self.failures = failures

    def wait_s(self, level: int) -> float:
        """Return how long the consumer waits at this level, which is 1 or more."""
        return min(self.maximum, self.multiplier * 2.0 ** min(level, 60))

    def __repr__(self) -> str:
        return f"Backoff({self.multiplier!r}, {self.maximum!r}, failures={self.failures!r})"


class Outcome(Enum):
    """The result of a handler for the backoff of its consumer."""

    SUCCESS = "success"  # it returned; or it finished or rejected the message
    FAILURE = "failure"  # it raised, or requeued the message with `backoff=True`
    NEITHER = "neither"  # it requeued the message with a delay of its own, or did not begin


class BackoffState(Enum):
    OPEN = "open"  # handlers get messages as they come
    WAITING = "waiting"  # no handler gets a message until the wait is over
    PROBING = "probing"  # one handler may get one message, which has not arrived yet
    TESTING = "testing"  # the handler of the probe works


class BackoffEvent(Enum):
    OUTAGE = "too many failures in a row"
    DUE = "the wait is over"
    TAKEN = "the probe is taken"
    SUCCESS = "the probe succeeds"
    FAILURE = "the probe fails"
    NEITHER = "the probe does neither"
    LOST = "a link is lost"


class BackoffStep(NamedTuple):
    """The state after an event, and by how much the level changes. At level 0, the state is OPEN
    instead.
    """

    after: BackoffState
    level: int = 0


_S, _E, _to = BackoffState, BackoffEvent, BackoffStep
BACKOFF_TABLE: Final[Mapping[BackoffState, Mapping[BackoffEvent, BackoffStep]]] = {
    _S.OPEN: {_E.OUTAGE: _to(_S.WAITING, 1)},
    _S.WAITING: {_E.DUE: _to(_S.PROBING)},
    _S.PROBING: {_E.TAKEN: _to(_S.TESTING)},
    _S.TESTING: {
        _E.SUCCESS: _to(_S.WAITING, -1),
        _E.FAILURE: _to(_S.WAITING, 1),
        _E.NEITHER: _to(_S.WAITING),
        _E.LOST: _to(_S.WAITING),
    },
}
"""What is not in the table changes nothing."""

_LIMITS: Final = {_S.OPEN: None, _S.WAITING: 0, _S.PROBING: 1, _S.TESTING: 0}


class ConsumerBackoff:
    """The backoff of one consumer. All methods are called under the lock of its engine.

    Any thread may read `ticket` and `is_calm` at any time.
    """

    def __init__(self, settings: Backoff) -> None:
        self.settings = settings
        self.state = _S.OPEN
        self.level = 0
        self.until_ns = FAR_NS  # when the wait is over, in the state WAITING
        self.ticket = 0
        # True if a success changes nothing, so that it need not be reported.
        self.is_calm = True
        self._failures = 0  # in a row, in the state OPEN

    @property
    def limit(self) -> int | None:
        """The number of messages that handlers may still get, or None for as many as they need."""
        return _LIMITS[self.state]

    def probe_ms(self, now_ns: int) -> int:
        """Return the time until the next probe, 1 while it is under way, or 0 without a backoff."""
        if self.state is _S.OPEN:
            return 0
        return max(1, (self.until_ns - now_ns) // NS_PER_MS) if self.state is _S.WAITING else 1

    def ended(self, ticket: int, outcome: Outcome, now_ns: int) -> bool:
        """Note the outcome of a handler that began with this ticket. True: the state changed."""
        if ticket != self.ticket:
            return False
        if self.state is _S.TESTING:
            return self._step(_E[outcome.name], now_ns)
        if self.state is _S.OPEN and outcome is not Outcome.NEITHER:
            self._failures = self._failures + 1 if outcome is Outcome.FAILURE else 0
            self.is_calm = not self._failures
            if self._failures >= self.settings.failures:
                return self._step(_E.OUTAGE, now_ns)
        return False

    def due(self, now_ns: int) -> bool:
        """Begin to probe if the wait is over. True: the state changed."""
        return now_ns >= self.until_ns and self._step(_E.DUE, now_ns)

    def taken(self, now_ns: int) -> None:
        """Note that a handler gets the probe."""
        self._step(_E.TAKEN, now_ns)

    def lost(self, now_ns: int) -> bool:
        """Note that a link was lost, perhaps with a probe whose handler never begins.

        True: the state changed.
        """
        return self._step(_E.LOST, now_ns)

    def _step(self, event: BackoffEvent, now_ns: int) -> bool:
        step = BACKOFF_TABLE[self.state].get(event)
        if step is None:
            return False
        is_longest = self.level and self.settings.wait_s(self.level) >= self.settings.maximum
        if step.level < 0 or not is_longest:
            self.level += step.level
        self.state = step.after if self.level else _S.OPEN
        is_waiting = self.state is _S.WAITING
        self.until_ns = (
            now_ns + int(self.settings.wait_s(self.level) * NS_PER_S) if is_waiting else FAR_NS
        )
        self.ticket += 1
        self._failures = 0
        self.is_calm = self.state is _S.OPEN
        return True


def backoff_of(value: bool | Backoff) -> ConsumerBackoff | None:
    """Return the backoff for this argument of `run`, or None. Raises `UsageError`."""
    if isinstance(value, Backoff):
        return ConsumerBackoff(value)
    if not isinstance(value, bool):
        text = f"backoff must be True, False or a zsq.Backoff, not {value!r:.80}"
        raise UsageError(E_BAD_ARGUMENT, text)
    return ConsumerBackoff(Backoff()) if value else None

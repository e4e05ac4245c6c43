"""Rate limit: a bucket of tokens, one for each message that may be sent. No I/O.

The bucket holds at most `burst` tokens and gets `rate` of them a second, by the clock of boot time:
it does not follow the wall clock, and goes on while the machine is suspended.
Each message that is sent takes one, a redelivery too: what is limited is how often handlers begin,
and a failed attempt has begun. A message that comes back and that no handler has begun gives its
token back.

    sent in a time T    at most  burst + rate * T
    begun in a time T   at most  2 * burst + rate * T

The second line is larger, because a message may wait in a consumer, held, and be begun later. No
more than `burst` messages are held at a time (`room`), so that no consumer collects more of them
than that, however many it asks for. Consumers of NSQ report nothing, and count as beginning what
they get.

Waking. A bucket with a high rate gets a token each few microseconds. So a channel that waits sleeps
until `_LUMP_S` of the rate has come, at most half of the burst, and sends that at once
(`due_ns`). No tokens are lost by this, because the bucket has room for twice as many.

A restart. The state store keeps when the bucket will be full, by the wall clock (`full_ns`). So a
restart gives no new burst. After a kill, the last commit may be 0.2 s old. Then the bucket begins
with what it had at that commit, and with the tokens that have come since.

Rejected: counting the messages of a window, as of each second. Twice the limit could go around the
end of a window.
"""

from __future__ import annotations

from typing import Final

from ...transport.settings import NUMBER_MAX, ChannelSettings
from ...transport.units import NS_PER_S

BURST_S: Final = 0.1  # the burst of a limit without one, as time of its rate
_LUMP_S: Final = 0.01
_ROUNDING: Final = 1e-6  # a sum of floats may be this much below a whole token


class RateLimit:
    """A bucket. It has `tokens` at `at_ns`, or is full then without `tokens`."""

    __slots__ = ("_at_ns", "_lump", "_tokens", "burst", "rate")

    def __init__(
        self, rate: float, burst: int, at_ns: int = 0, tokens: float | None = None
    ) -> None:
        self.rate = rate
        self.burst = burst or max(1, int(rate * BURST_S))
        self._at_ns = at_ns
        self._tokens = float(self.burst if tokens is None else min(max(0.0, tokens), self.burst))
        self._lump = max(1.0, min(rate * _LUMP_S, self.burst / 2))

    def _refill(self, boot_ns: int) -> None:
        if boot_ns > self._at_ns:
            came = (boot_ns - self._at_ns) * self.rate / NS_PER_S
            self._tokens = min(self.burst, self._tokens + came)
            self._at_ns = boot_ns

    def tokens(self, boot_ns: int) -> int:
        """Return how many whole tokens there are. It is below 0 for a bucket that owes some."""
        self._refill(boot_ns)
        return int(self._tokens + _ROUNDING)

    def room(self, boot_ns: int, held: int = 0) -> int:
        """Return how many messages may be sent while consumers hold so many not begun."""
        return max(0, min(self.tokens(boot_ns), self.burst - held))

    def is_full(self, boot_ns: int) -> bool:
        self._refill(boot_ns)
        return self._tokens >= self.burst

    def take(self, count: int) -> None:
        """Take a token for each of these messages. The bucket owes those that it does not have."""
        self._tokens -= count

    def give_back(self, count: int) -> None:
        self._tokens = min(self.burst, self._tokens + count)

    def due_ns(self, boot_ns: int) -> int:
        """Return when the bucket has as many tokens as are worth a delivery, `boot_ns` at least."""
        self._refill(boot_ns)
        missing = self._lump - self._tokens
        return boot_ns + (int(missing * NS_PER_S / self.rate) + 1 if missing > 0 else 0)

    @property
    def quiet_ns(self) -> int:
        """The time in which a limit that withholds messages does so once more, at the latest."""
        return int(self.burst * NS_PER_S / self.rate) + NS_PER_S

    def full_ns(self, boot_ns: int, wall_ns: int) -> int:
        """Return when the bucket becomes full, by the wall clock."""
        self._refill(boot_ns)
        return min(NUMBER_MAX, wall_ns + int((self.burst - self._tokens) * NS_PER_S / self.rate))

    def changed(self, rate: float, burst: int) -> RateLimit:
        """Return a bucket with another limit, which has no more tokens than this one."""
        return RateLimit(rate, burst, self._at_ns, self._tokens)


def limit_of(settings: ChannelSettings, before: RateLimit | None = None) -> RateLimit | None:
    """Return the bucket of a channel with these settings, or None if it has no limit."""
    rate, burst = settings.max_rate, settings.max_rate_burst
    if not rate:
        return None
    return RateLimit(rate, burst) if before is None else before.changed(rate, burst)


def restored(
    settings: ChannelSettings, full_ns: int, boot_ns: int, wall_ns: int
) -> RateLimit | None:
    """Return the bucket of a channel that starts, which its last process expected to be full then.

    If the wall clock was set back meanwhile, the bucket begins empty, at the worst.
    """
    limit = limit_of(settings)
    if limit is not None and full_ns > wall_ns:
        missing = (full_ns - wall_ns) * limit.rate / NS_PER_S
        return RateLimit(limit.rate, limit.burst, boot_ns, limit.burst - missing)
    return limit

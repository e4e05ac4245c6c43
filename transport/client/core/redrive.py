"""Redrive: decide for each dead letter to which channel it returns, or why it stays. No I/O.

The caller reads and publishes. It reads a dead letter through the channel `redrive` of the
dead-letter topic, publishes it, and finishes it only when it is durable in the target. So if the
process is killed in between, a letter may be sent twice but is never lost. A letter is addressed to
the channel where it died, because the topic's other channels have received it.

Headers prove nothing, because every client that may publish to the dead-letter topic can write
them. So the broker is asked about each new route before anything is published on it (`Manage`
redrive). It checks whether the named channel's dead letters go to this topic, and whether the
caller may publish to the target.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypedDict, TypeVar

from ...errors import E_BAD_ARGUMENT, E_FORBIDDEN, E_IN_USE, E_NOT_FOUND, ZsqError
from ...wire import dead_letter
from ...wire.codec import HeaderValue

CHANNEL: Final = "redrive"
POLL_S: Final = 0.5  # if nothing arrives for so long, no more letters are expected
# A run with a rate may last for hours, and holds what it has received. A run that is killed loses
# its leases at once.
HOLD_S: Final = 86_400.0
READY: Final = 1_000  # the ready count, and the largest number of messages in one publish
# The most routes of one run. The limit is necessary because each forged letter may name a new
# route.
ROUTES_MAX: Final = 1_000
TOO_MANY: Final = f"they name more than {ROUTES_MAX} different targets; choose one with --to"
NO_LETTER: Final = (
    "not dead letters of a channel: their headers do not name topic, channel and uuid"
)
# Error codes in the broker's reply that concern only one route.
_LEFT_FOR: Final = frozenset({E_BAD_ARGUMENT, E_FORBIDDEN, E_IN_USE, E_NOT_FOUND})
NOT_COME: Final = (
    f"they did not arrive within the time-out: another consumer of channel {CHANNEL} holds "
    "them, or it is paused; try again"
)
SETTLED: Final = (
    f"channel {CHANNEL} has finished them (they were sent back or discarded), or there are no such "
    "messages"
)
# A letter that is not sent stays in flight until the run ends, and takes one of the places.
BEHIND: Final = (
    "they wait behind {:,} that are not sent; correct what stops those, or pass over them: zsq "
    f"seek DEAD_TOPIC {CHANNEL} OFFSET"
)


class Pace:
    """The pace of a redrive. Without a rate, it does not wait. The caller knows the time.

    A slow redrive protects consumers that have just been repaired.
    """

    def __init__(self, rate: float | None, now_s: float) -> None:
        """`rate`: letters a second."""
        self._rate = rate
        self._next_s = now_s

    @property
    def size(self) -> int:
        """The largest number of letters to send at a time: those of a second."""
        return READY if self._rate is None else min(READY, max(1, int(self._rate)))

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next letters may be sent.

        Ask before letters are sent, so that a run does not wait after its last ones.
        """
        return max(0.0, self._next_s - now_s)

    def sent(self, count: int, now_s: float) -> None:
        """Note that letters were sent."""
        if self._rate is not None:
            # Time in which nothing was sent is not made up for.
            self._next_s = max(self._next_s, now_s) + count / self._rate


class ChannelName(NamedTuple):
    topic: str
    channel: str | None
    """The only channel that gets the letter, or None for all channels of that topic."""


class Origin(NamedTuple):
    """The place where a letter died, according to its headers. `uuid` is that of the topic."""

    topic: str
    uuid: str
    channel: str


class LetterRoute(NamedTuple):
    """The target of a letter and its claimed origin.

    `chosen` is True if `--to` names the target topic.
    """

    place: ChannelName
    origin: Origin
    chosen: bool


class Letter(Protocol):
    """The part of a message that a redrive reads."""

    @property
    def offset(self) -> int: ...

    @property
    def headers(self) -> dict[str, HeaderValue]: ...


class HeldLetter(Protocol):
    """The part of a received letter that says whether it may still be sent."""

    @property
    def leased(self) -> bool: ...

    @property
    def cancelled(self) -> bool: ...


LetterT = TypeVar("LetterT", bound=Letter)
HeldT = TypeVar("HeldT", bound=HeldLetter)


def still_held(letters: Iterable[HeldT]) -> list[HeldT]:
    """Return the letters that are still this run's to send.

    A letter of a run with a rate waits. If the broker starts again meanwhile, all letters come
    again, and would be sent twice. One may also have been discarded.
    """
    return [letter for letter in letters if letter.leased and not letter.cancelled]


class LetterGroup(NamedTuple, Generic[LetterT]):
    """One publish: its target, messages and headers."""

    place: ChannelName
    messages: list[LetterT]
    headers: list[dict[str, HeaderValue]]


class Backlog(TypedDict):
    """The unfinished messages of a channel, from its statistics."""

    depth: int
    deferred_count: int
    in_flight_count: int


class Redrive:
    """One redrive.

    - `to`, `channel`: Targets that replace the places where the letters died.
    - `end`: Letters from this offset on are newer than this run, and it does not send them.
    - `ready`: The number of letters that the consumer holds at a time.
    - `dry_run`: True if the caller sends nothing, so that all letters stay.
    """

    def __init__(
        self,
        to: str | None,
        channel: str | None,
        end: int,
        *,
        ready: int = READY,
        dry_run: bool = False,
    ) -> None:
        self._to = to
        self._channel = channel
        self._end = end
        self._ready = ready
        self._dry_run = dry_run
        self._known: dict[LetterRoute, str] = {}
        self.sent: dict[ChannelName, int] = {}
        self.left: dict[str, int] = {}
        self.passed = 0
        """The number of letters that were not selected."""
        self.at_end = False

    @property
    def held(self) -> int:
        """The number of letters that stay, and that this client holds."""
        return sum(self.left.values()) + self.passed + self._dry_run * self.total

    @property
    def is_blocked(self) -> bool:
        """True if letters that stay take all places of the consumer."""
        return self.held >= self._ready

    @property
    def behind(self) -> str:
        """Say why the letters behind those that stay are left."""
        return BEHIND.format(self._ready)

    @property
    def total(self) -> int:
        return sum(self.sent.values())

    def _route(self, letter: Letter) -> LetterRoute | None:
        headers = letter.headers
        names = [
            headers.get(header)
            for header in (dead_letter.TOPIC, dead_letter.UUID, dead_letter.CHANNEL)
        ]
        if not all(isinstance(name, str) for name in names):
            return None
        origin = Origin(*map(str, names))
        if self._to is not None:
            return LetterRoute(ChannelName(self._to, self._channel), origin, True)
        return LetterRoute(
            ChannelName(origin.topic, self._channel or origin.channel), origin, False
        )

    def unknown(self, letters: Iterable[Letter]) -> list[LetterRoute]:
        """Return the routes that the broker was not asked about yet.

        The caller must ask the broker about them, and pass each reply to `known`, before it calls
        `groups`.
        """
        routes = dict.fromkeys(self._route(letter) for letter in letters)
        new = [route for route in routes if route is not None and route not in self._known]
        return new[: max(0, ROUTES_MAX - len(self._known))]

    def known(self, route: LetterRoute, error: ZsqError | None = None) -> None:
        """Note the broker's reply about a route.

        `error`: None if letters may take this route. An error that does not concern the route is
        raised.
        """
        if error is not None and error.code not in _LEFT_FOR:
            raise error
        self._known[route] = "" if error is None else error.text or error.code

    def groups(
        self, letters: Sequence[LetterT], limit: int, selected: Container[int] | None = None
    ) -> list[LetterGroup[LetterT]]:
        """Return the publishes for up to `limit` of these letters.

        `selected`: the offsets of the letters to send. None means all. Letters that are left out
        are not answered. They return to the channel when the consumer closes.
        """
        groups: dict[ChannelName, LetterGroup[LetterT]] = {}
        taken = 0
        for letter in letters:
            if letter.offset >= self._end:
                self.at_end = True
                break
            if taken == limit:
                break
            if selected is not None and letter.offset not in selected:
                self.passed += 1
                continue
            route = self._route(letter)
            why = NO_LETTER if route is None else self._known.get(route, TOO_MANY)
            if route is None or why:
                self.leave(why)
                continue
            place = route.place
            group = groups.setdefault(place, LetterGroup(place, [], []))
            group.messages.append(letter)
            group.headers.append(dead_letter.redriven(letter.headers, place.channel))
            taken += 1
        return list(groups.values())

    def leave(self, why: str, count: int = 1) -> None:
        """Note that letters stay, and why."""
        self.left[why] = self.left.get(why, 0) + count

    def was_sent(self, group: LetterGroup[Any]) -> None:
        """Note that these letters are durable in their target and finished here."""
        self.sent[group.place] = self.sent.get(group.place, 0) + len(group.messages)

    def waiting(self, row: Backlog) -> int:
        """Return the number of unfinished dead letters that this client does not hold.

        These letters wait, or another consumer holds them. A consumer that was killed holds its
        letters for a while, too. `row`: the channel's statistics.
        """
        return row["depth"] + row["deferred_count"] + row["in_flight_count"] - self.held

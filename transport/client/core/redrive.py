"""Dead letters go back to where they died: which of them where, and which stay for what reason. Pure; who reads and publishes asks it.

A dead letter is read by the channel `redrive` of its topic, published, and finished only after it is durable where it went; so whoever is
killed in between has sent it twice, never lost it. It is addressed to the channel that gave it up: the topic's other channels have had it.

Headers prove nothing, because whoever may publish to the dead-letter topic can write them. So the broker is asked about each new route
before anything is published on it (`Manage` redrive). It says whether the named channel's dead letters go to this topic, and whether the
caller may publish to the target.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypedDict, TypeVar

from ...errors import E_BAD_ARGUMENT, E_FORBIDDEN, E_IN_USE, E_NOT_FOUND, ZsqError
from ...wire import dead_letter
from ...wire.codec import HeaderValue

CHANNEL: Final = "redrive"
POLL_S: Final = 0.5  # how long nothing must come until nothing more waits
READY: Final = 1_000  # messages that are taken ahead, and one publish at most
ROUTES_MAX: Final = 1_000  # of one run: forged headers may name a new one in every letter
TOO_MANY: Final = f"they name more than {ROUTES_MAX} different places; --to says where to send them"
NO_LETTER: Final = "no dead letters of a channel: their headers name no topic, channel and uuid"
_LEFT_FOR: Final = frozenset(
    {E_BAD_ARGUMENT, E_FORBIDDEN, E_IN_USE, E_NOT_FOUND}
)  # codes of the broker's answer that concern one route only
NOT_COME: Final = f"they did not come within the time-out: another consumer of channel {CHANNEL} holds them, or it is paused; try again"


class ChannelName(NamedTuple):
    topic: str
    channel: str | None
    """The only one that gets it; None: all of that topic."""


class Origin(NamedTuple):
    """Where a letter's headers say that it died. `uuid`: of the topic."""

    topic: str
    uuid: str
    channel: str


class LetterRoute(NamedTuple):
    """Where a letter is to go, and what was said of where it comes from. `chosen`: the target topic was named by `--to`."""

    place: ChannelName
    origin: Origin
    chosen: bool


class Letter(Protocol):
    """What is looked at of a message."""

    @property
    def offset(self) -> int: ...

    @property
    def headers(self) -> dict[str, HeaderValue]: ...


LetterT = TypeVar("LetterT", bound=Letter)


class LetterGroup(NamedTuple, Generic[LetterT]):
    """One publish: where, what, and with which headers."""

    place: ChannelName
    messages: list[LetterT]
    headers: list[dict[str, HeaderValue]]


class Backlog(TypedDict):
    """What the statistics of a channel say of messages that are not finished."""

    depth: int
    deferred_count: int
    in_flight_count: int


class Redrive:
    """One run. `to`, `channel`: in place of where they died; `end`: dead letters from there on came later, and are left alone."""

    def __init__(self, to: str | None, channel: str | None, end: int) -> None:
        self._to = to
        self._channel = channel
        self._end = end
        self._known: dict[LetterRoute, str] = {}
        self.sent: dict[ChannelName, int] = {}
        self.left: dict[str, int] = {}
        self.at_end = False

    @property
    def total(self) -> int:
        return sum(self.sent.values())

    def _route(self, letter: Letter) -> LetterRoute | None:
        headers = letter.headers
        said = [headers.get(name) for name in (dead_letter.TOPIC, dead_letter.UUID, dead_letter.CHANNEL)]
        if not all(isinstance(one, str) for one in said):
            return None
        origin = Origin(*map(str, said))
        if self._to is not None:
            return LetterRoute(ChannelName(self._to, self._channel), origin, True)
        return LetterRoute(ChannelName(origin.topic, self._channel or origin.channel), origin, False)

    def unknown(self, letters: Iterable[Letter]) -> list[LetterRoute]:
        """Routes that the broker was not asked about yet. Ask it, and tell `known` the answer, before `groups`."""
        routes = dict.fromkeys(self._route(letter) for letter in letters)
        new = [route for route in routes if route is not None and route not in self._known]
        return new[: max(0, ROUTES_MAX - len(self._known))]

    def known(self, route: LetterRoute, error: ZsqError | None = None) -> None:
        """The broker's answer: None where letters may go by this route. Errors that do not concern the route are raised."""
        if error is not None and error.code not in _LEFT_FOR:
            raise error
        self._known[route] = "" if error is None else error.text or error.code

    def groups(self, letters: Sequence[LetterT], limit: int) -> list[LetterGroup[LetterT]]:
        """What is to be published, up to `limit` of these. What is left is not answered: it goes back when the consumer closes."""
        groups: dict[ChannelName, LetterGroup[LetterT]] = {}
        taken = 0
        for letter in letters:
            if letter.offset >= self._end:
                self.at_end = True
                break
            if taken == limit:
                break
            route = self._route(letter)
            why = NO_LETTER if route is None else self._known.get(route, TOO_MANY)
            if route is None or why:
                self.left[why] = self.left.get(why, 0) + 1
                continue
            place = route.place
            group = groups.setdefault(place, LetterGroup(place, [], []))
            group.messages.append(letter)
            group.headers.append(dead_letter.redriven(letter.headers, place.channel))
            taken += 1
        return list(groups.values())

    def was_sent(self, group: LetterGroup[Any]) -> None:
        """Durable where it went, and finished here."""
        self.sent[group.place] = self.sent.get(group.place, 0) + len(group.messages)

    def waiting(self, row: Backlog) -> int:
        """Dead letters that are neither finished nor here, by the channel's statistics: they wait, or another consumer holds them; who was
        killed does for a while."""
        return row["depth"] + row["deferred_count"] + row["in_flight_count"] - sum(self.left.values())

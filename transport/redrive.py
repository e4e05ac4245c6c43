"""Dead letters go back to where they died: which of them where, and which stay for what reason. Pure; who reads and publishes asks it.

A dead letter is read by the channel `redrive` of its topic, published, and finished only after it is durable where it went; so whoever is
killed in between has sent it twice, never lost it. It is addressed to the channel that gave it up: the topic's other channels have had it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from . import dead_letter
from .codec import HeaderValue
from .errors import NotFound, ZsqError

CHANNEL: Final = "redrive"
POLL_S: Final = 0.5  # how long nothing must come until nothing more waits
READY: Final = 1_000  # messages that are taken ahead, and one publish at most
NOT_COME: Final = f"they did not come within the time-out: another consumer of channel {CHANNEL} holds them, or it is paused; try again"


class Place(NamedTuple):
    topic: str
    channel: str | None
    """The only one that gets it; None: all of that topic."""


class Letter(Protocol):
    """What is looked at of a message."""

    @property
    def offset(self) -> int: ...

    @property
    def headers(self) -> dict[str, HeaderValue]: ...


LetterT = TypeVar("LetterT", bound=Letter)


class Group(NamedTuple, Generic[LetterT]):
    """One publish: where, what, and with which headers."""

    place: Place
    messages: list[LetterT]
    headers: list[dict[str, Any]]


class Redrive:
    """One run. `to`, `channel`: in place of where they died; `end`: dead letters from there on came later, and are left alone."""

    def __init__(self, to: str | None, channel: str | None, end: int) -> None:
        self._to = to
        self._channel = channel
        self._end = end
        self._known: dict[Place, str] = {}
        self.sent: dict[Place, int] = {}
        self.left: dict[str, int] = {}
        self.at_end = False

    @property
    def total(self) -> int:
        return sum(self.sent.values())

    def _place(self, letter: Letter) -> Place | None:
        if self._to is not None:
            return Place(self._to, self._channel)
        headers = letter.headers
        topic, channel = headers.get(dead_letter.TOPIC), headers.get(dead_letter.CHANNEL)
        if not isinstance(topic, str) or not isinstance(channel, str):
            return None
        return Place(topic, self._channel or channel)

    def unknown(self, letters: Iterable[Letter]) -> list[Place]:
        """Places of which nobody has said yet whether they are there: they are asked for, and `known` told, before `groups`."""
        places = dict.fromkeys(self._place(letter) for letter in letters)
        return [place for place in places if place is not None and place not in self._known]

    def known(self, place: Place, found: Mapping[str, Any] | ZsqError) -> None:
        """`found`: the statistics of its topic, or why there are none. A publish would make the topic, and a message for a channel that is
        not there would be for nobody."""
        why = ""
        if isinstance(found, NotFound):
            why = f"for topic {place.topic!r}, which does not exist; --to and --channel name others"
        elif isinstance(found, ZsqError):
            raise found
        elif place.channel is not None and place.channel not in [row["channel_name"] for row in found["topics"][0]["channels"]]:
            why = f"for channel {place.channel!r} of topic {place.topic!r}, which does not exist; --to and --channel name others"
        self._known[place] = why

    def refuse(self, place: Place, why: str) -> None:
        """Letters for it stay."""
        self._known[place] = why

    def groups(self, letters: Sequence[LetterT], limit: int) -> list[Group[LetterT]]:
        """What is to be published, up to `limit` of these. What is left is not answered: it goes back when the consumer closes."""
        groups: dict[Place, Group[LetterT]] = {}
        taken = 0
        for letter in letters:
            if letter.offset >= self._end:
                self.at_end = True
                break
            if taken == limit:
                break
            place = self._place(letter)
            why = "no dead letters of a channel (they name no topic); --to says where to send them" if place is None else self._known[place]
            if place is None or why:
                self.left[why] = self.left.get(why, 0) + 1
                continue
            group = groups.setdefault(place, Group(place, [], []))
            group.messages.append(letter)
            group.headers.append(dead_letter.redriven(letter.headers, place.channel))
            taken += 1
        return list(groups.values())

    def was_sent(self, group: Group[Any]) -> None:
        """Durable where it went, and finished here."""
        self.sent[group.place] = self.sent.get(group.place, 0) + len(group.messages)

    def waiting(self, row: Mapping[str, Any]) -> int:
        """Dead letters that are neither finished nor here, by the channel's statistics: they wait, or another consumer holds them; who was
        killed does for a while."""
        return int(row["depth"] + row["deferred_count"] + row["in_flight_count"]) - sum(self.left.values())

"""HttpLeases: the messages that a subscription has handed out over HTTP, by token. Pure.

`OUTCOMES` is the table of what a request does to a token in each state. A token that is not in the
table of leases has ended, whatever the reason: its lease is over, its link was lost, or an earlier
process of the gateway gave it. Answered tokens are remembered, up to ANSWERED_MAX, so that a
request whose answer was lost can be sent again.

A lease ends here at the latest when it ends at the channel, because the channel counts from the
report that the message was begun, which it gets later. All leases of a subscription last equally
long, so the table is in the order of their ends: a touched lease goes to its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from itertools import takewhile
from typing import Final, Generic, NamedTuple, TypeVar

from .....transport.client.core.confirm import Confirm

_DeliveryT = TypeVar("_DeliveryT")

ANSWERED_MAX: Final = 10_000
_TOKEN: Final = re.compile(r"([0-9a-f]{8})-([0-9a-f]{1,16})-([0-9a-f]{1,16})", re.ASCII)


class Token(NamedTuple):
    """The place of a lease: the gateway's process, the subscription, and the lease's number."""

    gateway: str
    subscription: int
    number: int

    def __str__(self) -> str:
        return f"{self.gateway}-{self.subscription:x}-{self.number:x}"


def parse_token(text: str) -> Token | None:
    """Return the token with this text, or None if it is no token."""
    match = _TOKEN.fullmatch(text)
    return None if match is None else Token(match[1], int(match[2], 16), int(match[3], 16))


class Verb(Enum):
    FINISH = "finished"
    REQUEUE = "requeued"
    TOUCH = "touched"


class TokenState(Enum):
    LEASED = "leased"
    FINISHED = "finished"
    REQUEUED = "requeued"
    ENDED = "ended"


class Outcome(Enum):
    CARRY_OUT = "carry it out"
    REPEAT = "give the same answer again"
    CONFLICT = "refuse it, because the message was answered in another way"
    GONE = "refuse it, because the lease has ended"


_V, _S, _O = Verb, TokenState, Outcome
OUTCOMES: Final[dict[Verb, dict[TokenState, Outcome]]] = {
    _V.FINISH: {
        _S.LEASED: _O.CARRY_OUT,
        _S.FINISHED: _O.REPEAT,
        _S.REQUEUED: _O.CONFLICT,
        _S.ENDED: _O.GONE,
    },
    _V.REQUEUE: {
        _S.LEASED: _O.CARRY_OUT,
        _S.FINISHED: _O.CONFLICT,
        _S.REQUEUED: _O.REPEAT,
        _S.ENDED: _O.GONE,
    },
    _V.TOUCH: {
        _S.LEASED: _O.CARRY_OUT,
        _S.FINISHED: _O.CONFLICT,
        _S.REQUEUED: _O.CONFLICT,
        _S.ENDED: _O.GONE,
    },
}
ANSWERED: Final = {Verb.FINISH: TokenState.FINISHED, Verb.REQUEUE: TokenState.REQUEUED}


class HttpLease(NamedTuple, Generic[_DeliveryT]):
    """One message of a delivery. `holder` has a place for it, see `Limiter`."""

    delivery: _DeliveryT
    position: int  # in the delivery
    holder: str
    due_ns: int


class AnsweredLease(NamedTuple, Generic[_DeliveryT]):
    """A lease that was answered, and the confirmation of the channel."""

    verb: Verb
    lease: HttpLease[_DeliveryT]
    confirm: Confirm


class HttpLeases(Generic[_DeliveryT]):
    """The leases of one subscription, by number. Each lasts `lease_ns`."""

    def __init__(self, lease_ns: int) -> None:
        self._lease_ns = lease_ns
        self._leases: dict[int, HttpLease[_DeliveryT]] = {}  # in the order of their ends
        self._answered: dict[int, AnsweredLease[_DeliveryT]] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def due_ns(self) -> int | None:
        """When the first lease ends."""
        return next((lease.due_ns for lease in self._leases.values()), None)

    def add(self, delivery: _DeliveryT, position: int, holder: str, now_ns: int) -> int:
        """Lease a message and return its number."""
        number, self._next = self._next, self._next + 1
        self._leases[number] = HttpLease(delivery, position, holder, now_ns + self._lease_ns)
        return number

    def state(self, number: int, now_ns: int) -> TokenState:
        lease = self._leases.get(number)
        if lease is not None:
            return TokenState.LEASED if now_ns < lease.due_ns else TokenState.ENDED
        answered = self._answered.get(number)
        return TokenState.ENDED if answered is None else ANSWERED[answered.verb]

    def outcome(self, verb: Verb, number: int, now_ns: int) -> Outcome:
        return OUTCOMES[verb][self.state(number, now_ns)]

    def lease(self, number: int) -> HttpLease[_DeliveryT]:
        """Return the lease of a token that is LEASED."""
        return self._leases[number]

    def answered(self, number: int) -> AnsweredLease[_DeliveryT]:
        """Return the answer to a token that is FINISHED or REQUEUED."""
        return self._answered[number]

    def answer(self, number: int, answer: AnsweredLease[_DeliveryT]) -> None:
        """Note the answer to a token that is LEASED. Its lease is over."""
        del self._leases[number]
        self._answered[number] = answer
        if len(self._answered) > ANSWERED_MAX:
            del self._answered[next(iter(self._answered))]

    def extend(self, number: int, now_ns: int) -> None:
        """Let the lease of a token that is LEASED begin again."""
        lease = self._leases.pop(number)
        self._leases[number] = lease._replace(due_ns=now_ns + self._lease_ns)

    def end(self, number: int) -> HttpLease[_DeliveryT] | None:
        """Forget a token: it has ended. Return its lease if it was LEASED."""
        self._answered.pop(number, None)
        return self._leases.pop(number, None)

    def expire(self, now_ns: int) -> list[HttpLease[_DeliveryT]]:
        """End the leases that are over, and return them."""
        over = list(takewhile(lambda row: row[1].due_ns <= now_ns, self._leases.items()))
        return [self._leases.pop(number) for number, _ in over]

    def forget(self, is_lost: Callable[[_DeliveryT], bool]) -> list[HttpLease[_DeliveryT]]:
        """End the leases of deliveries whose link was lost, and return them."""
        lost = [number for number, lease in self._leases.items() if is_lost(lease.delivery)]
        return [self._leases.pop(number) for number in lost]

"""Requests and their replies: the engine below Admin and Reader. Nothing here waits."""

from __future__ import annotations

import time
from typing import Any, Final

from ...block.block import Block, check_columns
from ...errors import (
    E_BAD_COMMAND,
    E_BUCKET,
    E_CLOSING,
    E_DATA_LOSS,
    E_LIMIT,
    E_TIMEOUT,
    E_TOPIC_FAILED,
    E_UNREACHABLE,
    BrokerUnreachable,
    DataLoss,
    Refused,
    UsageError,
    ZsqError,
    advice,
    from_wire,
)
from ...wire.address import Address, Target
from ...wire.addresses import NOT_PRIMARY, Addresses, Rotation
from ...wire.codec import encode
from ...wire.protocol import Blocks, Done, Failed, Spread, Wire
from ...wire.spread import HasParts, checked, removed_part
from ..link.engine import Engine, Steps
from ..link.link import AGAIN, Link
from ..link.reaction import Reaction
from ..link.refusal_pause import RefusalPause
from ..link.timeouts import deadline_of, format_timeout
from .asking import Question, Reply

# After this silence, a link is opened again, because its other end may have forgotten it.
IDLE_NS: Final = 20_000_000_000

BACKOFFS_MAX: Final = 1_000  # the most topics whose refusals are remembered
# Refusals of a link after which a patient client tries again.
PASSING: Final = frozenset({E_LIMIT, E_TOPIC_FAILED})
# Refusals of a request after which a patient client sends the request again.
LATER: Final = frozenset({E_BUCKET})


def topic_of(message: Wire) -> str:
    """Return the topic that a request names, or ""."""
    return str(getattr(message, "topic", ""))


def _error_in(message: Wire) -> ZsqError | None:
    if isinstance(message, Spread):
        return HasParts(checked(message))
    return from_wire(message.code, message.text) if isinstance(message, Failed) else None


class Request:
    """One request and, when it is done, its reply.

    If `repeatable` is True, it is harmless to send the request twice. So it is sent again after the
    link was lost.
    """

    __slots__ = ("answer", "blocks", "done", "error", "message", "number", "repeatable", "sent")

    def __init__(self, number: int, message: Wire, repeatable: bool) -> None:
        self.number = number
        self.message = message
        self.repeatable = repeatable
        self.sent = False
        self.done = False
        self.answer: Any = None
        self.blocks: list[Block] = []
        self.error: ZsqError | None = None

    def settle(self, answer: Any = None, error: ZsqError | None = None) -> None:
        self.answer = answer
        self.error = error
        self.done = True


class RequestEngine(Engine):
    """The engine that sends numbered requests over one link. It is the peer of that link.

    With `patient`, requests that the broker refuses for now are repeated until the time-out.
    """

    def __init__(
        self, address: Address | Addresses, target: Target, *, patient: bool = False
    ) -> None:
        super().__init__()
        self.rotation = Rotation(address)
        self.target = target
        self._place = self.rotation.present  # the address of the last link
        self._known_uuid = ""  # the uuid of the topic to which that link led
        self._later = LATER if patient else frozenset()
        self._put_off: ZsqError | None = None  # the last refusal after which a request waits
        again = AGAIN | PASSING if patient else AGAIN
        self.link = Link(self, self.rotation, target, self, again=again)
        self.add(self.link)
        self._requests: dict[int, Request] = {}
        self._number = 0
        # Each topic has its own backoff, so that a topic in trouble does not delay the others.
        self._backoffs: dict[str, RefusalPause] = {}
        self.link.needed = self.link.expects = lambda: bool(self._requests)

    def ask(self, number: int, message: Wire, *, repeatable: bool) -> Request:
        """Send `message`, which carries `number`, as soon as there is a link."""
        now = time.monotonic_ns()
        if self.link.up:
            # A client that was idle may not know yet that this link was lost. What is sent over it
            # then would count as sent, and must not be repeated.
            self.link.take_in(now)
            self.link.check_monitor(now)
        request = self._requests[number] = Request(number, message, repeatable)
        if self.link.up and now - self.link.heard_ns > IDLE_NS:
            self.link.restart(now, "idle", at_once=True)
        elif self.link.up:
            self._send_waiting(now)
            self.link.receive(now)
        else:
            self.link.start(now)
        return request

    def begin(self, question: Question) -> Request:
        """Send a question. `reply` waits for the reply."""
        self._number += 1
        return self.ask(self._number, question.make(self._number), repeatable=question.repeatable)

    def reply(self, request: Request, timeout: float | None) -> Steps[Reply]:
        """Return the reply and its blocks, or raise the error. The time-out begins now."""
        # A forked child has the requests of its parent, but not their replies.
        if not request.done and self._requests.get(request.number) is not request:
            raise Refused(
                E_CLOSING,
                (
                    "this client was closed, or the request belongs to another process; send the "
                    "request again"
                ),
            )
        if not (yield (lambda: request.done, deadline_of(timeout))):
            self.give_up(request)
            raise self.too_late(timeout)
        if request.error is not None:
            raise request.error
        return request.answer, request.blocks

    def ask_within(self, question: Question, timeout: float | None) -> Steps[Reply]:
        """Send a question and return the reply and its blocks, or raise the error."""
        return (yield from self.reply(self.begin(question), timeout))

    @property
    def uuid(self) -> str:
        """The topic's uuid, as the broker reported it when the link was opened."""
        return str(self.link.opened.get("uuid", ""))

    def give_up(self, request: Request) -> None:
        self._requests.pop(request.number, None)

    def _send_waiting(self, now_ns: int) -> None:
        """Send the requests not sent on this link yet, except those whose topic is in a backoff."""
        for request in [request for request in self._requests.values() if not request.sent]:
            backoff = self._backoffs.get(topic_of(request.message))
            if backoff is not None and now_ns < backoff.until_ns:
                self.sooner(backoff.until_ns)
            elif self.link.up:
                request.sent = True
                self.link.send([b"", encode(request.message)], now_ns)

    def timers(self, now_ns: int) -> None:
        super().timers(now_ns)
        if self.link.up:
            self._send_waiting(now_ns)

    # The link's peer

    def greeting(self) -> Wire | None:
        return None

    def on_up(self, now_ns: int) -> None:
        self._compare_topic()
        self._send_waiting(now_ns)
        self.sooner(0)  # the sends may have consumed the events for replies

    def _compare_topic(self) -> None:
        """Fail the requests of a reader if the topic at the next address is not the same one.

        Offsets of one topic mean nothing in another one. A standby that takes over keeps the uuids
        of its topics. A topic that was created again at the same address is not checked here, as
        without a standby (see `Reader.uuid`).
        """
        before, address = self._place, self.link.given
        known, self._known_uuid, self._place = self._known_uuid, self.uuid, address
        if self.target.kind == "reader" and before != address and known not in ("", self.uuid):
            text = (
                f"topic {self.target.topic} at {address.url} is another topic than at {before.url} "
                f"(uuid {self.uuid}, not {known}), so its offsets have other messages"
            )
            self.on_refused(DataLoss(E_DATA_LOSS, text))

    def on_word(self, message: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        if not isinstance(message, Done | Failed | Blocks | Spread):
            raise UsageError(E_BAD_COMMAND, f"{type(message).__name__} is not a reply to a request")
        for block in blocks:
            check_columns(block.header, block.columns)
        request = self._requests.pop(message.request, None)
        if request is not None and isinstance(message, Failed) and message.code in self._later:
            request.sent = False
            self._requests[request.number] = request
            self._put_off = from_wire(message.code, message.text)
            backoff = self._backoffs.setdefault(topic_of(request.message), RefusalPause())
            backoff.refused(now_ns)
            self.sooner(backoff.until_ns)
        elif request is not None:
            self._put_off = None
            request.blocks = blocks
            request.settle(message, _error_in(message))
            self._note(request, now_ns)
        return Reaction.NOTHING

    def _note(self, request: Request, now_ns: int) -> None:
        """Remember that the topic refused a request, so that the next request waits."""
        topic = topic_of(request.message)
        if isinstance(request.error, Refused):
            if topic not in self._backoffs and len(self._backoffs) >= BACKOFFS_MAX:
                del self._backoffs[next(iter(self._backoffs))]
            self._backoffs.setdefault(topic, RefusalPause()).refused(now_ns)
        else:
            self._backoffs.pop(topic, None)

    def on_received(self, now_ns: int) -> None:
        """Do nothing: replies settle requests, and nothing more needs to be sent."""

    def on_lost(self) -> None:
        self._put_off = None  # if the time ends now, the lost link is the reason
        for number, request in list(self._requests.items()):
            # If nothing can have arrived, or the broker did nothing, the request is sent again.
            kept = not self.link.touched or number == self.link.turned_away
            if request.sent and not request.repeatable and not kept:
                del self._requests[number]
                text = f"the link to {self.link.given.url} was lost before {self.target} replied"
                text += "; check whether the request took effect before you repeat it"
                request.settle(error=BrokerUnreachable(E_UNREACHABLE, text))
            request.sent = False

    def on_refused(self, error: ZsqError) -> None:
        if isinstance(error, HasParts):
            error = removed_part(self.target.topic, error.spread) or error
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.settle(error=error)

    def too_late(self, timeout: float | None) -> ZsqError:
        if self._put_off is not None:
            return self._put_off
        where = f"{self.target} at {self.rotation.url}"
        away, refusal = self.rotation.refusal(), self.link.refusal
        if isinstance(refusal, Refused) and refusal.code in AGAIN | NOT_PRIMARY:
            refusal = None
        refusal = away or refusal
        if isinstance(refusal, Refused):
            text = f"{where} could not be reached for {format_timeout(timeout)}: {refusal.text}"
            return from_wire(refusal.code, text)
        why = self.link.why() or ("no answer" if self.link.up else self.link.state.value)
        text = f"{where} did not answer within {format_timeout(timeout)} ({why}). {advice()}"
        return BrokerUnreachable(E_TIMEOUT, text)

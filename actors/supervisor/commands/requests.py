"""Pending requests of clients, and the orders to actors that they wait for.

The numbers of pending requests and of orders are limited.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from ....transport.errors import E_CLOSING, E_INTERNAL, E_LIMIT, E_TIMEOUT, Refused, ZsqError
from ....transport.wire import protocol as p
from ....transport.wire.admin_requests import AdminRequest
from ...runtime.port import Envelope
from ...runtime.process_table import Child
from ...runtime.processes import Processes
from ...security.audit import AuditLog, AuditRecorder
from ...settings import options
from ...statistics.gathering import Gatherings
from ..topics.broker_state import BrokerState
from ..topics.topic_group import TopicGroup

_NS_PER_S: Final = 1_000_000_000
_ANSWER_S: Final = 20.0  # less than a client's own timeout, so that the client gets the reason

AnswerT = TypeVar("AnswerT", bound=p.Wire)


class _PendingOrder(NamedTuple):
    """An order without an answer. Only the actor with this `envelope` can answer it."""

    callback: Callable[[Any, ZsqError | None], None]
    deadline_ns: int
    key: int
    envelope: Envelope
    patience_s: float


def named(message: AdminRequest[Any]) -> str:
    """Return the channel or the topic that a request is about, as errors name it."""
    topic = f"topic {message.topic!r}"
    return f"channel {message.channel!r} of {topic}" if message.channel else topic


def starting(message: AdminRequest[Any]) -> Refused:
    """Return the error for a request whose process is being started again."""
    return Refused(E_CLOSING, f"{named(message)} is being started again; try again in a moment")


def refused(error: OSError) -> Refused:
    """Return the answer to a request that the operating system refused."""
    return Refused(
        E_INTERNAL, f"the operating system refused the request: {error.strerror or error}"
    )


@contextlib.contextmanager
def failing(fail: Callable[[int, ZsqError], None], request: int) -> Iterator[None]:
    """Call `fail` with the error that the block raises, if it raises one."""
    try:
        yield
    except ZsqError as error:
        fail(request, error)
    except OSError as error:
        fail(request, refused(error))


class Orders:
    """The orders to actors that have no answer yet.

    Each order is completed once: by the actor's answer, by the end of the actor, or by a timeout.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._request = 0
        self._orders: dict[int, _PendingOrder] = {}

    def send(
        self, child: Child, make: Callable[[int], p.Order[AnswerT]], callback: Callable[[AnswerT | None, ZsqError | None], None],
        patience_s: float = _ANSWER_S,
    ) -> None:  # fmt: skip
        """Send the order that `make` returns for a new number.

        `callback` gets the answer or an error.
        """
        if len(self._orders) >= options.WAITERS_MAX:
            text = (
                f"{options.WAITERS_MAX} requests wait for processes of the broker, which is the "
                "limit; try again in a moment"
            )
            callback(None, Refused(E_LIMIT, text))
            return
        self._request += 1
        deadline_ns = time.monotonic_ns() + int(patience_s * _NS_PER_S)
        self._orders[self._request] = _PendingOrder(
            callback, deadline_ns, child.spec.key, child.envelope, patience_s
        )
        if not self._processes.send(child, make(self._request)):
            del self._orders[self._request]
            callback(
                None,
                Refused(
                    E_CLOSING, f"{child.spec.title} is being started again; try again in a moment"
                ),
            )

    def awaits(self, envelope: Envelope, request: int) -> bool:
        """Return True if the order of that number was sent to this actor and is not answered
        yet.
        """
        order = self._orders.get(request)
        return order is not None and order.envelope == envelope

    def owes_answer(self, child: Child) -> bool:
        """Return True if this actor has not answered all orders yet."""
        return any(order.key == child.spec.key for order in self._orders.values())

    def on_answer(self, envelope: Envelope, message: p.Done | p.OrderAnswer | p.Failed) -> None:
        if not self.awaits(envelope, message.request):
            return
        order = self._orders.pop(message.request)
        if isinstance(message, p.Failed):
            order.callback(None, ZsqError(message.code, message.text))
        else:
            order.callback(message, None)

    def tick(self, now_ns: int) -> None:
        """Give up orders whose time is over or whose process has ended."""
        for request, order in list(self._orders.items()):
            if order.key not in self._processes.children:
                del self._orders[request]
                order.callback(
                    None,
                    Refused(
                        E_CLOSING,
                        "the process ended before it answered; the request may have taken effect",
                    ),
                )
            elif now_ns > order.deadline_ns:
                del self._orders[request]
                order.callback(
                    None,
                    ZsqError(
                        E_TIMEOUT,
                        (
                            f"no answer within {order.patience_s:g} s; the request may still take "
                            "effect"
                        ),
                    ),
                )

    def stop(self) -> None:
        """Fail all orders."""
        orders, self._orders = self._orders, {}
        for order in orders.values():
            order.callback(
                None,
                Refused(E_CLOSING, "the broker is stopping; the request may have taken effect"),
            )


class Requests:
    """The state that the handlers of commands share.

    `send` sends to a client. `count_refused` counts the refused publishes of all topics. Call it
    before a topic is deleted.
    """

    def __init__(
        self, broker: BrokerState, orders: Orders, audit_log: AuditLog, send: Callable[[Envelope, p.Wire], bool],
        count_refused: Callable[[], object],
    ) -> None:  # fmt: skip
        self.broker = broker
        self.orders = orders
        self.gatherings = Gatherings(broker.processes)
        self.audit_log = audit_log
        self.audits = AuditRecorder(audit_log)
        self.count_refused = count_refused
        self.sealed: list[TopicGroup] = []  # topics whose deletion was refused, to be unsealed
        self.later: list[Callable[[], None]] = []  # what to try again on the next tick
        self.send = send
        self._number = 0
        # The broker's number of a request -> its client, and the client's number.
        self._asked: dict[int, tuple[Envelope, int]] = {}

    def numbered(self, envelope: Envelope, theirs: int) -> int:
        """Return a number of the broker for a client's request.

        Requests of one client may have the same number.
        """
        self._number += 1
        if len(self._asked) >= options.ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        self._asked[self._number] = envelope, theirs
        return self._number

    def done(self, request: int, data: dict[str, Any]) -> None:
        """Answer a request with data. `request` is the broker's number, also in `fail`."""
        self.audits.answered(request)
        origin = self._asked.pop(request, None)
        if origin is not None:
            self.send(origin[0], p.Done(origin[1], data))

    def fail(self, request: int, error: ZsqError, envelope: Envelope = ()) -> None:
        """Answer a request with an error.

        `envelope` is the sender of a message that has no number.
        """
        self.audits.answered(request, f"{error.code} {error.text}")
        origin = self._asked.pop(request, None if request else (envelope, 0))
        if origin is not None:
            self.send(origin[0], p.Failed(origin[1], error.code, error.text))

    def spread(self, request: int, answer: p.Spread) -> None:
        """Answer that the client must ask other brokers. This broker has carried out nothing."""
        self.audits.dropped(request)
        origin = self._asked.pop(request, None)
        if origin is not None:
            self.send(origin[0], replace(answer, request=origin[1]))

    def settle(
        self, request: int, error: ZsqError | None, data: dict[str, Any] | None = None
    ) -> None:
        """Answer with the error if it is not None, else with the data."""
        if error is not None:
            self.fail(request, error)
        else:
            self.done(request, data or {})

    def answering(self, request: int) -> AbstractContextManager[None]:
        """Answer a request with the error that the block raises, if it raises one."""
        return failing(self.fail, request)

    def relay(self, request: int, answer: p.Done | None, error: ZsqError | None) -> None:
        """Answer a request with the answer to an order."""
        self.settle(request, error, answer.data if answer is not None else None)

    def when_up(
        self, request: AdminRequest[Any], group: TopicGroup, then: Callable[[Child], None]
    ) -> None:
        """Call `then` with the process of the channel or topic of the request when it is up."""

        def ready(error: ZsqError | None) -> None:
            child = group.child(request.channel)
            if error is not None or child is None:
                self.fail(request.request, error or starting(request))
            else:
                then(child)

        group.want(request.channel, ready)

    def after_end(self, child: Child | None, then: Callable[[bool], None]) -> None:
        """Call `then` with True when the process has ended, or with False if it does not end."""
        self.gatherings.after_end(child, then, _ANSWER_S)

    def scope(self, group: TopicGroup | None) -> list[Child]:
        """Return the processes of one topic, or of all, that are up."""
        groups = [group] if group is not None else list(self.broker.groups.values())
        return [child for one in groups for child in one.children() if child.state == "up"]

    def tick(self, now_ns: int) -> None:
        later, self.later = self.later, []
        for again in later:
            again()
        self.gatherings.tick(now_ns)
        self.audits.tick(now_ns / _NS_PER_S)
        self.orders.tick(now_ns)

    def stop(self) -> None:
        """Answer all requests that wait."""
        self.orders.stop()
        self.gatherings.stop()


def answered_by(requests: Requests, answer: Callable[[Any], Mapping[str, Any]]) -> Handler:
    """Return a handler that answers a request with what `answer` returns for it."""
    return lambda request: requests.done(request.request, {**answer(request)})


Handler = Callable[[Any], None]
Handlers = Mapping[type[AdminRequest[Any]], Handler]
"""The handlers of administrative requests, by their types."""
GroupHandler = Callable[[Requests, Any, TopicGroup], None]
"""The handler of a request about a topic or channel that exists.

A group of commands has a table `HANDLERS` of them, by the types of the requests.
"""

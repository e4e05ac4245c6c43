"""Askers: the base of the clients that send requests to one target and wait for the replies.

`AskerBase` is shared with asyncio. `Asker` sends one request at a time for each thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

from ...errors import E_CLOSING, Refused, ZsqError
from ...wire.address import DefaultTimeout, Space, Target
from ...wire.addresses import Addresses, Url, parse_all
from ...wire.credentials import KeyFile
from ...wire.spread import HasParts, near
from ..core.asking import Asking, PartAnswers, Question, Reply
from ..core.requester import Request, RequestEngine
from .drive import Drive, ours
from .producer import check_times
from .program_end import ClientName, inherit, name_of, remember

__all__ = ["Asker", "AskerBase", "AskerPlace", "ClientAddress", "moved", "named_by"]

_T = TypeVar("_T")


def moved(error: HasParts) -> Refused:
    """Return the error for a broker that does not have the part that others say it has."""
    text = f"a part of topic {error.spread.topic} is not where the directory said"
    return Refused(E_CLOSING, f"{text}; try again in a moment")


class ClientAddress(TypedDict):
    """The arguments of a client that say where the broker is."""

    url: Url
    key_file: KeyFile
    transport: str


class AskerBase:
    """The base of the blocking and asyncio clients that send requests to one target.

    The broker refuses a request while a failed topic is being started again, or when a limit is
    reached. A client with `patient` then tries again until the time-out. Other clients raise the
    refusal at once.
    """

    def __init__(
        self, url: Url, target: Target, timeout: float | None, *, patient: bool = False, key_file: KeyFile = None,
        transport: str | None = None,
    ) -> None:  # fmt: skip
        check_times(timeout, None)
        self._client_name: ClientName | None = name_of(self, target.topic)
        self._address = parse_all(url, key_file, transport)
        self._target = target
        self._timeout = timeout
        self._hasty = isinstance(timeout, DefaultTimeout)
        self._patient = patient
        self._closed = False
        self._made: Any = None
        # Clients of the brokers that have parts of topics, by their addresses.
        self._others: dict[tuple[str, ...], Any] = {}
        self._begin()

    def _begin(self) -> None:
        """Finish the construction. The arguments are already checked."""
        return

    def _engine(self) -> RequestEngine:
        return RequestEngine(self._address, self._target, patient=self._patient)

    def _same_place(self) -> ClientAddress:
        """Return the arguments of another client for the same broker."""
        found = self._address
        return {
            "url": found.url,
            "key_file": found.credentials,
            "transport": "auto" if found.auto else "tcp",
        }

    def _near(self, urls: Sequence[str]) -> Addresses:
        """Return addresses that the broker has named. See `named_by`."""
        made = self._made
        return near(self._address, urls, Space.WORLD if made is None else made.engine.link.space)

    def _other(self, urls: tuple[str, ...], make: Callable[..., _T]) -> _T:
        """Return the client of another broker. `make` makes an Admin. It is closed with this one.

        Threads may do this at the same time. Then one of two new clients is used, and the other one
        is dropped before it has connected.
        """
        if urls not in self._others:
            place = self._same_place()
            place["url"] = self._near(urls)
            other: Any = make(timeout=self._timeout, **place)
            other._client_name = None  # it has no name of its own in warnings
            self._others.setdefault(urls, other)
        found: _T = self._others[urls]
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise Refused(E_CLOSING, "this client is closed; make a new one")


def named_by(client: AskerBase, urls: Sequence[str]) -> Addresses:
    """Return addresses that the broker of this client has named, as the `url` of another client.

    Raises `UsageError` if one of them is not a tcp:// address. The other client goes only to those
    that the rules of `wire/address.py` allow.
    """
    return client._near(urls)


class Asker(AskerBase):
    """A client of one target, with one request at a time for each thread.

    It may be used in forked children, like the other clients.
    """

    _made: Drive[RequestEngine] | None

    def _begin(self) -> None:
        remember(self, self._client_name)

    def _carry_out(self, asking: Asking[_T]) -> _T:
        """Run the generator: send its questions and return its result."""
        try:
            question = next(asking)
            while True:
                try:
                    reply = self._ask(question)
                except ZsqError as error:
                    question = asking.throw(error)
                else:
                    question = asking.send(reply)
        except StopIteration as end:
            result: _T = end.value
            return result

    def _ask(self, question: Question) -> Reply:
        """Send a request and return the reply. If it is about parts, ask their brokers."""
        try:
            return self._reply(self._send(question))
        except HasParts as error:
            answers = PartAnswers(question, error.spread)
        for one in answers:
            try:
                other = self._other(one.urls, at_supervisor)
                answers.add(one, other._ask_here(one.question, answers.timeout(self._timeout)))
            except ZsqError as error:
                answers.fail(one, error)
        return answers.combined()

    def _ask_here(self, question: Question, timeout: float | None) -> Reply:
        """Send a request about a part to the broker that has it."""
        try:
            return self._reply_within(self._send(question), timeout)
        except HasParts as error:
            raise moved(error) from None

    def _send(self, question: Question) -> Request:
        """Send a request. `_reply` waits for the reply."""
        self._check_open()
        drive = self._made
        if drive is None or drive.pid != os.getpid():
            drive = ours(lambda: self._made, self._make)
        with drive.lock:
            return drive.engine.begin(question)

    def _give_up(self, request: Request) -> None:
        """Do not wait for the reply any more."""
        drive = self._made
        if drive is not None and drive.pid == os.getpid():
            with drive.lock:
                drive.engine.give_up(request)

    def _reply(self, request: Request) -> Reply:
        """Return the reply and its blocks, or raise the error. The time-out begins now."""
        return self._reply_within(request, self._timeout)

    def _reply_within(self, request: Request, timeout: float | None) -> Reply:
        """Return the reply, but wait for this time at most."""
        drive = self._made
        if drive is None or drive.pid != os.getpid():
            raise Refused(
                E_CLOSING,
                (
                    "this client was closed, or the request belongs to another process; make a new "
                    "client"
                ),
            )
        return drive.carry_out(drive.engine.reply(request, timeout))

    def _make(self, inherited: Drive[RequestEngine] | None) -> Drive[RequestEngine]:
        self._made = Drive(self._engine(), hasty=self._hasty)
        self._made.belong_to(self, self._client_name)
        return self._made

    def close(self, timeout: float | None = None) -> None:
        """Close the connections to the brokers."""
        self._closed = True
        others, self._others = self._others, {}
        for other in others.values():
            other.close(timeout)
        drive, self._made = self._made, None
        if drive is None:
            return
        if drive.pid != os.getpid():
            inherit(drive)
            return
        with drive.lock:
            drive.stop(linger_ms=200)
        drive.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AskerPlace(ClientAddress):
    """The arguments of a client of another broker."""

    timeout: float | None


def at_supervisor(**place: Unpack[AskerPlace]) -> Asker:
    """Return a client of the supervisor of another broker, which answers about its parts."""
    return Asker(
        place["url"],
        Target("supervisor"),
        place["timeout"],
        key_file=place["key_file"],
        transport=place["transport"],
    )

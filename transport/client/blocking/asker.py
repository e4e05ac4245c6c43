"""Askers: the base of the clients that send requests to one target and wait for the replies.

`AskerBase` is shared with asyncio. `Asker` sends one request at a time for each thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypedDict, TypeVar

from ...errors import E_CLOSING, Refused, ZsqError
from ...wire.address import Space, Target
from ...wire.addresses import Addresses, Url, parse_all
from ...wire.credentials import KeyFile
from ...wire.spread import near
from ..core.asking import Asking, Errand, Question, Reply, ask_parts
from ..core.requester import Request, RequestEngine
from .client_base import BlockingClient, ClientBase
from .drive import Drive
from .producer import check_times
from .program_end import ClientName, name_of

_DriveT = TypeVar("_DriveT")
_T = TypeVar("_T")
_QuestionT = TypeVar("_QuestionT")
_ReplyT = TypeVar("_ReplyT")


class ClientAddress(TypedDict):
    """The arguments of a client that say where the broker is."""

    url: Url
    key_file: KeyFile
    transport: str


class AskerBase(ClientBase[_DriveT]):
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
        self._patient = patient
        self._closed = False
        # Clients of the brokers that have parts of topics, by their addresses.
        self._others: dict[tuple[str, ...], Any] = {}
        super().__init__()

    def _engine(self) -> RequestEngine:
        return RequestEngine(self._address, self._target, patient=self._patient)

    def _same_place(self) -> ClientAddress:
        """Return the arguments of another client for the same broker."""
        address = self._address
        return {
            "url": address.url,
            "key_file": address.credentials,
            "transport": "auto" if address.auto else "tcp",
        }

    def _near(self, urls: Sequence[str]) -> Addresses:
        """Return addresses that the broker has named. See `named_by`."""
        drive: Any = self._made
        return near(self._address, urls, Space.WORLD if drive is None else drive.engine.link.space)

    def _supervisor_of(self, place: ClientAddress) -> Any:
        """Return a client of the supervisor of another broker."""
        raise NotImplementedError

    def _other(self, urls: tuple[str, ...]) -> Any:
        """Return the client of the supervisor of another broker. It is closed with this one.

        Threads may do this at the same time. Then one of two new clients is used, and the other one
        is dropped before it has connected.
        """
        if urls not in self._others:
            place = self._same_place()
            place["url"] = self._near(urls)
            other = self._supervisor_of(place)
            other._client_name = None  # it has no name of its own in warnings
            self._others.setdefault(urls, other)
        return self._others[urls]

    def _drive(self) -> _DriveT:
        if self._closed:
            raise Refused(E_CLOSING, "this client is closed; make a new one")
        return super()._drive()

    def _reply_to(self, errand: Errand) -> Any:
        """Send a request to the broker that the errand names, and return the reply."""
        asker: Any = self._other(errand.urls) if errand.urls else self
        drive = asker._drive()
        return drive.carry_out(drive.engine.ask_within(errand.question, errand.timeout))


def named_by(client: AskerBase[Any], urls: Sequence[str]) -> Addresses:
    """Return addresses that the broker of this client has named, as the `url` of another client.

    Raises `UsageError` if one of them is not a tcp:// address. The other client goes only to those
    that the rules of `wire/address.py` allow.
    """
    return client._near(urls)


class Asker(AskerBase[Drive[RequestEngine]], BlockingClient[Drive[RequestEngine]]):
    """A client of one target, with one request at a time for each thread.

    It may be used in forked children, like the other clients.
    """

    def _supervisor_of(self, place: ClientAddress) -> Asker:
        return Asker(target=Target("supervisor"), timeout=self._timeout, **place)

    def _carry_out(self, asking: Asking[_T]) -> _T:
        """Run the generator: send its questions and return its result."""
        return _run(asking, self._ask)

    def _ask(self, question: Question) -> Reply:
        """Send a request and return the reply. If it is about parts, ask their brokers."""
        return _run(ask_parts(question, self._timeout), self._reply_to)

    def _send(self, question: Question) -> Request:
        """Send a request. `_reply` waits for the reply."""
        drive = self._drive()
        with drive.lock:
            return drive.engine.begin(question)

    def _give_up(self, request: Request) -> None:
        """Do not wait for the reply any more."""
        drive = self._made
        if drive is not None:
            with drive.lock:
                drive.engine.give_up(request)

    def _reply(self, request: Request) -> Reply:
        """Return the reply and its blocks, or raise the error. The time-out begins now."""
        drive = self._made
        if drive is None:
            text = "this client was closed, or the request belongs to another process"
            raise Refused(E_CLOSING, f"{text}; make a new client")
        return drive.carry_out(drive.engine.reply(request, self._timeout))

    def close(self, timeout: float | None = None) -> None:
        """Close the connections to the brokers."""
        self._closed = True
        others, self._others = self._others, {}
        for other in others.values():
            other.close(timeout)
        drive, self._last_drive = self._made, None
        if drive is not None:
            drive.leave(linger_ms=200)


def _run(steps: Generator[_QuestionT, _ReplyT, _T], answer: Callable[[_QuestionT], _ReplyT]) -> _T:
    """Run the generator: send it the answer to each question, or throw the error into it."""
    try:
        question = next(steps)
        while True:
            try:
                reply = answer(question)
            except ZsqError as error:
                question = steps.throw(error)
            else:
                question = steps.send(reply)
    except StopIteration as end:
        result: _T = end.value
        return result

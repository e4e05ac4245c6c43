"""Requests and their answers: the engine below Admin and Reader. Nothing here waits."""

from __future__ import annotations

import time
from typing import Any, Final

from .address import ADVICE, Address, Target
from .block import Block, check_columns
from .codec import encode
from .engine import Engine
from .errors import (
    E_BAD_COMMAND,
    E_LIMIT,
    E_TIMEOUT,
    E_TOPIC_FAILED,
    E_UNREACHABLE,
    BrokerUnreachable,
    UsageError,
    ZsqError,
    from_wire,
)
from .link import AGAIN, Link
from .protocol import Blocks, Done, Failed, Wire
from .session import Reaction

IDLE_NS: Final = 20_000_000_000  # a link that was silent for so long is opened anew: its other end may have forgotten it

PASSING: Final = frozenset({E_LIMIT, E_TOPIC_FAILED})  # refusals of a link that a patient asker waits out


class Request:
    """One request on its way. `repeatable`: asking twice does no harm, so it is sent again when the link is lost."""

    __slots__ = ("answer", "blocks", "done", "error", "number", "repeatable", "sent", "word")

    def __init__(self, number: int, word: Wire, repeatable: bool) -> None:
        self.number = number
        self.word = word
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
    """Requests by number, over one link; its peer. `patient`: what the broker refuses for now is asked again until the time-out."""

    def __init__(self, address: Address, target: Target, *, patient: bool = False) -> None:
        super().__init__()
        self.address = address
        self.target = target
        self.link = Link(self, address, target, self, again=AGAIN | PASSING if patient else AGAIN)
        self.add(self.link)
        self._requests: dict[int, Request] = {}
        self._number = 0

    def number(self) -> int:
        self._number += 1
        return self._number

    def ask(self, number: int, word: Wire, *, repeatable: bool) -> Request:
        """`word` carries `number`. It is sent as soon as there is a link."""
        now = time.monotonic_ns()
        request = self._requests[number] = Request(number, word, repeatable)
        if self.link.up and now - self.link.heard_ns > IDLE_NS:
            self.link.restart(now, "idle", at_once=True)
        elif self.link.up:
            self._send(request, now)
            self.link.receive(now)
        else:
            self.link.start(now)
        return request

    def give_up(self, request: Request) -> None:
        self._requests.pop(request.number, None)

    def _send(self, request: Request, now_ns: int) -> None:
        request.sent = True
        self.link.send([b"", encode(request.word)], now_ns)

    # The link's peer

    def greeting(self) -> Wire | None:
        return None

    def on_up(self, now_ns: int) -> None:
        for request in list(self._requests.values()):
            self._send(request, now_ns)
        self.sooner(0)  # the sends may have taken the news of answers with them

    def on_word(self, word: Wire, blocks: list[Block], now_ns: int) -> Reaction:
        if not isinstance(word, Done | Failed | Blocks):
            raise UsageError(E_BAD_COMMAND, f"{type(word).__name__} answers no request")
        for block in blocks:
            check_columns(block.header, block.columns)
        request = self._requests.pop(word.request, None)
        if request is not None:
            request.blocks = blocks
            request.settle(word, from_wire(word.code, word.text) if isinstance(word, Failed) else None)
        return Reaction.NOTHING

    def on_received(self, now_ns: int) -> None:
        """Answers settle requests; nothing more is to be sent."""

    def on_lost(self) -> None:
        for number, request in list(self._requests.items()):
            if request.sent and not request.repeatable:
                del self._requests[number]
                text = f"the link to {self.address.url} was lost before the answer; look whether {self.target} did it before you ask again"
                request.settle(error=BrokerUnreachable(E_UNREACHABLE, text))

    def on_refused(self, error: ZsqError) -> None:
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.settle(error=error)

    def too_late(self, timeout: float) -> ZsqError:
        refusal = self.link.refusal
        if refusal is not None and refusal.code in PASSING:
            return from_wire(refusal.code, f"{self.target} at {self.address.url} could not be reached for {timeout:g} s: {refusal.text}")
        why = self.link.trouble or ("no answer" if self.link.up else self.link.state.value)
        text = f"{self.target} at {self.address.url} did not answer within {timeout:g} s ({why}). {ADVICE}"
        return BrokerUnreachable(E_TIMEOUT, text)

"""Consumer session of the NSQ gateway: it reports refusals, so that clients learn of them.

It is a session of the client library. It does not know the ids of NSQ's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ....transport.block.block import Block
from ....transport.client.core.confirm import Confirm
from ....transport.client.core.consumer_session import ConsumerSession, LeasedBlock
from ....transport.client.link.reaction import Reaction
from ....transport.wire.protocol import Answer, Deliver, Run, Touch

# The most answered deliveries whose runs are kept, to name the messages of a refusal. A refusal
# arrives within milliseconds.
ANSWERED_MAX: Final = 1_000


class ReportingSession(ConsumerSession):
    """A session that reports deliveries and refusals.

    If a delivery was answered as a whole or touched, the channel's refusal does not name messages.
    So the runs of the most recently answered deliveries are kept by token.
    """

    on_refused: Callable[[ReportingSession, int, Sequence[tuple[int, int]]], None]
    on_arrived: Callable[[ReportingSession, int], None]

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, reports=False)
        self.answered: dict[int, Sequence[Run]] = {}

    def _note(self, delivery: LeasedBlock, indexes: Sequence[int]) -> None:
        super()._note(delivery, indexes)
        if len(indexes) == delivery.block.count:
            self.answered[delivery.token] = delivery.runs
            if len(self.answered) > ANSWERED_MAX:
                del self.answered[next(iter(self.answered))]

    def _fin(self, delivery: LeasedBlock, indexes: Sequence[int], request: int) -> None:
        """Finish messages. Nobody asks whether the finishes are committed, so nobody must confirm
        it.
        """
        super()._fin(delivery, indexes, request)
        self.unconfirmed = 0

    def lower_ready(self, ready: int) -> Confirm:
        """Lower the credit. When the Confirm is done, all deliveries above it have arrived.

        The question is a Touch, because the channel answers it without a commit.
        """
        self.set_ready(ready)
        confirm = Confirm()
        self._request += 1
        self.confirms[self._request] = confirm
        self.words.append(Touch(self._request, 0))
        return confirm

    def on_deliver(self, message: Deliver, blocks: list[Block], now_ns: int) -> Reaction:
        reaction = super().on_deliver(message, blocks, now_ns)
        self.on_arrived(self, blocks[0].count)
        return reaction

    def on_answer(self, message: Answer) -> Reaction:
        if message.refused:
            self.on_refused(self, message.token, message.refused)
        return super().on_answer(message)

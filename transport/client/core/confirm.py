"""Confirm: the outcome of a request of a consumer, for whoever waits for it or relies on it."""

from __future__ import annotations

from ...errors import ZsqError
from ...wire.protocol import Range


class Confirm:
    """The outcome of a request.

    When `done` is set, `refused` holds the ranges whose lease had ended, and `error` the failure.
    `wanted` is True if somebody relies on it who does not wait for it, see `AnswerMemory`.
    """

    __slots__ = ("done", "error", "refused", "wanted")

    def __init__(self) -> None:
        self.done = False
        self.wanted = False
        self.refused: tuple[Range, ...] = ()
        self.error: ZsqError | None = None

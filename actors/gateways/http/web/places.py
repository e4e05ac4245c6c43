"""Places: how many streams of a kind are open at the same time.

A stream takes its place before its handler waits for anything, so that requests that come together
cannot exceed the limit. It gives the place back when its response ends. That is not left to the
generator of its pieces: if the client leaves before the first piece, the generator never begins,
and nothing in it is carried out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .responses import ApiError


class Places:
    """Places for `most` streams. `text` says what the limit is and what to do."""

    def __init__(self, most: int, text: str) -> None:
        self.most = most
        self.taken = 0
        self._text = text

    @contextmanager
    def place(self) -> Iterator[ExitStack]:
        """Take a place, and give it back at the end unless a `Stream` has taken it over.

        Raises `ApiError` (503) if all are taken.
        """
        if self.taken >= self.most:
            raise ApiError(503, f"E_LIMIT {self._text}", hint={"retry-after": "5"})
        self.taken += 1
        with ExitStack() as held:
            held.callback(self._free)
            yield held

    def _free(self) -> None:
        self.taken -= 1


class Stream(StreamingResponse):
    """A response of many pieces, which takes over a place and gives it back when it has ended."""

    def __init__(
        self, held: ExitStack, pieces: AsyncIterator[bytes], headers: Mapping[str, str], kind: str
    ) -> None:
        super().__init__(pieces, 200, headers, media_type=kind)
        self.place = held.pop_all()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.place:
            await super().__call__(scope, receive, send)

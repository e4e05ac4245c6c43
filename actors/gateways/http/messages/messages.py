"""Paths about the messages of a topic: search, download and live tail."""

from __future__ import annotations

from collections.abc import Callable

from .....transport.client.asyncio.aio import Reader
from ..web.authority import Handler
from ..web.places import Limiters
from .search_handlers import Node, SearchHandlers
from .tail_handlers import TailHandlers


class MessagePaths:
    """The handlers of these paths. `node` returns the number of the broker's node, for ids."""

    def __init__(
        self, open_reader: Callable[[str], Reader], node: Node, limiters: Limiters
    ) -> None:
        self.search = SearchHandlers(open_reader, node, limiters)
        self.tail = TailHandlers(open_reader, node, limiters)

    def paths(self) -> dict[str, dict[str, Handler]]:
        return {
            "/api/search": {"GET": self.search.search},
            "/api/download": {"GET": self.search.download},
            "/api/tail": {"GET": self.tail.tail},
        }

    def close(self) -> None:
        self.tail.close()

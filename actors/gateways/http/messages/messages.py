"""Paths about the messages of a topic: search, download and live tail."""

from __future__ import annotations

from ..console.source import Open
from ..web.authority import Handler
from .searching import Node, Searching
from .tailing import Tailing


class MessagePaths:
    """The handlers of these paths. `node` returns the number of the broker's node, for ids."""

    def __init__(self, open_reader: Open, node: Node) -> None:
        self.searching = Searching(open_reader, node)
        self.tailing = Tailing(open_reader, node)

    def paths(self) -> dict[str, dict[str, Handler]]:
        return {
            "/api/search": {"GET": self.searching.search},
            "/api/download": {"GET": self.searching.download},
            "/api/tail": {"GET": self.tailing.tail},
        }

    def renew(self) -> None:
        """End all streams because of new permissions."""
        self.searching.rules += 1
        self.tailing.renew()

    def close(self) -> None:
        self.tailing.close()

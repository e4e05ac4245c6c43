"""The board as one watcher may see it: whole, and what changed since a tick. Pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ..rights import Rights
from .board import Board, Row

_MS: Final = 1_000_000


class View(NamedTuple):
    """`topic`: only this one, "" for all; `channels`: the rows of channels too."""

    rights: Rights
    topic: str = ""
    channels: bool = False

    def whole(self, board: Board) -> dict[str, Any]:
        return self._since(board, -1) | {"broker": self._broker(board)}

    def changes(self, board: Board, tick: int) -> dict[str, Any] | None:
        """What is different from what it was at that tick; None for nothing. The whole again, where that is not known any more."""
        if not board.knows_since(tick):
            return {**self.whole(board), "whole": True}
        found = self._since(board, tick)
        if board.broker_tick > tick:
            found["broker"] = self._broker(board)
        gone = self._gone(board, tick)
        if any(gone.values()):
            found["gone"] = gone
        return found if found.keys() - {"now_ms", "topics"} or found["topics"] else None

    def alarms(self, found: dict[str, Any]) -> dict[str, Any]:
        """`found` as the overview has it: now, recent, receivers."""
        rights = self.rights
        now = [{**row, "raised_ms": row["raised_ns"] // _MS} for row in found["now"] if rights.may_view(row["topic"])]
        recent = [{**row, "time_ms": row["time_ns"] // _MS} for row in found["recent"] if rights.may_view(row["topic"])]
        for row in (*now, *recent):
            for name in ("raised_ns", "time_ns"):  # more than JavaScript's numbers hold
                row.pop(name, None)
        return {"now": now, "recent": recent, "receivers": list(found["receivers"]) if rights.is_broker_admin else []}

    def _since(self, board: Board, tick: int) -> dict[str, Any]:
        topics: dict[str, Any] = {}
        for name, row in board.rows(self.rights.may_view, self.topic):
            told = row.since(tick) if row.changed > tick else {}
            if row.born > tick:
                told["may"] = self._may(name)
            if self.channels:
                channels = {channel: self._channel(name, channel, own, tick) for channel, own in row.channels.items() if own.changed > tick}
                if channels or tick < 0:
                    told["channels"] = channels
            if told:
                topics[name] = told
        return {"now_ms": board.now_ms, "topics": topics}

    def _channel(self, topic: str, name: str, row: Row, tick: int) -> dict[str, Any]:
        told = row.since(tick)
        if row.born > tick:
            told["may"] = ("a" if self.rights.may_admin(topic, name) else "") + ("s" if self.rights.may_subscribe(topic, name) else "")
        return told

    def _may(self, topic: str) -> str:
        rights = self.rights
        may = {"a": rights.may_admin(topic), "s": rights.may_subscribe(topic), "p": rights.may_publish(topic)}
        return "".join(letter for letter, is_so in may.items() if is_so)

    def _broker(self, board: Board) -> dict[str, Any]:
        told = {name: value for name, value in board.broker.items() if name != "alarmed_ns"}
        if not self.rights.sees_all:
            told = {name: value for name, value in told.items() if name in ("version", "node", "uuid", "start_ms")}
            told["health"] = "OK" if board.broker["health"] == "OK" else "a topic is not well"
        return told | {"user": self.rights.name, "may": {"admin": self.rights.is_broker_admin, "all": self.rights.sees_all}}

    def _gone(self, board: Board, tick: int) -> dict[str, list[Any]]:
        topics: list[str] = []
        channels: list[list[str]] = []
        for topic, channel in board.gone_since(tick):
            row = board.topics.get(topic)
            if self.topic not in ("", topic) or not self.rights.may_view(topic):
                continue
            if not channel and (row is None or row.born > tick):
                topics.append(topic)
            elif channel and row is not None and self.channels:
                own = row.channels.get(channel)
                if own is None or own.born > tick:
                    channels.append([topic, channel])
        return {"topics": topics, "channels": channels}

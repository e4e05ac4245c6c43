"""Row of a channel: its cursor, settings and counters, as a map in the state store and in messages.

Each version of ZSQ may add names to the map. So a row keeps the map from which it was read. Names
that this version does not know are written back unchanged, and all names keep their order. Nothing
here does I/O.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...transport.settings import ChannelOptions

_KINDS: Final = {
    "next": int, "paused": bool, "created_ns": int, "counters": dict, "settings": dict, "first": int, "begin": int, "emptied": tuple,
    "clock_ns": int, "limit_full_ns": int, "revoked": tuple,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """The row of a channel. `next_offset` is the channel's cursor.

    None means that the map does not contain the name. An import from nsqd writes only the first
    four names.
    """

    next_offset: int
    paused: bool = False
    created_ns: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    settings: ChannelOptions | None = None
    """The settings that a user has set. All other settings have their defaults."""
    first: int | None = None
    """For an ephemeral channel: its lowest offset that is neither finished nor deferred."""
    begin: int | None = None
    """The offset at which the channel began. A seek back lowers it, so it may be below 0."""
    emptied: tuple[tuple[int, int], ...] | None = None
    """Ranges of offsets after the cursor that were removed when the topic was emptied.

    The channel skips them.
    """
    clock_ns: int | None = None
    """The due clock at the last commit with deferred messages (actors/channel/due_clock.py)."""
    limit_full_ns: int | None = None
    """When the bucket of the channel's rate is full (actors/channel/rate_limit.py)."""
    revoked: tuple[tuple[str, int], ...] | None = None
    """Revoked keys, each with the end of the messages that it cancels."""
    written: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    """The map from which the row was read."""

    @classmethod
    def decode(cls, row_map: object) -> ChannelRow:
        """Return the row that this map describes. Raises `ValueError` if the map is not a row."""
        if not isinstance(row_map, dict) or "next" not in row_map:
            raise ValueError(
                f"a channel's row must be a map with its cursor `next`, not {reprlib.repr(row_map)}"
            )
        for name, kind in _KINDS.items():
            if name in row_map and type(row_map[name]) is not kind:
                raise ValueError(
                    f"{name} of a channel's row must be of type {kind.__name__}, not {reprlib.repr(row_map[name])}"
                )
        return cls(
            row_map["next"], row_map.get("paused", False), row_map.get("created_ns"), row_map.get("counters", {}), row_map.get("settings"),
            row_map.get("first"), row_map.get("begin"), row_map.get("emptied"), row_map.get("clock_ns"),
            row_map.get("limit_full_ns"), row_map.get("revoked"), row_map,
        )  # fmt: skip

    def encode(self) -> dict[str, object]:
        """Return the map. New names are after the names of the map from which the row was read."""
        values = {
            "next": self.next_offset, "paused": self.paused, "created_ns": self.created_ns, "counters": self.counters,
            "settings": self.settings, "first": self.first, "begin": self.begin, "emptied": self.emptied,
            "clock_ns": self.clock_ns, "limit_full_ns": self.limit_full_ns, "revoked": self.revoked,
        }  # fmt: skip
        return {
            **self.written,
            **{name: value for name, value in values.items() if value is not None},
        }

    def changed(self, changes: Mapping[str, object]) -> ChannelRow:
        """Return the row with changed values for these names. Raises `ValueError` like `decode`."""
        return ChannelRow.decode({**self.encode(), **changes})

"""Row of a channel: its cursor, settings and counters, as a map in the state store and in messages.

Versions have added names to the map, and a newer version may add more. So a row keeps the map that
it was read from. Names that this version does not know are written back unchanged, and names keep
their order. Nothing here does I/O.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...transport.settings import ChannelOptions

_KINDS: Final = {
    "next": int, "paused": bool, "created_ns": int, "counters": dict, "settings": dict, "first": int, "begin": int, "emptied": tuple,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """The row of a channel. `next_offset` is the channel's cursor.

    None means that the map does not contain the name. Version 0.1.0 wrote only the first four.
    """

    next_offset: int
    paused: bool = False
    created_ns: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    settings: ChannelOptions | None = None
    """The settings that were set. All others have their defaults."""
    first: int | None = None
    """The lowest offset of an ephemeral channel that is neither finished nor deferred."""
    begin: int | None = None
    """The offset where the channel began. A seek back lowers it, so it may be below 0."""
    emptied: tuple[tuple[int, int], ...] | None = None
    """Ranges of offsets ahead of the cursor that the topic was emptied of.

    The channel skips them.
    """
    written: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    """The map that the row was read from."""

    @classmethod
    def decode(cls, found: object) -> ChannelRow:
        """Return the row that this map describes. Raises `ValueError` if the map is not a row."""
        if not isinstance(found, dict) or "next" not in found:
            raise ValueError(
                f"a channel's row must be a map with its cursor `next`, not {reprlib.repr(found)}"
            )
        for name, kind in _KINDS.items():
            if name in found and type(found[name]) is not kind:
                raise ValueError(
                    f"{name} of a channel's row must be of type {kind.__name__}, not {reprlib.repr(found[name])}"
                )
        return cls(
            found["next"], found.get("paused", False), found.get("created_ns"), found.get("counters", {}), found.get("settings"),
            found.get("first"), found.get("begin"), found.get("emptied"), found,
        )  # fmt: skip

    def encode(self) -> dict[str, object]:
        """Return the map. New names follow those of the map that the row was read from."""
        values = {
            "next": self.next_offset, "paused": self.paused, "created_ns": self.created_ns, "counters": self.counters,
            "settings": self.settings, "first": self.first, "begin": self.begin, "emptied": self.emptied,
        }  # fmt: skip
        return {
            **self.written,
            **{name: value for name, value in values.items() if value is not None},
        }

    def changed(self, changes: Mapping[str, object]) -> ChannelRow:
        """Return the row with these names of its map changed. Raises `ValueError` like `decode`."""
        return ChannelRow.decode({**self.encode(), **changes})

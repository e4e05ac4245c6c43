"""The row of a channel: where it is, how it is set and what it has counted, as a map in the state store and in messages. Pure.

Versions have added names to the map, and a newer one may add more. So a row keeps the map that it was read from: what a version does
not know goes back as it was, and names stay in their order.
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
    """`next_offset`: the channel's cursor. None: the row does not have this name; 0.1.0 wrote the first four only."""

    next_offset: int
    paused: bool = False
    created_ns: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    settings: ChannelOptions | None = None
    """The settings that were made; all others follow their defaults."""
    first: int | None = None
    """The lowest offset that is not finished, of an ephemeral channel: storage keeps none of its holes."""
    begin: int | None = None
    """Where it began. Lower by what it went back, so it may be below 0."""
    emptied: tuple[tuple[int, int], ...] | None = None
    """Ranges of offsets before the end of a pause that are not delivered."""
    written: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)
    """The map that it was read from."""

    @classmethod
    def decode(cls, found: object) -> ChannelRow:
        """Return the row that this map is. `ValueError` where it is none."""
        if not isinstance(found, dict) or "next" not in found:
            raise ValueError(f"a channel's row is a map with its cursor `next`, not {reprlib.repr(found)}")
        for name, kind in _KINDS.items():
            if name in found and type(found[name]) is not kind:
                raise ValueError(f"{name} of a channel's row is of type {kind.__name__}, not {reprlib.repr(found[name])}")
        return cls(
            found["next"], found.get("paused", False), found.get("created_ns"), found.get("counters", {}), found.get("settings"),
            found.get("first"), found.get("begin"), found.get("emptied"), found,
        )  # fmt: skip

    def encode(self) -> dict[str, object]:
        """Return the map. Names that are new in it follow those of the map that the row was read from."""
        values = {
            "next": self.next_offset, "paused": self.paused, "created_ns": self.created_ns, "counters": self.counters,
            "settings": self.settings, "first": self.first, "begin": self.begin, "emptied": self.emptied,
        }  # fmt: skip
        return {**self.written, **{name: value for name, value in values.items() if value is not None}}

    def changed(self, changes: Mapping[str, object]) -> ChannelRow:
        """Return the row with these names of its map changed. `ValueError` as `decode`."""
        return ChannelRow.decode({**self.encode(), **changes})

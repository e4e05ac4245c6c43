"""Tests of a channel's row: the bytes that all versions so far have written can be read, and fields
of a newer version are kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from zsq.storage.errors import ForeignDirectory
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state_rows import CHANNEL, StateBatch, Table, small_puts, take_row
from zsq.transport.wire.codec import pack_value

# {"next": 5, "begin": 2, "paused": False, "created_ns": 10**18, "counters": {"finish_count": 3},
# "settings": {"ordered": True}}
NEW = bytes.fromhex(
    "86a46e65787405a5626567696e02a6706175736564c2aa637265617465645f6e73cf0de0b6b3a7640000"
    "a8636f756e7465727381ac66696e6973685f636f756e7403a873657474696e677381a76f726465726564c3"
)
# The same row after a commit of its channel: {..., "emptied": ((7, 9),)}
SAVED = bytes.fromhex(
    "87a46e65787406a5626567696e02a6706175736564c2aa637265617465645f6e73cf0de0b6b3a7640000"
    "a8636f756e7465727381ac66696e6973685f636f756e7404"
    "a873657474696e677381a76f726465726564c3a7656d7074696564919207" + "09"
)
# Written by version 0.1.0, and by an import from nsqd: {"next": 5, "paused": True, "created_ns": 1,
# "counters": {}}
FIRST = bytes.fromhex("84a46e65787405a6706175736564c3aa637265617465645f6e7301a8636f756e7465727380")
# The same row after a commit of its channel: {..., "settings": {}, "begin": 5, "emptied": ()}
FIRST_SAVED = bytes.fromhex(
    "87a46e65787405a6706175736564c3aa637265617465645f6e7301"
    "a8636f756e7465727380a873657474696e677380a5626567696e05a7656d707469656490"
)
# The row of an ephemeral channel: {"next": 5, "paused": False, "counters": {}, "settings": {},
# "first": 3, "begin": -1, "emptied": ()}
SAID = bytes.fromhex(
    "87a46e65787405a6706175736564c2a8636f756e7465727380"
    "a873657474696e677380a5666972737403a5626567696effa7656d707469656490"
)


def read(data: bytes) -> ChannelRow:
    table = Table()
    take_row(table, CHANNEL + b"c", data)
    return table.channels["c"]


def written(row: ChannelRow) -> bytes:
    return small_puts(StateBatch(channel_puts={"c": row}))[CHANNEL + b"c"]


@pytest.mark.parametrize("data", [NEW, SAVED, FIRST, FIRST_SAVED, SAID])
def test_a_row_is_written_as_it_was_read(data: bytes) -> None:
    assert written(read(data)) == data


def test_a_commit_leaves_the_names_in_their_order() -> None:
    said = ChannelRow(
        6, counters={"finish_count": 4}, settings={"ordered": True}, begin=2, emptied=((7, 9),)
    )
    assert written(read(NEW).changed(said.encode())) == SAVED
    assert read(SAVED) == replace(said, created_ns=10**18)


def test_a_row_of_the_first_version_gets_its_missing_fields() -> None:
    assert written(ChannelRow(5, True, 1)) == FIRST
    assert (
        written(read(FIRST).changed(ChannelRow(5, True, settings={}, begin=5, emptied=()).encode()))
        == FIRST_SAVED
    )


def test_the_fields_of_a_row_are_encoded_in_a_fixed_order() -> None:
    assert pack_value(ChannelRow(5, settings={}, first=3, begin=-1, emptied=()).encode()) == SAID


def test_fields_added_by_a_newer_version_are_kept() -> None:
    data = pack_value({"next": 5, "colour": {"red": 1}, "paused": False, "counters": {}})
    row = replace(read(data), next_offset=4).changed({"paused": True})
    assert written(row) == pack_value(
        {"next": 4, "colour": {"red": 1}, "paused": True, "counters": {}}
    )


@pytest.mark.parametrize(
    "found",
    [{}, {"paused": True}, {"next": "5"}, {"next": True}, {"next": 5, "counters": ()}, (5,), None],
)
def test_bytes_that_are_no_row_are_refused_as_of_another_version(found: Any) -> None:
    with pytest.raises(ForeignDirectory, match=r"channel's row .* use a newer zsq"):
        read(pack_value(found))

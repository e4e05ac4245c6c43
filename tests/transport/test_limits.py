"""What the client and the wire take at most: the last value that goes, and the first that does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from crc32c import crc32c

from zsq.transport import channel_options, client, lane
from zsq.transport import protocol as p
from zsq.transport.block import pack, with_place
from zsq.transport.block_format import BLOCK_COUNT_MAX, decode_header
from zsq.transport.errors import E_BAD_BLOCK, NotFound, UsageError
from zsq.transport.lane import ProducerEngine
from zsq.transport.stored import Fetched, parse_id, stored


def test_a_block_of_another_version_is_refused() -> None:
    head = pack([b"x"]).wire_header()
    assert decode_header(head).count == 1
    other = head[:4] + (int.from_bytes(head[4:6], "little") + 1).to_bytes(2, "little") + head[6:-4]
    with pytest.raises(UsageError, match="block version") as refused:
        decode_header(other + crc32c(other).to_bytes(4, "little"))
    assert refused.value.code == E_BAD_BLOCK


def test_a_producers_batches_are_bounded() -> None:
    address = cast("Any", SimpleNamespace(heartbeat_ms=1_000))
    engine = ProducerEngine(address, 1, 1 << 40, 1 << 40, None)
    assert (engine.batch_bytes, engine.batch_count) == (lane.BATCH_BYTES_MAX, BLOCK_COUNT_MAX)
    engine = ProducerEngine(address, 1, 10, 20, None)
    assert (engine.batch_bytes, engine.batch_count) == (10, 20)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_setting_fits_into_a_word(sign: int) -> None:
    most = channel_options.SETTING_MAX
    assert channel_options.on_wire({"max_consumers": sign * most}) == {"max_consumers": sign * most}
    with pytest.raises(UsageError, match="is a number up to"):
        channel_options.on_wire({"max_consumers": sign * (most + 1)})
    assert channel_options.place(most) == most
    for where in (most + 1, -1, most / 1e9, -most / 1e9):
        with pytest.raises(UsageError, match="a place is"):
            channel_options.place(where)


def test_the_newest_are_a_bounded_number() -> None:
    for count in (1, client.NEWEST_MAX):
        assert client.newest(count)(7) == p.OffsetAt(7, 0, count)
    for count in (0, client.NEWEST_MAX + 1):
        with pytest.raises(UsageError, match="newest"):
            client.newest(count)
    with pytest.raises(UsageError):
        client.measure(0, 5, 0)


def test_a_message_is_found_in_its_block_only() -> None:
    found = Fetched(0, 100, [with_place(pack([b"a", b"b", b"c"]), 10, 1)], 13)
    assert [stored("t", offset, found).body for offset in (10, 12)] == [b"a", b"c"]
    for offset in (9, 13):
        with pytest.raises(NotFound, match="it is lost"):
            stored("t", offset, found)


def test_an_id_has_16_digits_and_an_offset_fewer() -> None:
    assert parse_id("0" * 15) == (None, 0)
    assert parse_id("0040000000000005") == (1, 5)
    for text in ("0" * 17, "00400000000000050", "0" * 14 + "é", "", "12a"):
        with pytest.raises(UsageError, match="neither an offset"):
            parse_id(text)

"""Tests of the limits of the client and of the wire: the largest value that is accepted, and the
smallest one that is not.
"""

from __future__ import annotations

from typing import Any

import pytest
import zmq
from crc32c import crc32c

import zsq
from zsq.transport.block.block import pack, with_place
from zsq.transport.block.block_format import BLOCK_COUNT_MAX, MESSAGE_BYTES_MAX, decode_header
from zsq.transport.client.blocking import consumer
from zsq.transport.client.blocking.range_reader import RangeReader
from zsq.transport.client.core import asking as channel_options
from zsq.transport.client.core import peeking, reading
from zsq.transport.client.core.message import Fetched, parse_id, stored
from zsq.transport.client.core.packing import BATCH_BYTES_MAX, pack_many
from zsq.transport.client.core.producer_engine import ProducerEngine
from zsq.transport.client.core.publish_arguments import as_delay_ms
from zsq.transport.errors import E_BAD_BLOCK, E_TOO_BIG, NotFound, UsageError
from zsq.transport.names import check_name
from zsq.transport.wire import protocol as p
from zsq.transport.wire.address import IPC_PATH_BYTES_MAX, parse
from zsq.transport.wire.codec import encode, frames_blocks
from zsq.transport.wire.sockets import open_frames


def test_a_block_of_another_version_is_refused() -> None:
    head = pack([b"x"]).wire_header()
    assert decode_header(head).count == 1
    other = head[:4] + (int.from_bytes(head[4:6], "little") + 1).to_bytes(2, "little") + head[6:-4]
    with pytest.raises(UsageError, match="block version") as refused:
        decode_header(other + crc32c(other).to_bytes(4, "little"))
    assert refused.value.code == E_BAD_BLOCK


def test_a_producers_batches_are_bounded() -> None:
    address = parse("tcp://127.0.0.1:1")
    engine = ProducerEngine(address, 1, 1 << 40, 1 << 40, None)
    assert (engine.batch_bytes, engine.batch_count) == (BATCH_BYTES_MAX, BLOCK_COUNT_MAX)
    engine = ProducerEngine(address, 1, 10, 20, None)
    assert (engine.batch_bytes, engine.batch_count) == (10, 20)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_setting_that_does_not_fit_into_a_message_is_refused(sign: int) -> None:
    most = channel_options.SETTING_MAX
    assert channel_options.on_wire({"max_consumers": sign * most}) == {"max_consumers": sign * most}
    with pytest.raises(UsageError, match="must be a number up to"):
        channel_options.on_wire({"max_consumers": sign * (most + 1)})
    assert channel_options.place(most) == most
    for where in (most + 1, -1, most / 1e9, -most / 1e9):
        with pytest.raises(UsageError, match="a place must be"):
            channel_options.place(where)


def test_the_newest_are_a_bounded_number() -> None:
    for count in (1, reading.NEWEST_MAX):
        assert next(reading.newest(count)).make(7) == p.OffsetAt(7, 0, count)
    for count in (0, reading.NEWEST_MAX + 1):
        with pytest.raises(UsageError, match="newest"):
            next(reading.newest(count))
    with pytest.raises(UsageError):
        next(reading.measure(0, 5, 0))


def test_a_read_asks_for_something() -> None:
    """A broker would return a block even for 0 bytes. A caller that asks for 0 bytes has made a
    mistake, and would read more than it expects.
    """
    assert reading.fetch(0, 1).make(7) == p.Fetch(7, 0, 1)
    for offset, size in ((0, 0), (0, -1), (-1, 1)):
        with pytest.raises(UsageError, match="max_bytes at least 1"):
            reading.fetch(offset, size)


def test_a_message_is_found_in_its_block_only() -> None:
    block = with_place(pack([b"a", b"b", b"c"]), 10, 1)
    found = Fetched(0, 100, [block], 14, [(9, 1), (13, 1)])
    assert [stored("t", offset, found).body for offset in (10, 12)] == [b"a", b"c"]
    for offset in (9, 13):
        with pytest.raises(NotFound, match="it was damaged"):
            stored("t", offset, found)


def test_an_id_has_16_digits_and_an_offset_fewer() -> None:
    assert parse_id("0" * 15) == (None, 0)
    assert parse_id("0040000000000005") == (1, 5)
    for text in ("0" * 17, "00400000000000050", "0" * 14 + "é", "", "12a"):
        with pytest.raises(UsageError, match="neither an offset"):
            parse_id(text)


def test_more_than_offsets_can_say_is_cut_into_blocks() -> None:
    """Only the sum of the bodies is too large for one block. Each of them is allowed."""
    bodies = [bytes(MESSAGE_BYTES_MAX)] * 2_100
    blocks = pack_many(bodies, None, None, None)
    assert next(blocks).count == 5
    with pytest.raises(UsageError, match="send smaller batches") as refused:
        pack(bodies)
    assert refused.value.code == E_TOO_BIG


def test_names_are_of_64_characters_at_most() -> None:
    for name in ("n" * 64, "n" * 54 + "#ephemeral"):
        assert check_name(name) == name
    for name in ("n" * 65, "n" * 55 + "#ephemeral"):
        with pytest.raises(UsageError, match="not legal"):
            check_name(name)


def test_a_path_that_no_socket_can_have_is_told_at_once() -> None:
    """ZeroMQ would cut or refuse the path, and the client would search for a broker until its
    time-out.
    """
    room = IPC_PATH_BYTES_MAX - len("/supervisor")
    assert parse("ipc:///" + "d" * (room - 1)).endpoint().endswith("d/supervisor")
    with pytest.raises(UsageError, match="longer than"):
        parse("ipc:///" + "d" * room).endpoint()
    with zsq.Admin("ipc:///" + "d" * room) as admin, pytest.raises(UsageError, match="longer than"):
        admin.ping()


def test_the_number_of_frames_of_a_message_is_bounded() -> None:
    """The receiver makes an object for each frame."""
    block = pack([b"x"])
    head = [b"peer", b"", encode(p.Beat())]
    most = [block.wire_header(), bytes(block.columns)] * (p.FRAMES_MAX // 2)
    frames = [zmq.Frame(one) for one in (*head, *most)]
    envelope, message, payload = open_frames(frames)
    assert (envelope, message, len(frames_blocks(payload))) == (
        [b"peer"],
        p.Beat(),
        p.FRAMES_MAX // 2,
    )
    with pytest.raises(UsageError, match="an envelope, an empty frame"):
        open_frames([*frames, zmq.Frame(b"")])
    with pytest.raises(UsageError, match="at most"):
        frames_blocks([*most, *most[:2]])


@pytest.mark.parametrize("linger_ms", [0, 60_000])
def test_a_message_that_is_too_large_is_told_and_spoils_no_other(
    broker: Any, linger_ms: int
) -> None:
    """Together with messages that wait to be sent (linger), such a message would make a block that
    cannot be packed, and all messages of the block would fail.
    """
    with zsq.Producer(broker.url, linger_ms=linger_ms, batch_bytes=1 << 22) as producer:
        producer.publish("t", b"before")
        for body in (bytes(MESSAGE_BYTES_MAX + 1), bytearray(MESSAGE_BYTES_MAX + 1)):
            with pytest.raises(UsageError, match="over the limit") as refused:
                producer.publish("t", body)
            assert refused.value.code == E_TOO_BIG
        producer.publish("t", bytes(MESSAGE_BYTES_MAX))
    assert broker.bodies() == [b"before", bytes(MESSAGE_BYTES_MAX)]


def test_a_range_is_read_in_pieces_of_at_least_a_byte() -> None:
    for start, end, max_bytes in ((0, 1, 0), (-1, 1, 1), (2, 1, 1)):
        with pytest.raises(UsageError, match="max_bytes of at least 1, not start"):
            RangeReader("t", start, end, url="ipc:///nowhere", max_bytes=max_bytes)


def test_lingering_stops_while_too_much_is_not_sent(broker: Any) -> None:
    broker.silent = True
    with zsq.Producer(broker.url, timeout=0.5, linger_ms=60_000, batch_bytes=1 << 20) as producer:
        for _ in range(17):
            producer.publish("t", bytes(1_000_000))
        with pytest.raises(zsq.BrokerUnreachable):
            producer.publish("t", bytes(1_000_000))
        broker.silent = False
        broker.die()
        broker.start()
        producer.flush(10)
        assert broker.head == 18, "16 MiB, and what was added last"


def test_lingering_messages_are_sent_when_their_block_is_large_enough(broker: Any) -> None:
    with zsq.Producer(broker.url, linger_ms=60_000, batch_bytes=1000) as producer:
        producer.publish("t", bytes(600))
        producer.publish("t", bytes(100), key="k" * 200, tag="t" * 100)
        broker.wait_for(lambda: broker.head == 2)


@pytest.mark.parametrize(
    ("delay", "delay_ms"),
    [(None, 0), (0, 0), (0.0001, 1), (1.5, 1_500), (p.DELAY_MS_MAX / 1000, p.DELAY_MS_MAX)],
)
def test_each_delay_becomes_whole_milliseconds(delay: float | None, delay_ms: int) -> None:
    assert as_delay_ms(delay) == delay_ms


@pytest.mark.parametrize("delay", [-1, p.DELAY_MS_MAX / 1000 + 1, float("nan"), float("inf")])
def test_each_delay_outside_its_limits_is_refused(delay: float) -> None:
    with pytest.raises(UsageError, match="delay"):
        as_delay_ms(delay)


def test_a_peek_over_its_limit_is_refused() -> None:
    assert [peeking.check_count(count) for count in (1, peeking.PEEK_MAX)] == [1, peeking.PEEK_MAX]
    for count in (0, peeking.PEEK_MAX + 1, True):
        with pytest.raises(UsageError, match="peek"):
            peeking.check_count(count)


def test_a_message_timeout_outside_its_limits_is_refused() -> None:
    low, high = p.MESSAGE_TIMEOUT_MS_MIN, p.MESSAGE_TIMEOUT_MS_MAX
    assert [
        consumer.make_session(1, timeout_ms / 1000, "c", 0).wanted_timeout_ms
        for timeout_ms in (low, high)
    ] == [low, high]
    assert consumer.make_session(1, None, "c", 0).wanted_timeout_ms == 0
    for timeout_ms in (low - 1, high + 1):
        with pytest.raises(UsageError, match="message_timeout must be"):
            consumer.make_session(1, timeout_ms / 1000, "c", 0)

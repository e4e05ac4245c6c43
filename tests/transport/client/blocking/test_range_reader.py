"""Tests of reading a range: completely, in order, with one request in advance. A loss is reported,
and other messages never take the place of lost ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import zsq
from zsq.transport.client.blocking import range_reader
from zsq.transport.client.blocking.range_reader import RangeReader
from zsq.transport.errors import E_BUCKET, E_DATA_LOSS, E_TOPIC_FAILED, DataLoss
from zsq.transport.wire import protocol as p

Broker = Any


def in_broker(broker: Broker, act: Callable[[], object]) -> None:
    done = threading.Event()

    def call() -> None:
        act()
        done.set()

    broker.call(call)
    assert done.wait(5)


def fill(broker: Broker, blocks: int, count: int = 10) -> None:
    def store() -> None:
        for _ in range(blocks):
            broker.put(*(b"%d" % (broker.head + i) for i in range(count)))

    in_broker(broker, store)


def offsets(reader: RangeReader) -> list[int]:
    found: list[int] = []
    for block in reader:
        first = block.first_offset
        bodies = block.body.values()
        assert bodies == [b"%d" % offset for offset in range(first, block.next_offset)]
        found += range(first, block.next_offset)
    return found


def test_a_range_is_read_whole_each_time(broker: Broker) -> None:
    fill(broker, 35)
    with RangeReader("t", 15, 295, url=broker.url) as reader:
        assert offsets(reader) == list(range(10, 300)), "whole blocks, those that overlap"
        assert offsets(reader) == list(range(10, 300))
        assert (reader.gaps, reader.lost) == ([], 0)
    with RangeReader("t", 0, 350, url=broker.url) as reader:
        assert offsets(reader) == list(range(350))
    with RangeReader("t", 20, 20, url=broker.url) as reader:
        assert offsets(reader) == []


def test_the_next_request_is_out_before_a_block_is_handed_over(broker: Broker) -> None:
    fill(broker, 35)
    with RangeReader("t", 0, 350, url=broker.url) as reader:
        blocks = iter(reader)
        next(blocks)
        broker.wait_for(lambda: broker.count(p.Fetch) == 2)
        for _ in range(9):
            next(blocks)
        assert broker.count(p.Fetch) == 2, "one ahead, no more"
        next(blocks)
        broker.wait_for(lambda: broker.count(p.Fetch) == 3)
        fetches = [message.offset for message in broker.heard if type(message) is p.Fetch]
        assert fetches == [0, 100, 200]
        blocks.close()  # type: ignore[attr-defined]


def test_nothing_is_asked_beyond_the_range(broker: Broker) -> None:
    fill(broker, 35)
    with RangeReader("t", 0, 100, url=broker.url) as reader:
        assert offsets(reader) == list(range(100))
    assert broker.count(p.Fetch) == 1


def lose(broker: Broker, first: int, stop: int) -> None:
    in_broker(
        broker,
        lambda: setattr(
            broker, "log", [b for b in broker.log if not first <= b.first_offset < stop]
        ),
    )


@pytest.mark.parametrize(
    ("first", "stop", "text"),
    [
        (0, 100, "offsets 0 to 99 of topic t"),
        (50, 80, "offsets 50 to 79"),
        (300, 350, "offsets 300 to 349"),
    ],
)
def test_lost_offsets_are_an_error_or_a_counted_gap(
    broker: Broker, first: int, stop: int, text: str
) -> None:
    fill(broker, 35)
    lose(broker, first, stop)
    rest = [offset for offset in range(350) if not first <= offset < stop]
    with (
        RangeReader("t", 0, 350, url=broker.url) as reader,
        pytest.raises(DataLoss, match=text) as caught,
    ):
        offsets(reader)
    assert caught.value.code == E_DATA_LOSS
    with RangeReader("t", 0, 350, url=broker.url, on_data_loss="warn") as reader:
        assert offsets(reader) == rest
        assert (reader.gaps, reader.lost) == ([(first, stop - first)], stop - first)


def test_the_first_gaps_are_listed_and_all_are_counted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, 35)
    for first in range(20, 340, 20):
        lose(broker, first, first + 10)
    monkeypatch.setattr(range_reader, "GAPS_MAX", 3)
    with RangeReader("t", 0, 350, url=broker.url, on_data_loss="warn") as reader:
        assert len(offsets(reader)) == 190
        assert (reader.gaps, reader.lost) == ([(20, 10), (40, 10), (60, 10)], 160)


def test_offsets_beyond_the_end_are_data_loss(broker: Broker) -> None:
    fill(broker, 3)
    with (
        RangeReader("t", 10, 40, url=broker.url) as reader,
        pytest.raises(DataLoss, match=r"offsets 30 to 39 .* now ends at offset 30"),
    ):
        offsets(reader)
    with RangeReader("t", 40, 50, url=broker.url, on_data_loss="warn") as reader:
        assert offsets(reader) == []
        assert reader.lost == 10


def test_a_topic_with_another_uuid_is_data_loss(broker: Broker) -> None:
    fill(broker, 3)
    with RangeReader("t", 0, 30, url=broker.url, uuid="0") as reader:
        assert len(offsets(reader)) == 30
    with (
        RangeReader("t", 0, 30, url=broker.url, uuid="1", on_data_loss="warn") as reader,
        pytest.raises(DataLoss, match="created again"),
    ):
        offsets(reader)


def test_a_range_is_read_whole_although_the_broker_restarts(broker: Broker) -> None:
    fill(broker, 35)
    with RangeReader("t", 0, 350, url=broker.url) as reader:
        blocks = iter(reader)
        found = [next(blocks).first_offset]
        broker.die()
        broker.start()
        found += [block.first_offset for block in blocks]
    assert found == list(range(0, 350, 10))


@pytest.mark.parametrize(
    "make",
    [
        lambda url: RangeReader("t", 0, 10, url=url),
        lambda url: zsq.Reader("t", url=url, timeout=5, patient=True),
    ],
)
def test_a_topic_that_is_started_again_is_waited_for(
    broker: Broker, make: Callable[[str], Any]
) -> None:
    fill(broker, 1)
    broker.lookup_error = (E_TOPIC_FAILED, "cannot start; it is tried again")

    def mend() -> None:
        broker.wait_for(lambda: broker.count(p.Lookup) >= 2)
        broker.lookup_error = None

    mender = threading.Thread(target=mend)
    mender.start()
    with make(broker.url) as reader:
        assert (
            reader.bounds()[1] if isinstance(reader, zsq.Reader) else len(offsets(reader))
        ) == 10
    mender.join(5)


def test_a_bucket_that_is_away_is_waited_for(broker: Broker) -> None:
    fill(broker, 3)
    away = (E_BUCKET, "no answer from the bucket")
    broker.fetch_errors.extend([away] * 4)
    with RangeReader("t", 0, 30, url=broker.url, timeout=20) as reader:
        assert offsets(reader) == list(range(30))
    assert not broker.fetch_errors
    broker.fetch_errors.extend([away] * 1_000)
    with (
        RangeReader("t", 0, 30, url=broker.url, timeout=0.5) as reader,
        pytest.raises(zsq.Refused, match="E_BUCKET no answer from the bucket"),
    ):
        offsets(reader)
    assert 980 < len(broker.fetch_errors) < 1_000, "it tries again a few times, with pauses"
    with (
        zsq.Reader("t", url=broker.url) as impatient,
        pytest.raises(zsq.Refused, match="E_BUCKET"),
    ):
        impatient.read(0)
    broker.fetch_errors.clear()


def test_a_broker_that_ends_after_its_bucket_was_away_is_the_reason(broker: Broker) -> None:
    fill(broker, 3)
    broker.fetch_errors.extend([(E_BUCKET, "no answer from the bucket")] * 1_000)
    with RangeReader("t", 0, 30, url=broker.url, timeout=2) as reader:
        ended = threading.Thread(
            target=lambda: (broker.wait_for(lambda: broker.count(p.Fetch) >= 2), broker.die())
        )
        ended.start()
        with pytest.raises(zsq.BrokerUnreachable):
            offsets(reader)
        ended.join(5)


def test_a_patient_reader_gives_up_after_its_timeout(broker: Broker) -> None:
    fill(broker, 1)
    broker.lookup_error = (E_TOPIC_FAILED, "its disk is full")
    text = r"E_TOPIC_FAILED reader t at .* could not be reached for 0\.3 s: its disk is full"
    with (
        RangeReader("t", 0, 10, url=broker.url, timeout=0.3) as reader,
        pytest.raises(zsq.Refused, match=text),
    ):
        offsets(reader)
    before = broker.count(p.Lookup)
    assert before > 1
    with (
        zsq.Reader("t", url=broker.url) as impatient,
        pytest.raises(zsq.Refused, match=r"E_TOPIC_FAILED its disk is full"),
    ):
        impatient.bounds()
    assert broker.count(p.Lookup) == before + 1


def test_each_wrong_range_is_refused(broker: Broker) -> None:
    for start, end in ((-1, 5), (6, 5)):
        with pytest.raises(zsq.UsageError, match="range"):
            RangeReader("t", start, end, url=broker.url)


class Number:
    """A whole number of another type, as NumPy has them."""

    def __index__(self) -> int:
        return 1


@pytest.mark.parametrize("wrong", [0.5, "0", None])
def test_an_offset_of_another_type_is_refused_at_once(broker: Broker, wrong: Any) -> None:
    """The broker does not answer such a request, so the reader waited for its time-out."""
    fill(broker, 1)
    number: Any = Number()
    with zsq.Reader("t", url=broker.url) as reader:
        with pytest.raises(zsq.UsageError, match="offset must be a whole number, not"):
            reader.read(wrong)
        with pytest.raises(zsq.UsageError, match="start must be a whole number, not"):
            reader.measure(wrong)
        with pytest.raises(zsq.UsageError, match="end must be a whole number, not"):
            RangeReader("t", 0, wrong, url=broker.url)
        if wrong is not None:
            with pytest.raises(zsq.UsageError, match="start must be a whole number, not"):
                reader.arrow(wrong)
        assert [block.count for block in reader.read(number).blocks] == [10]
        assert reader.read(1 << 70).blocks == []


def test_reader_reports_head_uuid_offsets_and_sizes(broker: Broker) -> None:
    in_broker(broker, lambda: [broker.put(b"x"), broker.put(b"y")])
    with zsq.Reader("t", url=broker.url) as reader:
        assert reader.bounds() == (0, 2)
        assert reader.uuid() == "0"
        assert reader.offset_at(1) == 0
        assert reader.offset_at(2_000_000_000_000_000_000) == 2
        sizes = [block.length for block in broker.log]
        assert reader.measure(0) == (sum(sizes), 2, 0, 2, 2)
        assert reader.measure(0, 1) == (sizes[0], 1, 0, 2, 1)
        assert reader.measure(0, max_bytes=1).offset == 1
        with pytest.raises(zsq.UsageError):
            reader.measure(-1)


def test_seek_sends_offset_and_direction(broker: Broker) -> None:
    with zsq.Admin(broker.url) as admin:
        admin.seek("t", "c", 5)
        admin.seek("t", "c", 7, forward=True)
        with pytest.raises(zsq.UsageError):
            admin.seek("t", "c", -1)
    words = [(w.action, w.topic, w.channel, w.options) for w in broker.heard if type(w) is p.Manage]
    assert words == [
        ("seek", "t", "c", {"offset": 5}),
        ("seek", "t", "c", {"offset": 7, "forward": True}),
    ]

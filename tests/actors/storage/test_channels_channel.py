"""Tests of channels' rows in storage: what is committed before an answer is sent, what a channel's
next process finds, and below which offset chunks may be removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.stage_bench import Bench, Wire

from zsq.actors.channel.lease import Changes, save_pages
from zsq.actors.runtime.port import Envelope, Port
from zsq.actors.settings import options
from zsq.actors.storage.channels import Channels
from zsq.storage.errors import Unreadable
from zsq.storage.state.channel_row import ChannelRow
from zsq.transport.block.block import pack
from zsq.transport.errors import Refused, UsageError
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import encode

ONE: Envelope = (b"one",)
TWO: Envelope = (b"two",)
ROW = ChannelRow(30)


class ChannelsHarness:
    """`Channels` of a topic with 1,000 messages, on a real store whose thread runs only when a test
    tells it to.
    """

    def __init__(self, directory: str) -> None:
        self.bench = Bench(directory)
        self.bench.store.log.append([pack([b"x"] * 1_000)], 1)
        self.bench.store.log.sync()
        self.start()

    def start(self) -> None:
        self.wire = Wire()
        self.must_wait = False
        self.harness = Channels(
            self.bench.store.log, self.bench.state, self.bench.store.state.load(), "always",
            finishes_must_wait=lambda: self.must_wait,
        )  # fmt: skip
        self.harness.route(cast("Port", self.wire))

    def say(self, message: p.Wire, who: Envelope = ONE) -> None:
        self.wire.hear(message, who)

    def commit(self) -> list[p.Wire]:
        """Commit everything and return the answers that were sent."""
        while self.bench.state.may_commit() or self.bench.state_thread.pending:
            if self.bench.state.may_commit():
                self.bench.state.commit(self.bench.store.log.synced_end, {})
            self.bench.state_thread.run()
            self.bench.state.on_results()
        found, self.wire.sent = self.wire.sent, []
        return found

    def open(self, who: Envelope = ONE, channel: str = "c") -> dict[str, Any]:
        self.say(p.OpenChannel(1, channel), who)
        found: dict[str, Any] = {}
        holes: list[tuple[int, ...]] = []
        for message in self.commit():
            assert isinstance(message, p.Done)
            if message.request != 1:
                continue
            found = message.data
            holes += found["holes"]
        assert not found["more"]
        return found | {"holes": holes}

    def save(
        self,
        next_offset: int,
        *puts: tuple[int, int, int, int],
        gone: tuple[int, ...] = (),
        clear: bool = False,
    ) -> list[p.Wire]:
        self.say(p.Save(9, "c", {"next": next_offset}, puts, gone, clear, False))
        return self.commit()

    def due(self, until_ns: int, limit: int = 1_000) -> dict[str, Any]:
        self.say(p.Due(5, "c", until_ns, limit))
        (done,) = self.commit()
        assert isinstance(done, p.Done)
        return done.data


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ChannelsHarness]:
    one = ChannelsHarness(str(tmp_path / "t"))
    yield one
    one.bench.store.close()


def test_a_channels_next_process_gets_what_was_committed(harness: ChannelsHarness) -> None:
    assert harness.open()["holes"] == []
    harness.save(10, (2, 3, 1, 0), (7, 1, 2, 500), (8, 1, 2, 400))
    harness.save(12, (11, 1, 1, 0), gone=(2,))
    found = harness.open(TWO)
    assert (found["row"]["next"], found["holes"], found["deferred"]) == (
        12,
        [(11, 1, 1, 0)],
        (2, 2, 400),
    )
    with pytest.raises(Refused, match="another owner"):
        harness.save(13)
    with pytest.raises(Refused, match="another owner"):
        harness.due(1)


def test_a_channels_next_process_also_gets_saves_that_are_not_committed(
    harness: ChannelsHarness,
) -> None:
    harness.open()
    harness.say(p.Save(9, "c", {"next": 10}, ((2, 3, 1, 0), (7, 1, 1, 500)), (), False, False))
    assert harness.open(TWO)["holes"] == [(2, 3, 1, 0)]


def test_due_rows_are_returned_by_time_until_a_save_changes_them(harness: ChannelsHarness) -> None:
    harness.open()
    harness.save(20, *((i, 2, 3, 1_000 - i) for i in range(0, 10, 2)))
    assert harness.due(995) == {
        "rows": ((8, 2, 3, 992), (6, 2, 3, 994)),
        "next_due_ns": 996,
        "deferred": 10,
    }
    assert harness.due(995, limit=1)["rows"] == ((8, 2, 3, 992),)
    assert harness.due(995, limit=1)["next_due_ns"] == 994
    harness.save(20, (8, 2, 4, 0))
    assert harness.due(995) == {"rows": ((6, 2, 3, 994),), "next_due_ns": 996, "deferred": 8}
    harness.save(20, (6, 2, 3, 2_000), gone=(0, 8))
    assert harness.due(995) == {"rows": (), "next_due_ns": 996, "deferred": 6}
    assert harness.open(TWO)["deferred"] == (3, 6, 996)


def test_clear_also_removes_deferred_rows_that_are_not_committed(harness: ChannelsHarness) -> None:
    harness.open()
    harness.save(20, (1, 1, 1, 100), (2, 1, 1, 0))
    harness.say(p.Save(9, "c", {"next": 20}, ((3, 1, 1, 100), (4, 1, 1, 0)), (), False, False))
    harness.save(30, (5, 1, 1, 300), clear=True)
    assert harness.due(1_000)["rows"] == ((5, 1, 1, 300),)
    assert harness.open(TWO)["holes"] == [(2, 1, 1, 0), (4, 1, 1, 0)]


def test_a_commit_of_several_pages_is_stored_completely_or_not_at_all(
    harness: ChannelsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.open()
    harness.save(20, (1, 1, 1, 0), (2, 1, 1, 0), (3, 1, 1, 0))
    monkeypatch.setattr(options, "SAVE_ROWS_MAX", 2)
    changes = Changes(30, tuple((i, 1, 1, 0) for i in range(4, 9)), (1, 2, 3), clear=True)
    pages = save_pages(9, "c", ROW, changes)
    assert [(len(page.holes_put), len(page.holes_gone), page.more) for page in pages] == [
        (2, 2, True),
        (2, 1, True),
        (1, 0, False),
    ]
    for page in pages[:-1]:
        harness.say(page)
    assert harness.commit() == []
    assert harness.bench.store.state.load().channels["c"].next_offset == 20
    harness.say(pages[-1])
    assert harness.commit() == [p.Done(9, {})]
    assert harness.open(TWO)["holes"] == [(i, 1, 1, 0) for i in range(4, 9)], "in several answers"
    harness.say(pages[0], TWO)
    harness.open(ONE)
    assert harness.save(31) == [p.Done(9, {})]
    assert harness.bench.store.state.load().channels["c"].next_offset == 31, (
        "a dead predecessor's pages are forgotten"
    )


def test_a_save_that_fits_into_one_page_has_one_page() -> None:
    assert save_pages(1, "c", ROW, Changes(5, (), ())) == [
        p.Save(1, "c", ROW.encode(), (), (), False, False)
    ]
    rows = tuple((2**62, 10_000, 2**15, 2**62) for _ in range(options.SAVE_ROWS_MAX))
    (page,) = save_pages(1, "c", ROW, Changes(5, rows, tuple(row[0] for row in rows)))
    assert len(encode(page)) < p.FRAME_BYTES_MAX // 4
    assert not page.more


def test_too_many_pages_are_refused(
    harness: ChannelsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "SAVE_PAGES_MAX", 2)
    harness.open()
    page = p.Save(9, "c", {"next": 1}, (), (), False, True)
    harness.say(page)
    harness.say(page)
    with pytest.raises(Refused, match="at most 2 pages"):
        harness.say(page)


# The floor: the lowest unfinished offset


def test_the_floor_is_the_lowest_unfinished_offset_of_all_channels(
    harness: ChannelsHarness,
) -> None:
    assert harness.harness.floor() == 0
    harness.open()
    harness.save(700)
    harness.open(TWO, "other")
    assert harness.harness.floor() == 700
    harness.say(p.Save(9, "other", {"next": 1_000}, ((900, 1, 1, 0),), (), False, False), TWO)
    harness.commit()
    assert harness.harness.floor() == 700
    harness.save(1_000)
    assert harness.harness.floor() == 900


STEPS: list[tuple[int, tuple[tuple[int, int, int, int], ...], tuple[int, ...], int]] = [
    (500, (), (), 500),
    (500, ((300, 5, 1, 0), (200, 1, 1, 10**18)), (), 200),
    (600, ((200, 1, 1, 0), (100, 1, 1, 0)), (), 100),
    (600, (), (100,), 200),
    (600, (), (200,), 300),
    (600, (), (300,), 600),
]


def test_the_floor_moves_only_when_a_commit_is_durable(harness: ChannelsHarness) -> None:
    harness.open()
    before = 0
    for next_offset, puts, gone, floor in STEPS:
        harness.say(p.Save(9, "c", {"next": next_offset}, puts, gone, False, False))
        assert harness.harness.floor() == before, "not on disk yet"
        harness.commit()
        assert harness.harness.floor() == floor
        harness.bench.restart()
        harness.start()
        assert harness.harness.floor() == floor, "an offline channel holds it after a restart"
        harness.open()
        before = floor


def test_without_channels_the_floor_is_where_a_first_one_would_begin(
    harness: ChannelsHarness,
) -> None:
    harness.open()
    harness.save(10)
    harness.harness.drop("c", lambda: None)
    assert harness.harness.floor() == 10
    harness.commit()
    assert harness.harness.floor() == 1_000
    harness.harness.empty(lambda start, end: None)
    harness.commit()
    assert harness.harness.floor() == 1_000


# After a pause


def paused(harness: ChannelsHarness) -> None:
    """Pause the topic at offset 1,000 and then append 500 more messages."""
    ends: list[int] = []
    harness.harness.pause(True, ends.append)
    harness.bench.store.log.append([pack([b"x"] * 500)], 2)
    harness.bench.store.log.sync()
    assert ends == [], "not committed yet"
    harness.commit()
    assert ends == [1_000]


def test_messages_after_a_pause_wait_when_the_last_channel_is_deleted(
    harness: ChannelsHarness,
) -> None:
    harness.open()
    harness.save(1_000)
    paused(harness)
    harness.harness.drop("c", lambda: None)
    harness.commit()
    assert (harness.harness.waiting, harness.harness.floor()) == (1_000, 1_000)
    harness.harness.pause(False, lambda end: None)
    assert harness.open(channel="next")["row"]["next"] == 1_000


def test_a_channel_created_during_a_pause_gets_the_messages_after_it(
    harness: ChannelsHarness,
) -> None:
    harness.open()
    paused(harness)
    assert harness.open(TWO, "second")["row"]["next"] == 1_000
    harness.harness.pause(False, lambda end: None)
    assert harness.open(TWO, "third")["row"]["next"] == 1_500, "what comes from now on"


# Ephemeral


EPHEMERAL = "c#ephemeral"


def test_an_ephemeral_channel_begins_like_any_other_and_leaves_no_row(
    harness: ChannelsHarness,
) -> None:
    assert harness.open(channel=EPHEMERAL)["row"]["next"] == 0, "the first channel gets what waits"
    assert harness.open(TWO, "second#ephemeral")["row"]["next"] == 1_000
    assert harness.open(TWO, "durable")["row"]["next"] == 1_000, "not the first one"
    assert list(harness.bench.store.state.load().channels) == ["durable"]
    harness.bench.restart()
    harness.start()
    assert EPHEMERAL not in harness.harness
    assert harness.open(channel=EPHEMERAL)["row"]["next"] == 1_000


@pytest.mark.parametrize("channel", ["c", EPHEMERAL])
def test_deferred_rows_are_found_by_any_of_their_offsets(
    harness: ChannelsHarness, channel: str
) -> None:
    harness.open(channel=channel)
    rows = ((3, 2, 1, 50), (10, 5, 2, 40), (20, 1, 1, 0))
    harness.say(p.Save(9, channel, {"next": 30}, rows, (), False, False))
    harness.commit()
    harness.say(p.DeferredAt(5, channel, (0, 4, 5, 10, 14, 15, 20, 99)))
    assert harness.commit() == [p.Done(5, {"rows": ((3, 2, 1, 50), (10, 5, 2, 40))})]
    with pytest.raises(Refused, match="another owner"):
        harness.say(p.DeferredAt(5, channel, (4,)), TWO)
    with pytest.raises(UsageError, match="offsets must be at most"):
        harness.say(p.DeferredAt(5, channel, (-1,)))


def test_deferred_rows_of_an_ephemeral_channel_come_from_memory(harness: ChannelsHarness) -> None:
    harness.open(channel=EPHEMERAL)
    harness.say(p.Save(9, EPHEMERAL, {"next": 20}, ((3, 2, 1, 50), (7, 1, 1, 0)), (), False, False))
    assert harness.wire.sent == [p.Done(9, {})], "at once, without a commit"
    harness.wire.sent.clear()
    harness.say(p.Due(5, EPHEMERAL, 60, 10))
    assert harness.wire.sent == [
        p.Done(5, {"rows": ((3, 2, 1, 50),), "next_due_ns": 0, "deferred": 2})
    ]
    with pytest.raises(Refused, match="another owner"):
        harness.say(p.Due(5, EPHEMERAL, 60, 10), TWO)
    assert not harness.bench.state.may_commit()


def test_an_ephemeral_channel_opens_although_the_state_store_is_full(
    harness: ChannelsHarness,
) -> None:
    harness.bench.state.disk_full = True
    harness.say(p.OpenChannel(1, EPHEMERAL))
    (done,) = harness.wire.sent
    assert isinstance(done, p.Done)


def test_without_space_a_new_channel_is_refused_and_an_old_one_put_off(
    harness: ChannelsHarness,
) -> None:
    """The two channels get different error codes: the supervisor forgets the new channel, and
    starts the old one again.
    """
    harness.open(channel="old")
    harness.bench.state.disk_full = True
    for channel, code in (("new", "E_DISK_FULL"), ("old", "E_CLOSING")):
        with pytest.raises(Refused) as error:
            harness.say(p.OpenChannel(1, channel), TWO)
        assert error.value.code == code
    assert [*harness.harness.rows] == ["old"]


def test_a_channel_is_not_created_if_its_start_cannot_be_read(
    harness: ChannelsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(time_ns: int) -> int:
        raise Unreadable(f"chunk 0 cannot be read at {time_ns}")

    monkeypatch.setattr(harness.bench.store.log, "offset_at", unreadable)
    with pytest.raises(Refused, match="nothing is known to be lost") as error:
        harness.say(p.OpenChannel(1, "new", {"start": {"time_ns": 5}}))
    assert (error.value.code, harness.harness.rows) == ("E_INTERNAL", {})


def test_an_ephemeral_channel_does_not_hold_the_floor_beside_another(
    harness: ChannelsHarness,
) -> None:
    harness.open()
    harness.save(700)
    harness.open(TWO, EPHEMERAL)
    assert harness.harness.floor() == 700
    harness.save(1_000)
    assert harness.harness.floor() == 1_000, "wherever the ephemeral one is"


def test_a_lone_ephemeral_channel_does_not_hold_the_floor(harness: ChannelsHarness) -> None:
    harness.open(channel=EPHEMERAL)
    assert harness.harness.floor() == 1_000
    assert harness.harness.checkpoint()
    assert not harness.harness.checkpoint(), "once"
    harness.bench.state.want()
    harness.commit()
    assert harness.bench.store.state.load().waiting == 1_000
    harness.bench.store.log.append([pack([b"x"] * 500)], 2)
    harness.bench.store.log.sync()
    harness.harness.leave(EPHEMERAL)
    harness.bench.store.log.append([pack([b"x"] * 500)], 3)
    harness.bench.store.log.sync()
    assert not harness.harness.checkpoint()
    harness.harness.drop(EPHEMERAL, lambda: None)
    harness.commit()
    assert harness.bench.store.state.load().waiting == 1_500, (
        "what came until it was about to go was its own, and no more"
    )
    assert (EPHEMERAL in harness.harness, harness.harness.floor()) == (False, 1_500)


def test_messages_wait_from_where_the_last_ephemeral_channel_was(harness: ChannelsHarness) -> None:
    for who, name in ((ONE, EPHEMERAL), (TWO, "other#ephemeral")):
        harness.open(who, name)
    harness.harness.leave(EPHEMERAL)
    harness.harness.drop(EPHEMERAL, lambda: None)
    harness.bench.store.log.append([pack([b"x"] * 500)], 2)
    harness.bench.store.log.sync()
    assert harness.open(channel="durable")["row"]["next"] == 1_500, (
        "the other one is there: this is not the first"
    )
    harness.harness.drop("durable", lambda: None)
    harness.harness.drop("other#ephemeral", lambda: None)
    harness.commit()
    assert harness.harness.waiting == 1_500


def test_an_ephemeral_channel_that_comes_back_counts_as_a_channel_again(
    harness: ChannelsHarness,
) -> None:
    harness.open(channel=EPHEMERAL)
    harness.harness.leave(EPHEMERAL)
    harness.open(TWO, EPHEMERAL)
    harness.bench.store.log.append([pack([b"x"] * 500)], 2)
    harness.bench.store.log.sync()
    assert harness.open(channel="durable")["row"]["next"] == 1_500


def test_messages_after_a_pause_are_kept_for_ephemeral_channels(harness: ChannelsHarness) -> None:
    harness.open(channel=EPHEMERAL)
    paused(harness)
    harness.harness.checkpoint()
    assert (harness.harness.waiting, harness.harness.floor()) == (1_000, 1_000)


def test_ephemeral_channels_count_toward_the_limit_of_channels(
    harness: ChannelsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "CHANNELS_MAX", 2)
    harness.open()
    harness.open(TWO, EPHEMERAL)
    for name in ("third", "third#ephemeral"):
        with pytest.raises(Refused, match="at most 2 channels"):
            harness.say(p.OpenChannel(1, name), TWO)


def test_an_answer_says_whether_finishes_may_be_confirmed(harness: ChannelsHarness) -> None:
    """What counts is the moment of the answer, and not that of the request."""
    harness.open()
    harness.say(p.Save(9, "c", {"next": 10}, (), (), False, False))
    harness.must_wait = True
    assert harness.commit() == [p.Done(9, {"withholds": True})]
    harness.say(p.Save(10, "c", {"next": 11}, (), (), False, False))
    harness.must_wait = False
    assert harness.commit() == [p.Done(10, {})]

"""Channels' rows in storage: what is committed before which answer, what a successor finds, below which offset chunks may go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.stage_bench import Bench, Wire

from zsq.actors import options
from zsq.actors.channel_desk import ChannelDesk
from zsq.actors.lease import Changes, save_pages
from zsq.actors.port import Envelope, Mail, Port
from zsq.storage.errors import Unreadable
from zsq.transport import protocol as p
from zsq.transport.block import pack
from zsq.transport.codec import encode
from zsq.transport.errors import Refused

ONE: Envelope = (b"one",)
TWO: Envelope = (b"two",)


class Desk:
    """The channel desk of a topic with 1,000 messages, on a real store whose thread runs when told."""

    def __init__(self, directory: str) -> None:
        self.bench = Bench(directory)
        self.bench.store.log.append([pack([b"x"] * 1_000)], 1)
        self.bench.store.log.sync()
        self.start()

    def start(self) -> None:
        self.wire = Wire()
        self.desk = ChannelDesk(self.bench.store.log, self.bench.state, self.bench.store.state.load(), "always")

    def say(self, word: p.Wire, who: Envelope = ONE) -> None:
        getattr(self.desk, f"on_{type(word).__name__.lower()}_word")(cast("Port", self.wire), Mail(who, word, []))

    def commit(self) -> list[p.Wire]:
        """What is answered then."""
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
        for word in self.commit():
            assert isinstance(word, p.Done)
            if word.request != 1:
                continue
            found = word.data
            holes += found["holes"]
        assert not found["more"]
        return found | {"holes": holes}

    def save(self, next_offset: int, *puts: tuple[int, int, int, int], gone: tuple[int, ...] = (), clear: bool = False) -> list[p.Wire]:
        self.say(p.Save(9, "c", {"next": next_offset}, puts, gone, clear, False))
        return self.commit()

    def due(self, until_ns: int, limit: int = 1_000) -> dict[str, Any]:
        self.say(p.Due(5, "c", until_ns, limit))
        (done,) = self.commit()
        assert isinstance(done, p.Done)
        return done.data


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    one = Desk(str(tmp_path / "t"))
    yield one
    one.bench.store.close()


def test_a_successor_finds_what_was_committed(desk: Desk) -> None:
    assert desk.open()["holes"] == []
    desk.save(10, (2, 3, 1, 0), (7, 1, 2, 500), (8, 1, 2, 400))
    desk.save(12, (11, 1, 1, 0), gone=(2,))
    found = desk.open(TWO)
    assert (found["row"]["next"], found["holes"], found["deferred"]) == (12, [(11, 1, 1, 0)], (2, 2, 400))
    with pytest.raises(Refused, match="another owner"):
        desk.save(13)
    with pytest.raises(Refused, match="another owner"):
        desk.due(1)


def test_what_is_on_its_way_is_in_the_answer_too(desk: Desk) -> None:
    desk.open()
    desk.say(p.Save(9, "c", {"next": 10}, ((2, 3, 1, 0), (7, 1, 1, 500)), (), False, False))
    assert desk.open(TWO)["holes"] == [(2, 3, 1, 0)]


def test_due_rows_by_time_until_a_save_takes_them(desk: Desk) -> None:
    desk.open()
    desk.save(20, *((i, 2, 3, 1_000 - i) for i in range(0, 10, 2)))
    assert desk.due(995) == {"rows": ((8, 2, 3, 992), (6, 2, 3, 994)), "next_due_ns": 996, "deferred": 10}
    assert desk.due(995, limit=1)["rows"] == ((8, 2, 3, 992),)
    assert desk.due(995, limit=1)["next_due_ns"] == 994
    desk.save(20, (8, 2, 4, 0))
    assert desk.due(995) == {"rows": ((6, 2, 3, 994),), "next_due_ns": 996, "deferred": 8}
    desk.save(20, (6, 2, 3, 2_000), gone=(0, 8))
    assert desk.due(995) == {"rows": (), "next_due_ns": 996, "deferred": 6}
    assert desk.open(TWO)["deferred"] == (3, 6, 996)


def test_clear_takes_what_is_deferred_in_the_batch_too(desk: Desk) -> None:
    desk.open()
    desk.save(20, (1, 1, 1, 100), (2, 1, 1, 0))
    desk.say(p.Save(9, "c", {"next": 20}, ((3, 1, 1, 100), (4, 1, 1, 0)), (), False, False))
    desk.save(30, (5, 1, 1, 300), clear=True)
    assert desk.due(1_000)["rows"] == ((5, 1, 1, 300),)
    assert desk.open(TWO)["holes"] == [(2, 1, 1, 0), (4, 1, 1, 0)]


def test_a_commit_of_several_pages_is_whole_or_not_at_all(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.open()
    desk.save(20, (1, 1, 1, 0), (2, 1, 1, 0), (3, 1, 1, 0))
    monkeypatch.setattr(options, "SAVE_ROWS_MAX", 2)
    changes = Changes(30, tuple((i, 1, 1, 0) for i in range(4, 9)), (1, 2, 3), clear=True)
    pages = save_pages(9, "c", {"next": 30}, changes)
    assert [(len(page.holes_put), len(page.holes_gone), page.more) for page in pages] == [(2, 2, True), (2, 1, True), (1, 0, False)]
    for page in pages[:-1]:
        desk.say(page)
    assert desk.commit() == []
    assert desk.bench.store.state.load().channels["c"]["next"] == 20
    desk.say(pages[-1])
    assert desk.commit() == [p.Done(9, {})]
    assert desk.open(TWO)["holes"] == [(i, 1, 1, 0) for i in range(4, 9)], "in several answers"
    desk.say(pages[0], TWO)
    desk.open(ONE)
    assert desk.save(31) == [p.Done(9, {})]
    assert desk.bench.store.state.load().channels["c"]["next"] == 31, "a dead predecessor's pages are forgotten"


def test_one_page_where_one_is_enough() -> None:
    assert save_pages(1, "c", {}, Changes(5, (), ())) == [p.Save(1, "c", {}, (), (), False, False)]
    rows = tuple((2**62, 10_000, 2**15, 2**62) for _ in range(options.SAVE_ROWS_MAX))
    (page,) = save_pages(1, "c", {}, Changes(5, rows, tuple(row[0] for row in rows)))
    assert len(encode(page)) < p.FRAME_BYTES_MAX // 4
    assert not page.more


def test_too_many_pages_are_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "SAVE_PAGES_MAX", 2)
    desk.open()
    page = p.Save(9, "c", {"next": 1}, (), (), False, True)
    desk.say(page)
    desk.say(page)
    with pytest.raises(Refused, match="at most 2 pages"):
        desk.say(page)


# Floor


def test_the_floor_is_the_lowest_of_all_channels(desk: Desk) -> None:
    assert desk.desk.floor() == 0
    desk.open()
    desk.save(700)
    desk.open(TWO, "other")
    assert desk.desk.floor() == 700
    desk.say(p.Save(9, "other", {"next": 1_000}, ((900, 1, 1, 0),), (), False, False), TWO)
    desk.commit()
    assert desk.desk.floor() == 700
    desk.save(1_000)
    assert desk.desk.floor() == 900


STEPS: list[tuple[int, tuple[tuple[int, int, int, int], ...], tuple[int, ...], int]] = [
    (500, (), (), 500),
    (500, ((300, 5, 1, 0), (200, 1, 1, 10**18)), (), 200),
    (600, ((200, 1, 1, 0), (100, 1, 1, 0)), (), 100),
    (600, (), (100,), 200),
    (600, (), (200,), 300),
    (600, (), (300,), 600),
]


def test_the_floor_moves_with_commits_only(desk: Desk) -> None:
    desk.open()
    before = 0
    for next_offset, puts, gone, floor in STEPS:
        desk.say(p.Save(9, "c", {"next": next_offset}, puts, gone, False, False))
        assert desk.desk.floor() == before, "not on disk yet"
        desk.commit()
        assert desk.desk.floor() == floor
        desk.bench.restart()
        desk.start()
        assert desk.desk.floor() == floor, "an offline channel holds it after a restart"
        desk.open()
        before = floor


def test_without_channels_the_floor_is_where_the_first_one_would_begin(desk: Desk) -> None:
    desk.open()
    desk.save(10)
    desk.desk.drop("c", lambda: None)
    assert desk.desk.floor() == 10
    desk.commit()
    assert desk.desk.floor() == 1_000
    desk.say(p.Empty(3))
    desk.commit()
    assert desk.desk.floor() == 1_000


# Behind a pause


def paused(desk: Desk) -> None:
    """At 1,000; 500 more came after that."""
    desk.say(p.Pause(3, paused=True))
    desk.bench.store.log.append([pack([b"x"] * 500)], 2)
    desk.bench.store.log.sync()
    assert desk.commit()[-1] == p.Done(3, {"visible_end": 1_000})


def test_what_lies_behind_a_pause_waits_when_the_last_channel_goes(desk: Desk) -> None:
    desk.open()
    desk.save(1_000)
    paused(desk)
    desk.desk.drop("c", lambda: None)
    desk.commit()
    assert (desk.desk.waiting, desk.desk.floor()) == (1_000, 1_000)
    desk.say(p.Pause(4, paused=False))
    assert desk.open(channel="next")["row"]["next"] == 1_000


def test_a_channel_made_during_a_pause_gets_what_lies_behind_it(desk: Desk) -> None:
    desk.open()
    paused(desk)
    assert desk.open(TWO, "second")["row"]["next"] == 1_000
    desk.say(p.Pause(4, paused=False))
    assert desk.open(TWO, "third")["row"]["next"] == 1_500, "what comes from now on"


# Ephemeral


EPHEMERAL = "c#ephemeral"


def test_an_ephemeral_channel_begins_as_another_and_leaves_no_row(desk: Desk) -> None:
    assert desk.open(channel=EPHEMERAL)["row"]["next"] == 0, "the first channel gets what waits"
    assert desk.open(TWO, "second#ephemeral")["row"]["next"] == 1_000
    assert desk.open(TWO, "durable")["row"]["next"] == 1_000, "not the first one"
    assert list(desk.bench.store.state.load().channels) == ["durable"]
    desk.bench.restart()
    desk.start()
    assert EPHEMERAL not in desk.desk
    assert desk.open(channel=EPHEMERAL)["row"]["next"] == 1_000


def test_its_deferred_rows_are_named_from_memory(desk: Desk) -> None:
    desk.open(channel=EPHEMERAL)
    desk.say(p.Save(9, EPHEMERAL, {"next": 20}, ((3, 2, 1, 50), (7, 1, 1, 0)), (), False, False))
    assert desk.wire.sent == [p.Done(9, {})], "at once, without a commit"
    desk.wire.sent.clear()
    desk.say(p.Due(5, EPHEMERAL, 60, 10))
    assert desk.wire.sent == [p.Done(5, {"rows": ((3, 2, 1, 50),), "next_due_ns": 0, "deferred": 2})]
    with pytest.raises(Refused, match="another owner"):
        desk.say(p.Due(5, EPHEMERAL, 60, 10), TWO)
    assert not desk.bench.state.may_commit()


def test_a_full_state_store_hinders_no_ephemeral_channel(desk: Desk) -> None:
    desk.bench.state.disk_full = True
    desk.say(p.OpenChannel(1, EPHEMERAL))
    (done,) = desk.wire.sent
    assert isinstance(done, p.Done)


def test_without_space_a_new_channel_is_refused_and_one_that_is_there_is_put_off(desk: Desk) -> None:
    """Each with its own code: the supervisor forgets the one, and starts the other again."""
    desk.open(channel="old")
    desk.bench.state.disk_full = True
    for channel, code in (("new", "E_DISK_FULL"), ("old", "E_CLOSING")):
        with pytest.raises(Refused) as error:
            desk.say(p.OpenChannel(1, channel), TWO)
        assert error.value.code == code
    assert [*desk.desk.rows] == ["old"]


def test_a_start_that_cannot_be_read_makes_no_channel(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(time_ns: int) -> int:
        raise Unreadable(f"chunk 0 cannot be read at {time_ns}")

    monkeypatch.setattr(desk.bench.store.log, "offset_at", unreadable)
    with pytest.raises(Refused, match="nothing is known to be lost") as error:
        desk.say(p.OpenChannel(1, "new", {"start": {"time_ns": 5}}))
    assert (error.value.code, desk.desk.rows) == ("E_INTERNAL", {})


def test_it_holds_nothing_back_beside_another(desk: Desk) -> None:
    desk.open()
    desk.save(700)
    desk.open(TWO, EPHEMERAL)
    assert desk.desk.floor() == 700
    desk.save(1_000)
    assert desk.desk.floor() == 1_000, "wherever the ephemeral one is"


def test_it_holds_nothing_back_alone_and_what_it_had_is_not_kept(desk: Desk) -> None:
    desk.open(channel=EPHEMERAL)
    assert desk.desk.floor() == 1_000
    assert desk.desk.checkpoint()
    assert not desk.desk.checkpoint(), "once"
    desk.bench.state.wanted = True
    desk.commit()
    assert desk.bench.store.state.load().waiting == 1_000
    desk.bench.store.log.append([pack([b"x"] * 500)], 2)
    desk.bench.store.log.sync()
    desk.desk.leave(EPHEMERAL)
    desk.bench.store.log.append([pack([b"x"] * 500)], 3)
    desk.bench.store.log.sync()
    assert not desk.desk.checkpoint()
    desk.desk.drop(EPHEMERAL, lambda: None)
    desk.commit()
    assert desk.bench.store.state.load().waiting == 1_500, "what came until it was about to go was its own, and no more"
    assert (EPHEMERAL in desk.desk, desk.desk.floor()) == (False, 1_500)


def test_of_several_the_last_that_leaves_counts(desk: Desk) -> None:
    for who, name in ((ONE, EPHEMERAL), (TWO, "other#ephemeral")):
        desk.open(who, name)
    desk.desk.leave(EPHEMERAL)
    desk.desk.drop(EPHEMERAL, lambda: None)
    desk.bench.store.log.append([pack([b"x"] * 500)], 2)
    desk.bench.store.log.sync()
    assert desk.open(channel="durable")["row"]["next"] == 1_500, "the other one is there: this is not the first"
    desk.desk.drop("durable", lambda: None)
    desk.desk.drop("other#ephemeral", lambda: None)
    desk.commit()
    assert desk.desk.waiting == 1_500


def test_one_that_left_and_comes_again_takes_what_comes(desk: Desk) -> None:
    desk.open(channel=EPHEMERAL)
    desk.desk.leave(EPHEMERAL)
    desk.open(TWO, EPHEMERAL)
    desk.bench.store.log.append([pack([b"x"] * 500)], 2)
    desk.bench.store.log.sync()
    assert desk.open(channel="durable")["row"]["next"] == 1_500


def test_what_lies_behind_a_pause_is_no_ephemeral_channels_yet(desk: Desk) -> None:
    desk.open(channel=EPHEMERAL)
    paused(desk)
    desk.desk.checkpoint()
    assert (desk.desk.waiting, desk.desk.floor()) == (1_000, 1_000)


def test_they_count_among_the_channels_that_a_topic_may_have(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "CHANNELS_MAX", 2)
    desk.open()
    desk.open(TWO, EPHEMERAL)
    for name in ("third", "third#ephemeral"):
        with pytest.raises(Refused, match="at most 2 channels"):
            desk.say(p.OpenChannel(1, name), TWO)

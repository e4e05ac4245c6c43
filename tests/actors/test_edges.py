"""Where the actors stop: what is read, asked, queued and kept at once, and what a deletion makes durable, in order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.actors.conftest import Desk
from zsq.actors import options, ordering, read_desk, rundir
from zsq.actors.channel_desk import ChannelDesk
from zsq.actors.dead_letters import letters
from zsq.actors.deferred import Deferred
from zsq.actors.delayed_desk import DelayedDesk, MoveState
from zsq.actors.dying import Death
from zsq.actors.ordering import Ordering
from zsq.actors.read_desk import ReadDesk
from zsq.actors.registry import Registry
from zsq.actors.registry_format import TopicRow
from zsq.actors.registry_rebuild import NotRebuilt, _add_topics
from zsq.actors.storage_actor import StorageActor
from zsq.actors.unsorted import Unsorted
from zsq.storage.files import Files
from zsq.storage.store import Identity
from zsq.transport import protocol as p
from zsq.transport.block import pack
from zsq.transport.errors import E_LIMIT, Refused, UsageError

A = (b"a",)
ALL: tuple[tuple[int, int], ...] = ()


def greeted(known: dict[int, Any] | None = None) -> Ordering:
    found = Ordering(known or {})
    assert found.hello(A, 9, 10**18, 1) is not None
    return found


def published(topic: Ordering, *sequences: int, delay_ms: int = 0) -> None:
    for sequence in sequences:
        assert not topic.publish(A, pack([b"x"], producer_id=9, sequence=sequence), 1, delay_ms)


def test_an_append_has_a_bounded_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "BLOCKS_AN_APPEND", 3)
    monkeypatch.setattr(options, "APPEND_BYTES_LITTLE", 0)
    topic = greeted()
    published(topic, *range(7))
    sizes = []
    while (append := topic.next_append()) is not None:
        sizes.append(len(append[1]))
    assert sizes == [3, 3, 1]


def test_producers_that_have_a_link_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "PRODUCERS_MAX", 2)
    topic = Ordering({})
    assert topic.hello((b"1",), 1, 1, 1) is not None
    assert topic.hello((b"2",), 2, 1, 1) is not None
    assert topic.hello((b"3",), 3, 1, 1) is None
    topic.bye((b"1",))
    assert topic.hello((b"3",), 3, 1, 1) is not None


def test_only_the_answer_to_the_delayed_blocks_that_are_out_counts() -> None:
    topic = greeted()
    published(topic, 0, delay_ms=5)
    out = topic.next_delayed()
    assert out is not None
    assert topic.kept(out[0] + 1, [(7, 1)]) == []
    assert len(topic.kept(out[0], [(7, 1)])) == 1
    assert topic.kept(out[0], [(7, 1)]) == [], "once"


def test_offsets_to_read_for_a_start_are_bounded() -> None:
    rows = Unsorted()
    for start in range(0, 100, 10):
        rows.add((start, 1, 1, 0))
    assert rows.wanted(3, 5) == [0, 10, 20]
    many = Unsorted()
    many.add((0, 100, 1, 0))
    assert many.wanted(3, 5) == [0, 5, 10]
    assert many.wanted(100, 30) == [0, 30, 60, 90]
    assert rows.wanted(100, 15) == [0, 20, 40, 60, 80]
    assert rows.wanted(0, 15) == []


def test_no_more_is_asked_for_than_may_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "DUE_HELD_MAX", 4)
    for held, wanted in ((3, True), (4, False)):
        deferred = Deferred(1, 1, 5)
        deferred.wanted = False
        deferred.due(10, held)
        assert deferred.wanted is wanted
        deferred.wanted = True
        assert deferred.may_ask(held) is wanted


def test_half_of_a_consumers_room_is_for_what_comes_again(desk: Desk) -> None:
    desk.join(A, 10)
    desk.come(10)
    desk.channel.req(A, desk.send_one().token, ALL, 0, desk.wall_ns)
    desk.commit()
    desk.channel.supply.shelve(desk.block_at(0, 10))
    desk.come(10)
    first = desk.channel.next_parcel(desk.now_ns, desk.wall_ns)
    assert first is not None
    assert sum(count for _, count, _ in first.runs) == 5
    second = desk.channel.next_parcel(desk.now_ns, desk.wall_ns)
    assert second is not None
    assert sum(count for _, count, _ in second.runs) == 5
    assert not desk.channel.fin(A, second.token, [(second.runs[0][0], 2)])
    third = desk.channel.next_parcel(desk.now_ns, desk.wall_ns)
    assert third is not None
    assert (third.runs[0][2], sum(count for _, count, _ in third.runs)) == (2, 2), "and never more than it has room for"


def test_dead_letters_are_cut_into_blocks_of_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zsq.actors.dead_letters.BLOCK_COUNT_MAX", 3)
    death = Death((0, 7, 2), "why", "")
    blocks = letters(cast("Any", [(death, (pack([b"x"] * 7), 0, 7))]), "t", "0" * 32, "c", 1)
    assert [block.count for block in blocks] == [3, 3, 1]


def test_a_folder_whose_sockets_would_have_too_long_names_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    data_dir = tmp_path / ("e" * 100)
    data_dir.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    found = rundir.make(data_dir)
    try:
        assert Path(found).parent == Path("/tmp")
        assert list(deep.iterdir()) == []
    finally:
        Path(found).rmdir()


def test_who_waits_to_cancel_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "WAITERS_MAX", 2)
    desk = cast("Any", SimpleNamespace(state=MoveState.READING, _waiting=[]))
    for _ in range(2):
        DelayedDesk.when_idle(desk, lambda: None)
    with pytest.raises(Refused, match=E_LIMIT):
        DelayedDesk.when_idle(desk, lambda: None)


def test_a_full_disk_is_not_asked_again_at_once() -> None:
    now = 10**15
    clock = SimpleNamespace(monotonic_ns=lambda: now, wall_ns=lambda: 100)
    for full, is_open, wait in ((False, True, 0), (True, True, options.DELAYED_RETRY_NS), (False, False, options.DELAYED_RETRY_NS)):
        summary = SimpleNamespace(next_due_ns=50)
        desk = SimpleNamespace(state=MoveState.IDLE, summary=summary, _clock=clock, _full=full, open=is_open)
        assert DelayedDesk._next_scan_ns(cast("Any", desk)) == now + min(wait, options.DELAYED_LOOK_NS)


@pytest.mark.parametrize(("asked", "given"), [(-1, 0), (5, 5), (10**9, options.DUE_ROWS_MAX)])
def test_rows_that_are_due_come_a_bounded_number_at_a_time(asked: int, given: int) -> None:
    limits: list[int] = []

    def due(channel: str, until_ns: int, limit: int, late_ns: int) -> tuple[list[Any], int]:
        limits.append(limit)
        return [], 0

    memory = type("Memory", (dict,), {"due": staticmethod(due), "deferred": lambda self, channel: SimpleNamespace(messages=0)})
    desk = cast("Any", SimpleNamespace(owners={"c": A}, memory=memory(c=1)))
    desk._check_owner = lambda mail, channel: ChannelDesk._check_owner(desk, mail, channel)
    port = SimpleNamespace(send=lambda *_: True)
    mail = SimpleNamespace(envelope=A, word=p.Due(1, "c", 77, asked))
    ChannelDesk.on_due_word(desk, cast("Any", port), cast("Any", mail))
    assert limits == [given]
    mail.envelope = (b"another",)
    with pytest.raises(Refused, match="another owner"):
        ChannelDesk.on_due_word(desk, cast("Any", port), cast("Any", mail))


class Log:
    """Notes how much is read."""

    start = 10

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def read(self, offset: int, bytes_max: int, end: int, blocks_max: int) -> list[Any]:
        self.sizes.append(bytes_max)
        return []

    def skip(self, offset: int) -> int:
        return offset


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (50, 50), (1_000, 100)])
def test_a_read_is_within_its_bounds(asked: int, given: int) -> None:
    log = Log()
    desk = ReadDesk(cast("Any", log), "test")
    port = SimpleNamespace(send=lambda *_: True)
    desk._fetch(cast("Any", port), cast("Any", SimpleNamespace(envelope=A, word=p.Fetch(1, 20, asked))), 50, 100)
    assert log.sizes == [given]
    for offset, size in ((-1, 5), (5, -1)):
        with pytest.raises(UsageError, match="0 or more"):
            desk._fetch(cast("Any", port), cast("Any", SimpleNamespace(envelope=A, word=p.Fetch(1, offset, size))), 50, 100)


def test_reads_that_wait_are_tried_again_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_desk, "RETRIES_MAX", 2)
    desk = ReadDesk(cast("Any", Log()), "test")
    tried: list[int] = []
    monkeypatch.setattr(desk, "fetch", lambda port, mail, end, bytes_max: tried.append(mail))
    waiting = cast("Any", desk._waiting)
    waiting.update({(A, number): read_desk._Waiting(None, number, 0, 0) for number in range(5)})  # type: ignore[arg-type]
    desk.tick()
    assert tried == [0, 1]
    desk.tick()
    desk.tick()
    desk.tick()
    assert tried == [0, 1, 2, 3, 4]


class Seen(Files):
    """Notes renames and syncs of folders."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.done.append(f"rename {Path(old).name}")

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.done.append(f"sync {Path(path).name}")


def test_a_deleted_topic_is_in_the_trash_for_good_before_its_row_goes(tmp_path: Path) -> None:
    files = Seen()
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    registry = Registry(files, data_dir, 0)
    registry.open()
    Path(registry.folder(registry.add("clicks", "always"))).mkdir()
    files.done.clear()
    registry.remove("clicks")
    moved = files.done.index("rename 000001")
    saved = next(at for at, call in enumerate(files.done) if call.startswith("rename registry"))
    assert sorted(files.done[moved + 1 : saved]) == ["sync topics", "sync trash"]
    assert files.done[saved + 1 :].count("sync data") == 1


@pytest.mark.parametrize(("name", "uuid"), [("clicks", "2" * 32), ("other", "1" * 32)])
def test_two_topics_of_one_name_or_one_uuid_are_not_chosen_between(name: str, uuid: str) -> None:
    rebuilt = cast("Any", SimpleNamespace(content=SimpleNamespace(topics={"clicks": TopicRow(1, "1" * 32, "always", 0, "live")}), said=[]))
    with pytest.raises(NotRebuilt):
        _add_topics(rebuilt, {1: None, 2: Identity(name, uuid)}, set())


@pytest.mark.parametrize("delayed", [False, True])
def test_storage_takes_no_append_of_an_epoch_that_is_over(delayed: bool) -> None:
    """An append failed: what the topic had sent behind it, before it knew, must not be stored in its place."""
    sent: list[Any] = []
    taken: list[Any] = []

    def take(*what: Any) -> tuple[int, int]:
        taken.append(what)
        return 0, 1

    parts: dict[str, Any] = {
        "_epoch": 3, "_failure": ("E_X", "why"), "_sealed": False, "mode": "always", "_written": [], "_place": lambda *_: (),
        "_retention": SimpleNamespace(admit=lambda: None, admit_delayed=lambda: None),
        "_log": SimpleNamespace(append=take, end=1), "_delayed": SimpleNamespace(append=take),
    }  # fmt: skip
    storage = cast("Any", SimpleNamespace(**parts))
    port = cast("Any", SimpleNamespace(send=lambda envelope, word: sent.append(word)))

    def hear(epoch: int) -> None:
        word: Any = p.AppendDelayed(5, epoch, (1,)) if delayed else p.Append(5, epoch)
        mail = cast("Any", SimpleNamespace(envelope=(b"t",), word=word, blocks=list))
        handler: Any = StorageActor.on_appenddelayed_word if delayed else StorageActor.on_append_word
        try:
            handler(storage, port, mail)
        except Exception as error:
            sent.append(error)

    hear(2)
    assert taken == []
    assert "why" in str(sent)
    hear(3)
    assert len(taken) == 1

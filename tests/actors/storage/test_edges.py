"""Tests of limits in the actors: what is read, requested, queued and kept at once, and in which
order a deletion makes its steps durable.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.scripted_extension import plain

from tests.actors.conftest import ChannelHarness
from zsq.actors.channel.dead_letters import letters
from zsq.actors.channel.deferred import Deferred
from zsq.actors.channel.dying import Death
from zsq.actors.channel.failures import Cause
from zsq.actors.channel.ordered import Unsorted
from zsq.actors.runtime.port import Mail
from zsq.actors.settings import options
from zsq.actors.storage import reads as reads_module
from zsq.actors.storage.channels import Channels
from zsq.actors.storage.delayed import DelayedMessages, MoveState
from zsq.actors.storage.reads import Reads
from zsq.actors.supervisor import run_directory as rundir
from zsq.actors.supervisor.data_dir import NotRebuilt, _add_topics
from zsq.actors.supervisor.topics.registry import Registry
from zsq.actors.supervisor.topics.registry_format import TopicRow
from zsq.actors.topic import ordering
from zsq.actors.topic.ordering import Ordering
from zsq.storage.directory.store import TopicIdentity
from zsq.storage.files import Files
from zsq.transport.block.block import pack
from zsq.transport.errors import E_LIMIT, Refused, UsageError
from zsq.transport.wire import protocol as p

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


def test_a_producer_too_many_is_refused_until_another_one_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "PRODUCERS_MAX", 2)
    topic = Ordering({})
    assert topic.hello((b"1",), 1, 1, 1) is not None
    assert topic.hello((b"2",), 2, 1, 1) is not None
    assert topic.hello((b"3",), 3, 1, 1) is None
    topic.bye((b"1",))
    assert topic.hello((b"3",), 3, 1, 1) is not None


def test_an_answer_is_used_once_and_only_for_the_request_that_is_out() -> None:
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


def test_deferred_rows_are_not_asked_for_while_too_many_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "DUE_HELD_MAX", 4)
    for held, wanted in ((3, True), (4, False)):
        deferred = Deferred(1, 1, 5)
        deferred.wanted = False
        deferred.due(10, held)
        assert deferred.wanted is wanted
        deferred.wanted = True
        assert deferred.may_ask(held) is wanted


def test_redelivered_messages_get_half_of_a_consumers_room(harness: ChannelHarness) -> None:
    harness.join(A, 10)
    harness.come(10)
    harness.channel.req(A, harness.send_one().token, ALL, 0, harness.wall_ns)
    harness.commit()
    harness.channel.supply.shelve(harness.block_at(0, 10))
    harness.come(10)
    first = harness.channel.next_delivery(harness.now_ns, harness.wall_ns)
    assert first is not None
    assert sum(count for _, count, _ in first.runs) == 5
    second = harness.channel.next_delivery(harness.now_ns, harness.wall_ns)
    assert second is not None
    assert sum(count for _, count, _ in second.runs) == 5
    assert not harness.channel.fin(A, second.token, [(second.runs[0][0], 2)])
    third = harness.channel.next_delivery(harness.now_ns, harness.wall_ns)
    assert third is not None
    assert (third.runs[0][2], sum(count for _, count, _ in third.runs)) == (2, 2), (
        "and never more than it has room for"
    )


def test_dead_letters_are_divided_into_blocks_of_at_most_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zsq.actors.channel.dead_letters.BLOCK_COUNT_MAX", 3)
    death = Death((0, 7, 2), "why", Cause(""))
    blocks = letters(cast("Any", [(death, (pack([b"x"] * 7), 0, 7))]), "t", "0" * 32, "c", 1)
    assert [block.count for block in blocks] == [3, 3, 1]


def test_a_folder_with_too_long_paths_for_sockets_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        shutil.rmtree(found)


def test_the_number_of_cancels_that_wait_for_a_move_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "WAITERS_MAX", 2)
    harness = cast("Any", SimpleNamespace(state=MoveState.READING, _waiting=[]))
    for _ in range(2):
        DelayedMessages._when_idle(harness, lambda: None)
    with pytest.raises(Refused, match=E_LIMIT):
        DelayedMessages._when_idle(harness, lambda: None)


def test_a_move_on_a_full_disk_or_a_sealed_topic_is_not_retried_at_once() -> None:
    now = 10**15
    clock = SimpleNamespace(monotonic_ns=lambda: now, wall_ns=lambda: 100)
    for full, held, is_open, wait in (
        (False, False, True, 0),
        (True, False, True, options.DELAYED_RETRY_NS),
        (False, True, True, options.DELAYED_RETRY_NS),
        (False, False, False, options.DELAYED_RETRY_NS),
    ):
        summary = SimpleNamespace(next_due_ns=50)
        harness = SimpleNamespace(
            state=MoveState.IDLE, summary=summary, _clock=clock, full=full, _held=held,
            _open=is_open,
        )  # fmt: skip
        assert DelayedMessages._next_scan_ns(cast("Any", harness)) == now + min(
            wait, options.DELAYED_LOOK_NS
        )


@pytest.mark.parametrize(("asked", "given"), [(-1, 0), (5, 5), (10**9, options.DUE_ROWS_MAX)])
def test_the_rows_in_one_answer_to_due_are_bounded(asked: int, given: int) -> None:
    limits: list[int] = []

    def due(channel: str, until_ns: int, limit: int) -> tuple[list[Any], int]:
        limits.append(limit)
        return [], 0

    memory = type(
        "Memory",
        (dict,),
        {"due": staticmethod(due), "deferred": lambda self, channel: SimpleNamespace(messages=0)},
    )
    harness = cast("Any", SimpleNamespace(owners={"c": A}, memory=memory(c=1)))
    harness._check_owner = lambda mail, channel: Channels._check_owner(harness, mail, channel)
    port = SimpleNamespace(send=lambda *_: True)
    due_now = p.Due(1, "c", 77, asked)
    Channels.due(harness, cast("Any", port), Mail(A, due_now, []), due_now)
    assert limits == [given]
    with pytest.raises(Refused, match="another owner"):
        Channels.due(harness, cast("Any", port), Mail((b"another",), due_now, []), due_now)


class Log:
    """A log that records how much is read."""

    start = 10
    gaps = ()

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def read(self, offset: int, max_bytes: int, end: int, blocks_max: int) -> list[Any]:
        self.sizes.append(max_bytes)
        return []

    def skip(self, offset: int) -> int:
        return offset


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (50, 50), (1_000, 100)])
def test_the_size_of_a_read_is_moved_into_its_bounds(asked: int, given: int) -> None:
    log = Log()
    harness = Reads(cast("Any", log), lambda: 50, print, plain(cast("Any", log)))
    port = cast("Any", SimpleNamespace(send=lambda *_: True))
    harness._fetch(port, cast("Any", SimpleNamespace(envelope=A)), p.Fetch(1, 20, asked), 50, 100)
    assert log.sizes == [given]
    for offset, size in ((-1, 5), (5, -1)):
        with pytest.raises(UsageError, match="0 or more"):
            harness._fetch(
                port, cast("Any", SimpleNamespace(envelope=A)), p.Fetch(1, offset, size), 50, 100
            )


def test_waiting_reads_are_tried_again_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads_module, "RETRIES_MAX", 2)
    harness = Reads(cast("Any", Log()), lambda: 50, print, plain(cast("Any", Log())))
    tried: list[int] = []
    monkeypatch.setattr(
        harness, "fetch_for_channel", lambda port, mail, message: tried.append(mail)
    )
    waiting = cast("Any", harness._waiting)
    waiting.update({(A, number): reads_module._Waiting(None, number, None) for number in range(5)})  # type: ignore[arg-type]
    harness.tick()
    assert tried == [0, 1]
    harness.tick()
    harness.tick()
    harness.tick()
    assert tried == [0, 1, 2, 3, 4]


class Seen(Files):
    """Files that record renames and syncs of folders."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.done.append(f"rename {Path(old).name}")

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.done.append(f"sync {Path(path).name}")


def test_a_deleted_topics_move_is_synced_before_its_row_is_removed(tmp_path: Path) -> None:
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
def test_a_rebuild_fails_if_two_topics_have_one_name_or_one_uuid(name: str, uuid: str) -> None:
    rebuilt = cast(
        "Any",
        SimpleNamespace(
            content=SimpleNamespace(topics={"clicks": TopicRow(1, "1" * 32, "always", 0, "live")}),
            said=[],
        ),
    )
    with pytest.raises(NotRebuilt):
        _add_topics(rebuilt, {1: None, 2: TopicIdentity(name, uuid)}, set())

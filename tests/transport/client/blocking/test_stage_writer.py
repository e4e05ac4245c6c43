"""Tests of the stage's writer against a small fake storage: whatever is lost in between, the pushed
blocks are sealed once, completely, in order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_stages import CREDIT, FakeStages

import zsq
from zsq.transport.block.block import Block, pack
from zsq.transport.client.blocking.stage_writer import DiskCommitter, StageCommitter, StageWriter
from zsq.transport.client.core import stage_session as session_stage
from zsq.transport.errors import E_BAD_BLOCK, E_DISK_FULL, E_LIMIT, E_NOT_FOUND, E_TOPIC_FAILED
from zsq.transport.wire import protocol as p
from zsq.transport.wire.address import DefaultTimeout


def block(number: int, size: int = 20_000) -> Block:
    return pack([b"%0*d" % (size, number)])


def wanted(blocks: int, size: int = 20_000) -> list[bytes]:
    return [b"%0*d" % (size, number) for number in range(blocks)]


def push(writer: StageWriter, blocks: int, first: int = 0, size: int = 20_000) -> None:
    for number in range(first, first + blocks):
        writer.push(block(number, size))


def test_a_commit_here_is_known_without_an_answer_of_the_bucket(storage: FakeStages) -> None:
    storage.is_behind = True
    with DiskCommitter("t", url=storage.url, timeout=20) as committer:
        assert committer.version_here("app") == -1
        committer.commit_here("app", 3, [])
        assert committer.version_here("app") == 3
        assert committer.version_here("other") == -1
        committer.commit_here("app", 2, [])
        committer.commit_here("app", 4, [])
        asked = {one.version for one in storage.heard if isinstance(one, p.Abort)}
        assert asked == {p.VERSION_ON_DISK}
        assert committer.version_of("app") == 4
        last = storage.heard[-1]
        assert isinstance(last, p.Abort)
        assert last.version == p.VERSION_ASKED
    assert storage.committed.keys() >= {("app", 3), ("app", 4)}


def test_a_commit_here_that_fails_says_so(storage: FakeStages) -> None:
    storage.deaf_to = {p.Commit}
    with DiskCommitter("t", url=storage.url, timeout=0.5) as committer:
        with pytest.raises(zsq.BrokerUnreachable):
            committer.commit_here("app", 3, [])
        with pytest.raises(zsq.UsageError, match="version must be a number"):
            committer.commit_here("app", -1, [])


def test_a_topic_in_memory_is_refused_before_anything_is_sent() -> None:
    nowhere, topic = "tcp://127.0.0.1:1", "t#ephemeral"
    for made in (
        lambda: StageWriter(topic, "app", 1, url=nowhere),
        lambda: StageCommitter(topic, url=nowhere),
    ):
        with pytest.raises(zsq.UsageError, match=r"E_UNSUPPORTED.*use one on disk"):
            made()


def test_a_writer_waits_for_a_broker_also_without_a_time_out_of_the_user() -> None:
    """An outbox makes a writer for each batch, and its broker may be starting again."""
    url, timeout = "tcp://127.0.0.1:1", DefaultTimeout(1.5)
    with (
        StageWriter("t", "app", 1, url=url, timeout=timeout) as writer,
        pytest.raises(zsq.BrokerUnreachable, match="E_TIMEOUT"),
    ):
        push(writer, 1)


def test_pushed_blocks_are_sealed_once_and_committed_once(storage: FakeStages) -> None:
    with StageWriter("t", "app", 3, url=storage.url, kind="job", partition=5) as writer:
        push(writer, 100)
        assert not writer.committed
        part = writer.seal()
        assert part is not None
        assert writer.seal() == part
        with pytest.raises(zsq.UsageError, match="sealed"):
            writer.push(block(0))
    stage, blocks, messages, size_bytes, _ = part
    assert (blocks, messages, size_bytes) == (100, 100, sum(block(i).length for i in range(100)))
    assert storage.bodies(stage) == wanted(100)
    [opened] = [message for message in storage.heard if isinstance(message, p.OpenStage)]
    assert (opened.app, opened.version, opened.kind, opened.partition) == ("app", 3, "job", 5)
    storage.wait_for(lambda: storage.count(p.Bye) == 1)
    assert storage.count(p.Abort) == 0
    with StageCommitter("t", url=storage.url) as committer:
        assert committer.commit("app", 3, [part, None], kind="job") == {
            "first_offset": 0,
            "messages": 100,
            "repeated": False,
        }
        assert committer.commit("app", 3, [part], kind="job")["repeated"]
        answer = {"dropped": 1, "committed": False, "version": 3}
        assert committer.abort("app", 3, [stage]) == answer
    with StageWriter("t", "app", 3, url=storage.url) as writer:
        push(writer, 3)
        assert writer.committed
        push(writer, 3)
        assert writer.seal() is None


def test_a_writer_without_a_push_opens_no_stage(storage: FakeStages) -> None:
    with StageWriter("t", "app", 3, url=storage.url) as writer:
        assert writer.seal() is None
        with pytest.raises(zsq.UsageError, match="sealed"):
            writer.push(block(0))
    assert storage.heard == []


def test_memory_is_bounded_by_the_window(storage: FakeStages) -> None:
    with StageWriter("t", "app", 1, url=storage.url, window_bytes=400_000) as writer:
        for number in range(200):
            writer.push(block(number))
            drive = writer._made
            assert drive is not None
            assert drive.engine.session.window.held_bytes <= 400_000
        part = writer.seal()
    assert part is not None
    assert storage.bodies(part[0]) == wanted(200)
    seals = [message for message in storage.heard if isinstance(message, p.Seal)]
    assert len(seals) > 10
    assert [seal.final for seal in seals] == [False] * (len(seals) - 1) + [True]


@pytest.mark.parametrize("lost", [{1}, {3, 4, 5}, {100}, {7, 20, 21, 60, 99}, set(range(10, 60))])
def test_lost_pushes_are_pushed_again(
    storage: FakeStages, lost: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # If the last pushes are lost, the storage sees no gap.
    monkeypatch.setattr(session_stage, "STALL_NS", 200_000_000)
    storage.lose = lost
    with StageWriter("t", "app", 1, url=storage.url) as writer:
        push(writer, 100)
        part = writer.seal()
    assert part is not None
    assert storage.bodies(part[0]) == wanted(100)


@pytest.mark.parametrize("keep", [0, 1, 5])
def test_a_stage_is_sealed_whole_although_storage_died(storage: FakeStages, keep: int) -> None:
    with StageWriter("t", "app", 1, url=storage.url, window_bytes=400_000) as writer:
        push(writer, 50)
        storage.die(keep)
        storage.start()
        push(writer, 50, 50)
        storage.die(keep)
        storage.start()
        part = writer.seal()
    assert part is not None
    assert storage.bodies(part[0]) == wanted(100)


def test_a_sealed_stage_can_be_committed_after_storage_died(storage: FakeStages) -> None:
    with StageWriter("t", "app", 1, url=storage.url) as writer:
        push(writer, 50)
        part = writer.seal()
        storage.die()
        storage.start()
    assert part is not None
    assert storage.bodies(part[0]) == wanted(50)
    assert storage.count(p.OpenStage) == 1, "a sealed stage needs no link"
    with StageCommitter("t", url=storage.url, timeout=10) as committer:
        storage.deaf_to.add(p.Commit)

        def die_and_start() -> None:
            storage.wait_for(lambda: storage.count(p.Commit) == 1)
            storage.die()
            storage.deaf_to.clear()
            storage.start()

        killer = threading.Thread(target=die_and_start)
        killer.start()
        assert committer.commit("app", 1, [part])["messages"] == 50
        killer.join(5)


def test_credit_holds_the_writer_back(storage: FakeStages) -> None:
    storage.hold = True
    writer = StageWriter("t", "app", 1, url=storage.url, window_bytes=1 << 20, timeout=0.5)
    with pytest.raises(
        zsq.BrokerUnreachable, match=r"no progress for 0.5 s .*0 of 52 blocks have arrived"
    ):
        push(writer, 100)
    drive = writer._made
    assert drive is not None
    assert 0 < drive.engine.session.window.out_bytes <= CREDIT
    assert storage.pushes == 0
    storage.let_go()
    push(writer, 48, 52)
    part = writer.seal()
    assert part is not None
    assert storage.bodies(part[0]) == wanted(100)
    writer.close()


def test_a_link_that_comes_and_goes_is_no_progress(
    storage: FakeStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No push arrives, so the link is opened again and again. The time-out must end that."""
    monkeypatch.setattr(session_stage, "STALL_NS", 100_000_000)
    storage.hold = True
    over = threading.Event()

    def let_go_in_the_end() -> None:
        storage.wait_for(lambda: over.is_set() or storage.count(p.OpenStage) == 7)
        if not over.is_set():
            storage.let_go()

    helper = threading.Thread(target=let_go_in_the_end)
    helper.start()
    with StageWriter("t", "app", 1, url=storage.url, timeout=0.9) as writer:
        push(writer, 1)
        with pytest.raises(zsq.BrokerUnreachable, match=r"no progress for 0\.9 s"):
            writer.seal()
        assert storage.count(p.OpenStage) > 1
    over.set()
    storage.wake()
    helper.join(10)


def test_many_small_blocks_are_sealed_in_order(storage: FakeStages) -> None:
    with StageWriter("t", "app", 1, url=storage.url) as writer:
        push(writer, 3000, size=5)
        part = writer.seal()
    assert part is not None
    assert storage.bodies(part[0]) == wanted(3000, 5)


def test_a_full_disk_is_waited_out(storage: FakeStages) -> None:
    storage.failures.extend([E_DISK_FULL, E_DISK_FULL])
    with StageWriter("t", "app", 1, url=storage.url) as writer:
        push(writer, 10)
        part = writer.seal()
    assert part is not None
    assert storage.bodies(part[0]) == wanted(10)


def test_a_disk_that_stays_full_is_reported_after_the_timeout(storage: FakeStages) -> None:
    storage.failures.extend([E_DISK_FULL] * 100)
    with StageWriter("t", "app", 1, url=storage.url, timeout=0.5) as writer:
        push(writer, 10)
        with pytest.raises(zsq.Refused, match=r"E_DISK_FULL .*accepted no more blocks for 0.5 s"):
            writer.seal()


def test_no_credit_left_is_waited_out(storage: FakeStages) -> None:
    storage.refuse_open.extend([E_LIMIT, E_LIMIT])
    with StageWriter("t", "app", 1, url=storage.url) as writer:
        push(writer, 10)
        assert writer.seal() is not None
    storage.refuse_open.extend([E_LIMIT] * 1000)
    with (
        StageWriter("t", "app", 1, url=storage.url, timeout=0.3) as writer,
        pytest.raises(zsq.Refused, match="E_LIMIT"),
    ):
        writer.push(block(0))


def test_a_topic_that_is_started_again_is_waited_for(storage: FakeStages) -> None:
    storage.refuse_open.extend([E_TOPIC_FAILED, E_TOPIC_FAILED])
    with StageWriter("t", "app", 1, url=storage.url) as writer:
        push(writer, 10)
        assert writer.seal() is not None
    storage.refuse_open.extend([E_TOPIC_FAILED] * 1000)
    with (
        StageWriter("t", "app", 1, url=storage.url, timeout=0.3) as writer,
        pytest.raises(zsq.Refused, match=r"E_TOPIC_FAILED .*as the test wants it"),
    ):
        writer.push(block(0))


def test_a_final_refusal_is_raised_and_ends_the_stage(storage: FakeStages) -> None:
    storage.refuse_open.append(E_NOT_FOUND)
    with StageWriter("t", "app", 1, url=storage.url) as writer:
        for _ in range(2):
            with pytest.raises(zsq.NotFound, match="as the test wants it"):
                writer.push(block(0))
    storage.failures.append(E_BAD_BLOCK)

    def push_and_seal(writer: StageWriter) -> None:
        push(writer, 5)
        writer.seal()

    with (
        StageWriter("t", "app", 1, url=storage.url) as writer,
        pytest.raises(zsq.UsageError, match=E_BAD_BLOCK),
    ):
        push_and_seal(writer)  # the answer comes during one of the two calls
    storage.wait_for(lambda: storage.count(p.Abort) == 1)


def test_a_stage_that_storage_lost_is_reported(storage: FakeStages) -> None:
    with StageWriter("t", "app", 1, url=storage.url, window_bytes=100_000) as writer:
        push(writer, 50)
        storage.die()
        storage.stages.clear()
        storage.sealed.clear()
        storage.start()
        with pytest.raises(zsq.NotFound, match="write the partition again"):
            push(writer, 50, 50)


def test_a_topic_that_is_deleted_is_not_made_again(storage: FakeStages) -> None:
    with StageWriter("t", "app", 1, url=storage.url) as writer:
        push(writer, 1)
        storage.die()
        storage.refuse_open.append(E_NOT_FOUND)
        storage.start()
        with pytest.raises(
            zsq.NotFound,
            match="topic t was deleted while rows were being written to it: as the test wants it",
        ):
            writer.seal()
    looked = [message.create for message in storage.heard if isinstance(message, p.Lookup)]
    assert looked[0]
    assert not any(looked[1:])


def test_closing_without_a_seal_gives_the_stage_up(storage: FakeStages) -> None:
    writer = StageWriter("t", "app", 1, url=storage.url)
    push(writer, 5)
    [stage] = storage.stages
    writer.close()
    writer.close()
    storage.wait_for(lambda: storage.count(p.Bye) == 1)
    [abort] = [message for message in storage.heard if isinstance(message, p.Abort)]
    assert (abort.app, abort.stages) == ("", (stage,)), "its own stage, not the transaction"
    with pytest.raises(zsq.Refused, match="closed"):
        push(writer, 1)


def test_writer_and_committer_report_an_unreachable_broker(tmp_path: Path) -> None:
    with StageWriter("t", "app", 1, url=f"ipc://{tmp_path}/none", timeout=0.3) as writer:
        with pytest.raises(
            zsq.BrokerUnreachable,
            match=r"E_TIMEOUT stage t at ipc://.*/none: no progress for 0.3 s .*zsq serve",
        ):
            writer.push(block(0))
        with pytest.raises(zsq.BrokerUnreachable):
            writer.push(block(0))
    with (
        StageCommitter("t", url=f"ipc://{tmp_path}/none", timeout=0.3) as committer,
        pytest.raises(zsq.BrokerUnreachable),
    ):
        committer.commit("app", 1, [])


def test_an_idle_writer_sends_beats_and_opens_again_without_answer(storage: FakeStages) -> None:
    with StageWriter("t", "app", 1, url=storage.url, heartbeat_ms=1000) as writer:
        push(writer, 1)
        storage.wait_for(lambda: storage.count(p.Beat) >= 2)
        storage.deaf_to.add(p.Beat)
        storage.wait_for(lambda: storage.count(p.OpenStage) == 2)
        assert writer.seal() is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda url: StageWriter("t", "", 1, url=url),
        lambda url: StageWriter("../t", "a", 1, url=url),
        lambda url: StageWriter("t", "a", 1, url=url, kind="batch"),
        lambda url: StageWriter("t", "a", 1, url=url, window_bytes=0),
        lambda url: StageWriter("t", "a", 1, url=url, timeout=0),
        lambda url: StageCommitter("t", url=url).commit("a", 1, [(b"", 0, 0, 0, 0)] * 10_001),
        lambda url: StageCommitter("t", url=url).abort("a", -1),
    ],
)
def test_each_wrong_argument_is_refused(storage: FakeStages, make: Callable[[str], object]) -> None:
    with pytest.raises(zsq.UsageError):
        make(storage.url)


def test_a_forked_process_breaks_no_writer_of_its_parent(storage: FakeStages) -> None:
    """Spark's daemon forks its workers. A writer that a worker inherits must not disturb the
    parent's.
    """
    early = StageWriter("t", "early", 1, url=storage.url)
    begun = StageWriter("t", "begun", 1, url=storage.url)
    push(begun, 5)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            push(early, 5)
            assert early.seal() is not None
            for use in (lambda: push(begun, 1), begun.seal):
                with pytest.raises(zsq.UsageError, match="belongs to the process that started it"):
                    use()
            begun.close()
            with StageWriter("t", "child", 1, url=storage.url) as writer:
                push(writer, 5)
                assert writer.seal() is not None
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    push(early, 5)
    push(begun, 5, 5)
    parts = [early.seal(), begun.seal()]
    assert [part and len(storage.bodies(part[0])) for part in parts] == [5, 10]
    assert len(storage.stages) == 4, (
        "a writer that was copied before its first push names a stage in each process"
    )
    early.close()
    begun.close()

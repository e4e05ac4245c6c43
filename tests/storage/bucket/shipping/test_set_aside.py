"""Tests of setting aside: what a successor has, and what is set aside, is everything, once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from support.faulty_files import Choose, FaultyFiles, PowerCut, keep_all, keep_none
from support.shipping_harness import ARCHIVE, BROKER, ShippingHarness
from support.storage_harness import IDENTITY, SMALL

from zsq.storage.bucket.archive.chunk_cache import open_cache
from zsq.storage.bucket.shipping.rescue_file import RescuedBlock, check_rescue, rescued_blocks
from zsq.storage.bucket.shipping.restore import Target, restore_topics
from zsq.storage.bucket.shipping.set_aside import (
    DAMAGED,
    LARGE,
    OFF,
    PERHAPS_DELAYED,
    FormerTopic,
    Rescued,
    RescuedTopic,
    find_rescued,
    set_aside,
)
from zsq.storage.bucket.shipping.tick_format import (
    COPY_NAME,
    Boundary,
    Copy,
    encode_copy,
    log_object,
)
from zsq.storage.bucket.shipping.tick_reader import TickReader
from zsq.storage.directory.store import TopicIdentity, create_store, open_store
from zsq.storage.errors import StorageError
from zsq.storage.files import Files
from zsq.storage.log.log_format import chunk_name
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import pack

OPTIONS = replace(SMALL, open_remote=open_cache(1))
FIRST = "d" * 32


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShippingHarness]:
    made = ShippingHarness(tmp_path)
    made.open()
    made.take_over()
    yield made
    made.abandon()


def successor(harness: ShippingHarness, copy: str = "e" * 32) -> str:
    """Restore the topic elsewhere, and take over. Return the new directory."""
    directory = f"{harness.root}/{copy[:6]}"
    reader = TickReader(harness.bucket)
    try:
        reader.read()
        (topic,) = restore_topics(
            Files(), harness.bucket, reader, {harness.uuid: Target(IDENTITY, directory)}
        )
    finally:
        reader.close()
    assert not topic.problems
    # The harness compares offsets with those of its own life, which is over.
    harness.bodies = {}
    harness.go_on_in(directory, Copy(ARCHIVE, copy, reader.chain.number, reader.last.digest))
    return directory


def former(harness: ShippingHarness, *, is_off: bool = False) -> RescuedTopic:
    """Set aside what the first directory of the harness has."""
    found = former_broker(harness, is_off=is_off)
    assert found.takeover is not None
    (topic,) = found.topics
    return topic


def former_broker(harness: ShippingHarness, *, is_off: bool = False) -> Rescued:
    path = Path(harness.root, COPY_NAME)
    if not path.exists():
        path.write_bytes(encode_copy(Copy(ARCHIVE, FIRST)))
    topics = [FormerTopic(IDENTITY, f"{harness.root}/clicks", is_off)]
    return set_aside(Files(), harness.bucket, harness.root, topics, BROKER)


def blocks_of(topic: RescuedTopic) -> list[RescuedBlock]:
    if not topic.path:
        return []
    found = check_rescue(Files(), topic.path)
    assert found.counts == topic.counts
    return list(rescued_blocks(Files(), topic.path))


def bodies_of(directory: str) -> tuple[dict[int, bytes], list[bytes]]:
    """Return the messages of a topic by offset, and those that are delayed."""
    store = open_store(Files(), directory, OPTIONS, IDENTITY)
    found: dict[int, bytes] = {}
    delayed: list[bytes] = []
    try:
        offset = store.log.start
        while offset < store.log.end:
            blocks = store.log.read(offset, 4096, store.log.end)
            if not blocks:
                break
            for block in blocks:
                for at, body in enumerate(block.body.values()):
                    found[block.first_offset + at] = bytes(body or b"")
            offset = blocks[-1].next_offset
        if store.delayed is not None:
            delayed = [one.body for one in store.delayed.listed(None, 10_000, 10_000)]
    finally:
        store.close()
    return found, delayed


def contents(blocks: list[RescuedBlock]) -> tuple[dict[int, bytes], list[bytes]]:
    log = {m.offset: m.body for _, messages in blocks for m in messages if m.offset >= 0}
    delayed = [m.body for _, messages in blocks for m in messages if m.offset < 0]
    return log, delayed


def do_something(harness: ShippingHarness, random: Random) -> None:
    harness.now_ns += 5
    do = random.randrange(16)
    if do < 6:
        harness.publish(blocks=random.randint(1, 3))
        if random.random() < 0.7:
            harness.sync()
    elif do == 6:
        harness.channel("one", harness.log.end)
    elif do < 9:
        harness.delay(random.randint(1, 3))
    elif do == 9:
        harness.move_due()
    elif do == 10:
        harness.restart()
        harness.take_over()
    elif do == 11:
        harness.log.roll(harness.now_ns)
    else:
        harness.tick(
            random.choice((200, 1000, 1 << 20)), begin=random.random() < 0.2,
            base_object=random.random() < 0.3, empty=random.random() < 0.1,
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_what_the_successor_has_and_what_is_set_aside_is_everything_once(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    harness = ShippingHarness(tmp_path, seed)
    harness.open()
    harness.take_over()
    harness.publish()
    harness.sync()
    harness.tick()
    for _ in range(random.randint(3, 30)):
        do_something(harness, random)
    # A successor needs all rows that belong to the log, so a piece that is not full ends it.
    harness.sync()
    harness.abandon()
    before, waiting = bodies_of(f"{harness.root}/clicks")
    directory = successor(harness)
    harness.abandon()
    there, waiting_there = bodies_of(directory)
    topic = former(harness)
    assert not topic.problems
    blocks = blocks_of(topic)
    aside, delayed = contents(blocks)
    assert all(not facts.why for facts, _ in blocks)
    assert not aside.keys() & there.keys()
    # A delayed message that was due is in the log of the old broker, and waits in the new one.
    moved = {offset: body for offset, body in before.items() if offset not in aside | there}
    assert before == {**there, **aside, **moved}
    assert sorted(waiting_there + delayed) == sorted([*waiting, *moved.values()])
    assert list(aside) == sorted(aside)


def test_nothing_is_set_aside_if_all_was_shipped(harness: ShippingHarness) -> None:
    harness.publish(blocks=3)
    harness.delay()
    harness.sync()
    harness.tick()
    harness.queue.clear()
    successor(harness)
    found = former_broker(harness)
    assert (found.messages, found.topics[0].path) == (0, "")
    assert "the bucket has all messages" in found.sentence
    assert find_rescued(Files(), harness.root) == []


def test_the_file_says_whose_messages_these_are(harness: ShippingHarness) -> None:
    harness.publish()
    harness.sync()
    harness.tick()
    end = harness.log.end
    block = pack(
        (b"text", b"\xff\x00", b"last"), keys=(b"k", None, b"\xfe"), tags=(b"t", None, None),
        headers=(None, b"\x82\xa1a\x01\xa1b\xc4\x01\xff", None), producer_id=9, sequence=4,
    )  # fmt: skip
    harness.log.append([block], harness.now_ns + 1)
    harness.log.sync()
    successor(harness)
    topic = former(harness)
    found = check_rescue(Files(), topic.path)
    head = found.head
    assert (head.broker, head.topic, head.topic_uuid) == (BROKER, "clicks", IDENTITY.uuid)
    assert (head.copy, head.end, head.taken_by) == (FIRST, end, "host")
    assert (found.counts.first_offset, found.counts.last_offset) == (end, end + 2)
    ((facts, messages),) = blocks_of(topic)
    assert (facts.producer, facts.sequence, facts.count) == (9, 4, 3)
    assert [one.body for one in messages] == [b"text", b"\xff\x00", b"last"]
    assert [one.key for one in messages] == [b"k", None, b"\xfe"]
    assert [one.tag for one in messages] == [b"t", None, None]
    assert [one.headers for one in messages] == [None, {"a": 1, "b": b"\xff"}, None]
    lines = Path(topic.path).read_text().splitlines()
    assert json.loads(lines[3])["body"] == "text"
    assert json.loads(lines[4])["body_base64"] == "/wA="


def test_a_repetition_finds_the_same(harness: ShippingHarness) -> None:
    harness.publish()
    harness.sync()
    harness.tick()
    harness.publish()
    harness.sync()
    successor(harness)
    first = former(harness)
    data = Path(first.path).read_bytes()
    assert former(harness) == first
    Path(first.path).unlink()
    assert former(harness) == first
    assert Path(first.path).read_bytes() == data


def test_later_takeovers_change_nothing(harness: ShippingHarness) -> None:
    harness.publish()
    harness.sync()
    harness.tick()
    harness.restart()
    harness.take_over()  # by the same copy
    harness.publish()
    harness.sync()
    harness.tick()
    harness.publish()
    harness.sync()
    lost = {offset: body for offset, body in harness.bodies.items() if offset >= 6}
    successor(harness)
    first = harness.taken.takeover.number
    for copy in ("f" * 32, "1" * 32):
        harness.publish()
        harness.sync()
        harness.tick()
        successor(harness, copy)
    harness.restart()
    harness.take_over()
    topic = former(harness)
    assert contents(blocks_of(topic))[0] == lost
    assert check_rescue(Files(), topic.path).head.takeover == first


@pytest.mark.parametrize("copy", [None, Copy(ARCHIVE, FIRST)])
def test_nothing_happens_if_no_other_copy_has_taken_over(
    harness: ShippingHarness, copy: Copy | None
) -> None:
    harness.publish()
    harness.sync()
    harness.tick()
    harness.publish()
    harness.sync()
    if copy is not None:
        Path(harness.root, COPY_NAME).write_bytes(encode_copy(copy))
    found = set_aside(Files(), harness.bucket, harness.root, [], BROKER)
    assert (found.takeover, found.topics) == (None, [])
    assert not Path(harness.root, "rescue").exists()


def test_another_bucket_is_refused(harness: ShippingHarness) -> None:
    harness.publish()
    harness.sync()
    harness.tick()
    Path(harness.root, COPY_NAME).write_bytes(encode_copy(Copy("9" * 32, "8" * 32)))
    with pytest.raises(StorageError, match="another bucket"):
        set_aside(Files(), harness.bucket, harness.root, [], BROKER)


def test_a_topic_that_is_not_shipped_keeps_its_directory(harness: ShippingHarness) -> None:
    harness.publish()
    harness.sync()
    harness.tick()
    before = bodies_of_closed(harness)
    successor(harness)
    for _ in range(2):
        topic = former(harness, is_off=True)
        assert (topic.why_kept, topic.path, topic.counts.messages) == (OFF, "", 0)
        assert bodies_of(f"{topic.kept_path}/directory")[0] == before
        note = json.loads(Path(topic.kept_path, "note.json").read_text())
        assert (note["topic"], note["uuid"]) == ("clicks", IDENTITY.uuid)
    (found,) = find_rescued(Files(), harness.root)
    assert (found.path, found.is_kept) == (topic.kept_path, True)


def bodies_of_closed(harness: ShippingHarness) -> dict[int, bytes]:
    harness.abandon()
    found = bodies_of(harness.directory)[0]
    harness.open()
    return found


@pytest.mark.parametrize("file_bytes_max", [1 << 30, 10])
def test_a_topic_without_a_tail_is_set_aside_as_a_whole(
    harness: ShippingHarness, file_bytes_max: int
) -> None:
    harness.publish()
    harness.sync()
    harness.tick()
    successor(harness)
    other = TopicIdentity("news", "99" * 16)
    directory = f"{harness.root}/news"
    create_store(Files(), directory, other, OPTIONS)
    store = open_store(Files(), directory, OPTIONS, other)
    store.log.append([pack((b"one", b"two"))], 1_000)
    store.make_delayed(1_000).put([(pack((b"late",), producer_id=3), 5_000)], 1_000)
    store.close()
    Path(harness.root, COPY_NAME).write_bytes(encode_copy(Copy(ARCHIVE, FIRST)))
    found = set_aside(
        Files(), harness.bucket, harness.root, [FormerTopic(other, directory)], BROKER,
        file_bytes_max=file_bytes_max,
    )  # fmt: skip
    (topic,) = found.topics
    if file_bytes_max < 1 << 30:
        assert (topic.why_kept, topic.path) == (LARGE, "")
        assert not Path(directory).exists()
        assert "the directory of 1 topic" in found.sentence
        return
    blocks = blocks_of(topic)
    assert contents(blocks) == ({0: b"one", 1: b"two"}, [b"late"])
    assert [(facts.due_ns, facts.why) for facts, _ in blocks] == [(0, ""), (5_000, "")]
    assert "set aside in" in found.sentence


def test_delayed_messages_are_not_certain_without_the_ticks(harness: ShippingHarness) -> None:
    harness.delay()
    harness.publish()
    harness.sync()
    harness.tick()
    last = harness.number - 1
    harness.delay(3)
    successor(harness)
    harness.bucket.remove([log_object(last)])
    harness.publish()
    harness.sync()
    boundary = harness.tick(begin=True, registry=True)
    made = Boundary(boundary, "", harness.epoch, boundary, harness.now_ns)
    harness.ship_log.bound(harness.ship_log.with_digest(made))
    topic = former(harness)
    blocks = blocks_of(topic)
    assert {facts.why for facts, _ in blocks} == {PERHAPS_DELAYED}
    assert len(contents(blocks)[1]) == 5
    assert (topic.counts.uncertain, topic.counts.delayed) == (5, 5)


@pytest.mark.parametrize("size", [20, 400])
def test_a_commit_that_was_not_answered_is_not_certain(tmp_path: Path, size: int) -> None:
    harness = ShippingHarness(tmp_path)
    harness.options = replace(harness.options, adopt_bytes=500, group_append_bytes=900)
    harness.open()
    harness.take_over()
    harness.publish()
    harness.sync()
    harness.tick()
    key = harness.stage("part", 7, blocks=4, size=size)
    harness.seal(key)
    harness.commit(7, key)
    harness.publish()
    harness.sync()
    harness.queue.clear()
    harness.abandon()
    successor(harness)
    harness.abandon()
    blocks = blocks_of(former(harness))
    assert len(blocks) == 5
    assert all("query 7" in facts.why for facts, _ in blocks[:4])
    assert blocks[4].facts.why == ""


def test_damage_keeps_the_directory_too(harness: ShippingHarness) -> None:
    harness.publish()
    harness.sync()
    harness.tick()
    harness.publish(blocks=3)
    harness.sync()
    harness.log.roll(harness.now_ns)
    harness.publish()
    harness.sync()
    successor(harness)
    path = Path(harness.root, "clicks", chunk_name(0))
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    topic = former(harness)
    assert topic.problems
    assert topic.why_kept == DAMAGED
    assert topic.counts.problems
    assert Path(topic.kept_path, "directory", path.name).exists()
    assert Path(topic.path).exists()
    again = former(harness)
    assert (again.path, again.kept_path, again.counts) == (
        topic.path,
        topic.kept_path,
        topic.counts,
    )


@pytest.mark.parametrize(("choose", "first"), [(keep_none, 1), (keep_all, 2)])
@pytest.mark.parametrize("is_off", [False, True])
def test_a_power_cut_at_any_moment_loses_nothing(
    tmp_path: Path, choose: Choose, first: int, is_off: bool
) -> None:
    harness = ShippingHarness(tmp_path)
    harness.open()
    harness.take_over()
    harness.publish()
    harness.sync()
    harness.tick()
    harness.publish(blocks=2)
    harness.delay()
    harness.sync()
    harness.abandon()
    before, waiting = bodies_of(f"{harness.root}/clicks")
    successor(harness)
    harness.abandon()
    saved = tmp_path / "saved"
    shutil.copytree(harness.root, saved)
    cuts = 0
    for cut in range(first, 200, 2):
        root = tmp_path / "root"
        shutil.copytree(saved, root)
        Path(root, COPY_NAME).write_bytes(encode_copy(Copy(ARCHIVE, FIRST)))
        files = FaultyFiles(str(root))
        files.power_cut_at = cut
        topics = [FormerTopic(IDENTITY, f"{root}/clicks", is_off)]
        try:
            set_aside(files, harness.bucket, str(root), topics, BROKER)
        except PowerCut:
            cuts += 1
            files.crash(choose)
        else:
            shutil.rmtree(root)
            break
        (topic,) = set_aside(files, harness.bucket, str(root), topics, BROKER).topics
        assert not topic.problems
        if is_off:
            assert bodies_of(f"{topic.kept_path}/directory") == (before, waiting)
        else:
            aside, delayed = contents(blocks_of(topic))
            assert aside == {at: body for at, body in before.items() if at >= 3}
            assert sorted(delayed) == sorted(waiting)
        shutil.rmtree(root)
    assert cuts > 3


def test_a_missing_directory_is_a_problem(harness: ShippingHarness) -> None:
    harness.publish()
    harness.sync()
    harness.tick()
    successor(harness)
    shutil.rmtree(f"{harness.root}/clicks")
    assert "does not exist" in former(harness).problems[0]


def test_a_state_that_is_ahead_of_the_bucket_does_not_matter(harness: ShippingHarness) -> None:
    harness.publish()
    harness.sync()
    harness.tick()
    harness.publish()
    harness.sync()
    harness.commit_state(StateBatch())
    successor(harness)
    assert former(harness).counts.messages == 3

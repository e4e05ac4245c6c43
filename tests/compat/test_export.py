"""Tests of the export to nsqd: a round trip, what each queue gets, and what is refused so that
nothing is lost silently.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import lmdb
import pytest
from support.go_disk_queue import GoDiskQueue
from support.nsqd import Backlog, backlogs, contents, fixture, message, write_nsqd

from zsq.actors.supervisor.topics.registry import Registry, TopicRow
from zsq.apps.nsqd.nsqd_export import ExportOptions, export_nsqd
from zsq.apps.nsqd.nsqd_import import import_nsqd
from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.delayed.delayed_format import DelayedKey, DelayedRow, due_block, row_key
from zsq.storage.directory.store import StoreOptions, TopicIdentity, create_store, open_store
from zsq.storage.errors import ForeignDirectory, Locked
from zsq.storage.files import Files
from zsq.storage.nsq.disk_queue import DiskQueue
from zsq.storage.nsq.disk_queue_format import (
    NsqdChannel,
    NsqdList,
    NsqdTopic,
    NsqMessage,
    decode_message,
    decode_nsqd,
)
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import pack
from zsq.transport.errors import DataLoss, NotFound, Refused, UsageError
from zsq.transport.wire.codec import pack_headers

OPTIONS = StoreOptions(reserve_bytes=0, chunk_bytes=4096)
UUID = "00112233445566778899aabbccddeeff"


def queue(folder: Path, name: str) -> list[NsqMessage]:
    """Return the messages of a queue as nsqd would read them. Reading removes them from
    the files.
    """
    with DiskQueue(folder, name, min_msg_size=26) as found:
        assert found.report.clean
        depth = found.depth()
        messages = [decode_message(one) for one in found]
        assert depth == len(messages)
        return messages


class Topic:
    """One topic with six blocks of ten messages, created without a broker."""

    def __init__(self, data_dir: Path, node: int = 0, **columns: Any) -> None:
        self.data_dir = data_dir
        data_dir.mkdir()
        registry = Registry(Files(), data_dir, node)
        registry.open()
        registry.topics["t"] = row = TopicRow(1, UUID, "always", 0, "live")
        registry.next_number = 2
        registry.save()
        self.folder = registry.folder(row)
        create_store(Files(), self.folder, TopicIdentity("t", UUID), OPTIONS)
        self.bodies = [b"body %d" % number for number in range(60)]
        store = open_store(Files(), self.folder, OPTIONS, TopicIdentity("t", UUID))
        for first in range(0, 60, 10):
            store.log.append(
                [pack(self.bodies[first : first + 10], **columns)],
                1_700_000_000_000_000_000 + first,
            )
        store.close()

    def commit(self, batch: StateBatch) -> None:
        store = open_store(Files(), self.folder, OPTIONS, TopicIdentity("t", UUID))
        store.state.commit(batch)
        store.close()

    def export(self, out: Path, *names: str, **options: Any) -> list[str]:
        return export_nsqd(Files(), out, self.data_dir, names, ExportOptions(**options)).notes


def channel(next_offset: int, paused: bool = False) -> ChannelRow:
    return ChannelRow(next_offset, paused, 1)


# The round trip


def test_import_export_read_and_import_again(tmp_path: Path) -> None:
    import_nsqd(Files(), str(fixture("clean", tmp_path)), tmp_path / "data", options=OPTIONS)
    first = backlogs(tmp_path / "data")
    before = contents(tmp_path / "clean")
    report = export_nsqd(
        Files(), tmp_path / "out", tmp_path / "data", (), ExportOptions(file_bytes_max=32768)
    )
    assert report.notes == []
    import_nsqd(Files(), str(tmp_path / "out"), tmp_path / "data2", options=OPTIONS)
    second = backlogs(tmp_path / "data2")

    def plain(found: dict[str, Backlog]) -> dict[str, object]:
        return {
            name: (
                one.paused,
                one.waiting,
                {its: sorted(left) for its, left in one.channels.items()},
                one.stopped,
                sorted(one.ids),
            )
            for name, one in found.items()
        }

    assert plain(first) == plain(second)
    listed = decode_nsqd((tmp_path / "out/nsqd.dat").read_bytes())
    assert {(topic.name, topic.paused) for topic in listed.topics} == {
        ("clicks", False),
        ("frozen", True),
        ("waiting", False),
    }
    for topic in listed.topics:
        names = [topic.name, *(f"{topic.name}:{one.name}" for one in topic.channels)]
        for name in names:
            assert Counter(queue(tmp_path / "clean", name)) == Counter(
                queue(tmp_path / "out", name)
            ), "time, attempts, id and body"
    assert before


def test_files_roll_as_nsqds_do(tmp_path: Path) -> None:
    """If a queue still has all messages from its first one on, its exported files are byte for byte
    those that nsqd had written.
    """
    import_nsqd(Files(), str(fixture("clean", tmp_path)), tmp_path / "data", options=OPTIONS)
    export_nsqd(
        Files(),
        tmp_path / "out",
        tmp_path / "data",
        ["waiting", "frozen"],
        ExportOptions(file_bytes_max=32768),
    )
    theirs, ours = contents(tmp_path / "clean"), contents(tmp_path / "out")
    same = [name for name in ours if name != "nsqd.dat"]
    assert len(same) == 6
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}


def test_go_diskqueues_rules_read_what_was_written(tmp_path: Path) -> None:
    import_nsqd(Files(), str(fixture("clean", tmp_path)), tmp_path / "data", options=OPTIONS)
    report = export_nsqd(
        Files(), tmp_path / "out", tmp_path / "data", (), ExportOptions(file_bytes_max=32768)
    )
    for name, count in report.queues.items():
        theirs = GoDiskQueue(tmp_path / "out", name, 32768, 26, 1 << 20, 2500)
        assert theirs.depth == count
        assert [theirs.get() is not None for _ in range(count)] == [True] * count
        assert theirs.get() is None
    assert not list((tmp_path / "out").glob("*.bad"))


# What each queue gets


def test_unfinished_messages_are_exported_with_their_attempts(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "data", node=5)
    due = 4_000_000_000_000_000_000
    holes = [("c", 3, 2, 4, 0), ("c", 25, 1, 1, due), ("c", 8, 5, 70_000, 0)]
    topic.commit(
        StateBatch(channel_puts={"c": channel(50, True), "done": channel(60)}, hole_puts=holes)
    )
    assert topic.export(tmp_path / "out") == []
    found = queue(tmp_path / "out", "t:c")
    offsets = [3, 4, 8, 9, 10, 11, 12, 25, *range(50, 60)]
    assert [one.body for one in found] == [topic.bodies[offset] for offset in offsets]
    assert [one.attempts for one in found] == [
        4,
        4,
        65535,
        65535,
        65535,
        65535,
        65535,
        1,
        *[0] * 10,
    ]
    assert [int(one.id, 16) for one in found] == [5 << 54 | offset for offset in offsets]
    assert found[-1].timestamp_ns == 1_700_000_000_000_000_050
    assert queue(tmp_path / "out", "t:done") == queue(tmp_path / "out", "t") == []
    assert decode_nsqd((tmp_path / "out/nsqd.dat").read_bytes()) == NsqdList(
        (NsqdTopic("t", False, (NsqdChannel("c", True), NsqdChannel("done"))),), "1.3.0"
    )


def test_a_paused_topic_keeps_what_its_channels_do_not_see(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "data")
    topic.commit(StateBatch(channel_puts={"c": channel(30)}, paused_end=40))
    topic.export(tmp_path / "out")
    assert [one.body for one in queue(tmp_path / "out", "t:c")] == topic.bodies[30:40]
    assert [one.body for one in queue(tmp_path / "out", "t")] == topic.bodies[40:]
    assert decode_nsqd((tmp_path / "out/nsqd.dat").read_bytes()).topics[0].paused


def test_a_topic_without_channels_gives_what_waits(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "data")
    topic.commit(StateBatch(waiting=35))
    topic.export(tmp_path / "out")
    assert [one.body for one in queue(tmp_path / "out", "t")] == topic.bodies[35:]


def test_unfinished_messages_that_cannot_be_read_are_refused_or_stepped_over(
    tmp_path: Path,
) -> None:
    topic = Topic(tmp_path / "data")
    chunk = next(Path(topic.folder).glob("*.chunk"))
    data = bytearray(chunk.read_bytes())
    data[data.index(b"body 23")] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(
        DataLoss,
        match=r"10 unfinished messages cannot be read, so nothing was exported.*"
        r"t: 10 messages from offset 20 on.*--skip-lost",
    ):
        topic.export(tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
    notes = topic.export(tmp_path / "out", skip_lost=True)
    assert [one.body for one in queue(tmp_path / "out", "t")] == topic.bodies[:20] + topic.bodies[
        30:
    ]
    assert notes == ["t: 10 messages from offset 20 on are damaged or missing"]
    topic.commit(StateBatch(channel_puts={"c": channel(30)}))
    assert topic.export(tmp_path / "out2") == [], "what is finished may be damaged"


def test_a_missing_chunk_is_refused_and_one_that_was_removed_is_not(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "data", keys=[b"k" * 200] * 10)  # the long keys make several chunks
    chunks = sorted(Path(topic.folder).glob("*.chunk"))
    base = int(chunks[1].stem)
    chunks[0].unlink()
    with pytest.raises(DataLoss, match=f"{base} unfinished messages"):
        topic.export(tmp_path / "out")
    topic.commit(StateBatch(start=base))
    notes = topic.export(tmp_path / "out")
    assert f"t: {base} messages from offset 0 on were removed by retention" in notes
    assert [one.body for one in queue(tmp_path / "out", "t")] == topic.bodies[base:]


# Data that NSQ cannot store


def test_keys_tags_and_headers_are_named(tmp_path: Path) -> None:
    headers = [pack_headers({"nsq_id": "00000000000000ab"})] * 9 + [pack_headers({"a": 1})]
    topic = Topic(
        tmp_path / "data", keys=[b"k"] * 3 + [None] * 7, tags=[b"a"] * 10, headers=headers
    )
    notes = topic.export(tmp_path / "out")
    assert sorted(notes) == [
        "headers are left out, because NSQ has none: 6 messages",
        "keys are left out, because NSQ has none: 18 messages",
        "tags are left out, because NSQ has none: 60 messages",
    ]
    assert [one.id for one in queue(tmp_path / "out", "t")[:10]] == [b"00000000000000ab"] * 9 + [
        b"%016x" % 9
    ]


def test_a_body_over_nsqds_limit_is_refused_or_skipped_as_asked(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "data")
    with pytest.raises(UsageError, match=r"offset 10 has 7 bytes.*--max-msg-size"):
        topic.export(tmp_path / "out", body_bytes_max=6)
    assert not list(tmp_path.glob("out*")), "nothing is there, half of it neither"
    notes = topic.export(tmp_path / "out", body_bytes_max=6, skip_too_big=True)
    assert len(notes) == 50
    assert len(queue(tmp_path / "out", "t")) == 10


@pytest.mark.parametrize("delayed", ["refuse", "now", "skip"])
def test_delayed_messages_are_refused_published_or_skipped_as_asked(
    tmp_path: Path, delayed: str
) -> None:
    topic = Topic(tmp_path / "data")
    topic.commit(StateBatch(channel_puts={"c": channel(60)}))
    Path(f"{topic.folder}/delayed").mkdir()
    store = DelayedStore(f"{topic.folder}/delayed", bytes.fromhex(UUID), create=True)
    bodies = [b"later %d" % number for number in range(40)]
    store.put(
        [
            (pack(bodies[:30]), 4_000_000_000_000_000_000),
            (pack(bodies[30:]), 4_000_000_000_000_000_001),
        ],
        1,
    )
    store.close()
    if delayed == "refuse":
        with pytest.raises(Refused, match="40 delayed messages"):
            topic.export(tmp_path / "out")
        assert not list(tmp_path.glob("out*"))
        return
    notes = topic.export(tmp_path / "out", delayed=delayed)
    assert "40 delayed messages" in notes[0]
    assert [one.body for one in queue(tmp_path / "out", "t")] == (
        bodies if delayed == "now" else []
    )


def make_delayed(topic: Topic) -> list[DelayedKey]:
    """Store two rows of two delayed messages each."""
    Path(f"{topic.folder}/delayed").mkdir()
    store = DelayedStore(f"{topic.folder}/delayed", bytes.fromhex(UUID), create=True)
    try:
        due = 4_000_000_000_000_000_000
        return store.put([(pack([b"a", b"b"]), due), (pack([b"c", b"d"]), due + 1)], 1)
    finally:
        store.close()


def test_messages_moved_to_the_log_before_a_crash_are_exported_once(tmp_path: Path) -> None:
    """The moved messages are in the log, but a crash prevented the deletion of their row."""
    topic = Topic(tmp_path / "data")
    topic.commit(StateBatch(channel_puts={"c": channel(60)}, applied_offset=60, synced_end=60))
    key = make_delayed(topic)[0]
    store = open_store(Files(), topic.folder, OPTIONS, TopicIdentity("t", UUID))
    store.log.append([due_block(DelayedRow(key, pack([b"a", b"b"])))], 1_700_000_000_000_000_100)
    store.close()
    topic.export(tmp_path / "out", delayed="now")
    assert [one.body for one in queue(tmp_path / "out", "t:c")] == [b"a", b"b"]
    assert [one.body for one in queue(tmp_path / "out", "t")] == [b"c", b"d"]


def test_a_delayed_row_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "data")
    key = make_delayed(topic)[0]
    with lmdb.open(f"{topic.folder}/delayed", lock=False) as env, env.begin(write=True) as txn:
        value = txn.get(row_key(key))
        assert value is not None
        txn.put(row_key(key), value[:-1] + bytes([value[-1] ^ 1]))
    with pytest.raises(DataLoss, match="2 delayed messages"):
        topic.export(tmp_path / "out", delayed="now")
    topic.export(tmp_path / "out", delayed="now", skip_lost=True)
    assert [one.body for one in queue(tmp_path / "out", "t")] == [*topic.bodies, b"c", b"d"]


# The output directory


def test_an_out_dir_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "data")
    out = tmp_path / "out"
    out.mkdir()
    topic.export(out)
    with pytest.raises(ForeignDirectory, match="not empty"):
        topic.export(out)


def test_an_unknown_topic_and_a_directory_in_use_are_refused(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "data")
    with pytest.raises(NotFound, match="nothing"):
        topic.export(tmp_path / "out", "nothing")
    with pytest.raises(ForeignDirectory, match=r"registry\.json"):
        export_nsqd(Files(), tmp_path / "out", tmp_path)
    lock = Files().lock(str(tmp_path / "data/lock"))
    try:
        with pytest.raises(Locked):
            topic.export(tmp_path / "out")
    finally:
        Files().close(lock)
    assert not list(tmp_path.glob("out*"))


def test_an_interrupted_export_starts_from_the_beginning(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "data")
    write_nsqd(tmp_path / "out.export.tmp", NsqdList(), {"t": [[message(1)]]})
    topic.export(tmp_path / "out")
    assert len(queue(tmp_path / "out", "t")) == 60
    assert not (tmp_path / "out.export.tmp").exists()

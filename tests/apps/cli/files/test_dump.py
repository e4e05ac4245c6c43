"""Tests of `zsq dump`: it recognizes every kind of file by its content, shows all of it, and
reports damage and continues behind it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from crc32c import crc32c
from support.nsqd import FIXTURES, message, write_nsqd
from support.zsq_command import run_text

from zsq.apps.cli.files.dump import dump as command
from zsq.apps.dump.dump import dump, kind_of_path
from zsq.apps.dump.record import as_json, as_line, damaged, plain, record, with_bytes
from zsq.storage.delayed.delayed import DelayedStore
from zsq.storage.directory.store import StoreOptions, TopicIdentity, create_store, open_store
from zsq.storage.files import Files
from zsq.storage.log.damage import Bad, keep_bytes
from zsq.storage.log.transactions import Transaction
from zsq.storage.nsq.disk_queue_format import NsqdList, encode_message, encode_record
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import ProducerRow, StateBatch
from zsq.transport.block.block import Block, pack
from zsq.transport.block.block_format import ADDRESSED
from zsq.transport.errors import UsageError
from zsq.transport.wire.codec import pack_headers

UUID = "00112233445566778899aabbccddeeff"
OPTIONS = StoreOptions(reserve_bytes=0, chunk_bytes=1 << 20)
TIME_NS = 1_700_000_000_000_000_000


def show(path: Path, *, bodies: bool = False) -> list[dict[str, Any]]:
    return list(dump(str(path), kind_of_path(str(path)), bodies=bodies))


def only(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in found if one["kind"] == kind]


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a store with a sealed and a current chunk, a channel, unfinished and deferred
    messages, a producer, and delayed messages.
    """
    folder = tmp_path_factory.mktemp("dump") / "topic"
    create_store(Files(), str(folder), TopicIdentity("clicks", UUID, 1000), OPTIONS)
    store = open_store(Files(), str(folder), OPTIONS, TopicIdentity("clicks", UUID, 1000))
    headers = [pack_headers({"a": 1}), None]
    for sequence in range(5):
        columns: dict[str, Any] = {"keys": [b"k", None], "tags": [b"t", b"u"], "headers": headers}
        block = pack(
            [b"body %d" % sequence, b"\xff\xfe"], **columns, producer_id=7, sequence=sequence
        )
        store.log.append([block], TIME_NS + sequence)
    store.log.append([pack([b"x" * 500_000])] * 2, TIME_NS + 9)
    store.log.append([pack([b"x" * 500_000])], TIME_NS + 10)
    batch = StateBatch(
        channel_puts={"c": ChannelRow(1004, True, 5, {"message_count": 3})},
        hole_puts=[("c", 1001, 2, 4, 0), ("c", 1003, 1, 1, TIME_NS)], producers={7: ProducerRow(5, TIME_NS, ((4, 1008),))},
        applied_offset=store.log.end, synced_end=store.log.end,
    )  # fmt: skip
    store.log.sync()
    store.state.commit(batch)
    store.close()
    (folder / "delayed").mkdir()
    delayed = DelayedStore(
        str(folder / "delayed"), bytes.fromhex(UUID), create=True, first_serial=50
    )
    delayed.put([(pack([b"later", b"then"], producer_id=7, sequence=6), TIME_NS)], 1)
    delayed.close()
    return folder


def chunks(topic: Path) -> list[Path]:
    return sorted(topic.glob("*.chunk"))


# Files of ZSQ


def test_a_chunk_is_shown_with_its_blocks_and_footer(topic: Path) -> None:
    found = show(chunks(topic)[0])
    assert found[0]["kind"] == "chunk"
    assert (found[0]["base_offset"], found[0]["uuid"]) == (1000, UUID)
    blocks = only(found, "block")
    assert [(one["offset"], one["count"], one["sequence"]) for one in blocks[:5]] == [
        (1000 + 2 * n, 2, n) for n in range(5)
    ]
    assert (blocks[0]["time_ns"], blocks[0]["producer"]) == (TIME_NS, f"{7:016x}")
    assert blocks[0]["columns"] == ["body", "key", "tag", "headers"]
    assert found[-1]["kind"] == "footer"
    assert found[-1]["next_offset"] == 1012
    assert not only(found, "damaged")


def test_bodies_are_shown_as_text_or_hex(topic: Path) -> None:
    first, second = only(show(chunks(topic)[0], bodies=True), "message")[:2]
    assert first == {
        "kind": "message", "offset": 1000, "time_ns": TIME_NS, "key": "k", "tag": "t", "headers": {"a": 1}, "body": "body 0",
    }  # fmt: skip
    assert second == {
        "kind": "message",
        "offset": 1001,
        "time_ns": TIME_NS,
        "tag": "u",
        "headers": {},
        "body_hex": "fffe",
    }


def test_damage_in_a_chunk_is_shown_and_walked_past(topic: Path, tmp_path: Path) -> None:
    whole = show(chunks(topic)[0])
    blocks = only(whole, "block")
    for at, why in (
        (blocks[2]["position"] + 70, "checksum"),
        (blocks[2]["position"] + 9, "no block"),
    ):
        path = tmp_path / "renamed"
        data = bytearray(chunks(topic)[0].read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
        found = show(path)
        [bad] = only(found, "damaged")
        assert (bad["position"], bad["bytes"]) == (blocks[2]["position"], blocks[2]["bytes"])
        assert why in bad["why"]
        assert [one for one in found if one["kind"] != "damaged"] == [
            one for one in whole if one is not blocks[2]
        ]


def test_blocks_are_shown_although_headers_are_damaged(topic: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.chunk"
    data = bytearray(chunks(topic)[0].read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    found = show(path)
    assert (found[0]["base_offset"], found[1]["kind"]) == (1000, "damaged"), (
        "the other copy is good"
    )
    assert len(only(found, "block")) == 7
    data[70] ^= 1
    path.write_bytes(data)
    found = show(path)
    assert found[0]["kind"] == "damaged"
    blocks = only(show(chunks(topic)[0]), "block")
    assert [one["position"] for one in only(found, "unchecked block")] == [
        one["position"] for one in blocks
    ]


def test_an_index_is_shown_and_a_cut_one_is_damaged(topic: Path, tmp_path: Path) -> None:
    path = next(topic.glob("*.index"))
    found = show(path)
    blocks = only(show(path.with_suffix(".chunk")), "block")
    assert found[0]["entries"] == len(found) - 1
    assert {one["position"] for one in found[1:]} <= {one["position"] for one in blocks}
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes()[:-1])
    assert [one["kind"] for one in show(copy)] == ["damaged"]


def test_a_group_and_its_staged_part_are_shown(tmp_path: Path) -> None:
    folder = tmp_path / "topic"
    create_store(Files(), str(folder), TopicIdentity("clicks", UUID), OPTIONS)
    store = open_store(Files(), str(folder), OPTIONS, TopicIdentity("clicks", UUID))
    name = bytes(range(16))
    transaction = Transaction("app", 3, "append")
    store.staging.open(name, transaction, 0, TIME_NS)
    store.staging.append(name, [pack([b"staged"])], TIME_NS)
    ticket = store.staging.begin_seal(name, True, TIME_NS)
    ticket.run()
    store.staging.finish_seal(ticket)
    part = next((folder / "staging").glob("*.part"))
    found = show(part, bodies=True)
    assert [one["kind"] for one in found] == ["chunk", "block", "message", "footer"]
    assert found[2]["body"] == "staged"
    store.log.append_group(transaction, [store.staging.part(name)], TIME_NS + 11)
    found = show(chunks(folder)[0])
    assert [one["kind"] for one in found] == ["chunk", "block", "mark"]
    assert found[1]["flags"] == ["group"]
    assert (found[2]["app"], found[2]["version"], found[2]["messages"], found[2]["parts"]) == (
        "app",
        3,
        1,
        [name.hex()],
    )
    addressed = pack([b"x"])
    store.log.append(
        [Block(addressed.header._replace(flags=ADDRESSED), addressed.payload, addressed.columns)],
        TIME_NS + 12,
    )
    assert only(show(chunks(folder)[0]), "block")[-1]["flags"] == ["addressed"]
    store.close()


def test_each_row_of_the_state_store_is_shown(topic: Path) -> None:
    found = show(topic / "state")
    assert found == show(topic / "state" / "data.mdb")
    assert (found[0]["kind"], found[0]["of"]) == ("environment", "state")
    assert len(found) == found[0]["entries"] + 1
    [channel] = only(found, "channel")
    assert (channel["name"], channel["next"], channel["paused"]) == ("c", 1004, True)
    [hole] = only(found, "hole")
    assert (hole["channel"], hole["start"], hole["count"], hole["attempts"]) == ("c", 1001, 2, 4)
    [deferred] = only(found, "deferred")
    assert (deferred["start"], deferred["due_ns"]) == (1003, TIME_NS)
    assert only(found, "due")[0]["start"] == 1003
    assert only(found, "deferred total")[0]["messages"] == 1
    assert only(found, "producer")[0]["next_sequence"] == 5
    assert only(found, "checkpoint")[0]["applied"] == 1013
    assert not only(found, "damaged")


def test_a_snapshot_is_shown_and_a_changed_one_is_damaged(topic: Path, tmp_path: Path) -> None:
    found = show(topic / "state.snapshot")
    assert found[0]["uuid"] == UUID
    assert only(found, "hole")[0]["start"] == 1001
    assert found[0]["deferred"]["c"]["messages"] == 1
    data = bytearray((topic / "state.snapshot").read_bytes())
    data[-1] ^= 1
    (tmp_path / "other").write_bytes(data)
    assert [one["kind"] for one in show(tmp_path / "other")] == ["damaged"]


def test_delayed_messages_are_shown_with_their_bodies(topic: Path) -> None:
    found = show(topic / "delayed", bodies=True)
    assert found[0]["of"] == "delayed"
    [row] = only(found, "delayed")
    assert (row["due_ns"], row["serial"], row["count"], row["sequence"]) == (TIME_NS, 50, 2, 6)
    assert [one["body"] for one in only(found, "message")] == ["later", "then"]
    assert only(found, "message")[1]["key_of_row"] == f"{TIME_NS:016x}{51:016x}"
    assert only(found, "counts")[0]["messages"] == 2
    assert only(found, "producer")


def test_a_damaged_row_is_shown_and_the_others_too(topic: Path, tmp_path: Path) -> None:
    data = (topic / "state" / "data.mdb").read_bytes()
    (tmp_path / "data.mdb").write_bytes(data.replace(b"message_count", b"Message_count"))
    found = show(tmp_path / "data.mdb")
    assert [one["key"] for one in only(found, "damaged")] == ["cc"]
    assert only(found, "hole")


def test_each_small_file_is_known_by_its_content(topic: Path, tmp_path: Path) -> None:
    [identity] = show(topic / "topic")
    assert (identity["kind"], identity["name"], identity["base_offset"]) == (
        "topic identity",
        "clicks",
        1000,
    )
    (tmp_path / "topic").write_bytes((topic / "topic").read_bytes().replace(b"clicks", b"clacks"))
    assert [one["kind"] for one in show(tmp_path / "topic")] == ["damaged", "topic identity"]
    parts = {"topics": {"t": {"number": 1}}, "ended": {"o": 9}, "imports": {"d": {"state": "done"}}}
    registry = {"version": 1, "uuid": "u", "node": 0, "next_number": 2, **parts}
    (tmp_path / "any").write_text(json.dumps(registry, indent=1))
    assert [one["kind"] for one in show(tmp_path / "any")] == [
        "registry",
        "topic",
        "ended topic",
        "import",
    ]
    (tmp_path / "any").write_text(json.dumps(registry | {"checksum": "00000000"}, indent=1))
    assert [one["kind"] for one in show(tmp_path / "any")][:2] == ["damaged", "registry"]
    (tmp_path / "registry.json").write_text("{")
    assert [one["kind"] for one in show(tmp_path / "registry.json")] == ["damaged"]
    (tmp_path / "run.json").write_text('{"run": "/tmp/x"}')
    assert show(tmp_path / "run.json") == [{"kind": "json", "run": "/tmp/x"}]


def test_a_bad_file_is_shown_and_a_changed_one_is_damaged(topic: Path, tmp_path: Path) -> None:
    folder = tmp_path / "topic"
    shutil.copytree(topic, folder)
    bad = Bad(1000, 128, 100, 1000, 2, "a test")
    keep_bytes(Files(), str(folder), bad, TIME_NS)
    [found] = show(folder / bad.name)
    assert (
        found["position"],
        found["bytes"],
        found["first_offset"],
        found["count"],
        found["why"],
    ) == (128, 100, 1000, 2, "a test")
    data = bytearray((folder / bad.name).read_bytes())
    data[-1] ^= 1
    (folder / "x.bad").write_bytes(data)
    assert [one["kind"] for one in show(folder / "x.bad")] == ["set aside", "damaged"]
    (folder / "y.bad").write_bytes(b"?" * 600)
    assert [one["kind"] for one in show(folder / "y.bad")] == ["damaged"]


# Files of nsqd


def test_files_of_a_real_nsqd_are_shown() -> None:
    clean = FIXTURES / "clean"
    assert [one["name"] for one in only(show(clean / "nsqd.dat"), "nsqd topic")] == [
        "waiting",
        "clicks",
        "frozen",
    ]
    [meta] = show(clean / "clicks:archive.diskqueue.meta.dat")
    assert (meta["depth"], meta["read_file"], meta["read_position"]) == (500, 1, 13716)
    found = show(clean / "waiting.diskqueue.000000.dat", bodies=True)
    assert {one["kind"] for one in found} == {"nsqd message"}
    assert all(len(one["id"]) == 16 and (one.get("body") or one.get("body_hex")) for one in found)


def test_a_damaged_file_of_nsqds_is_known_and_walked_past(tmp_path: Path) -> None:
    source = write_nsqd(tmp_path / "a", NsqdList(), {"t": [[message(n) for n in range(5)]]})
    path = source / "t.diskqueue.000000.dat"
    data = bytearray(path.read_bytes())
    size = len(data) // 5
    data[2 * size : 3 * size] = b"\xff" * size
    (tmp_path / "anything").write_bytes(data)
    found = show(tmp_path / "anything")
    assert [one["kind"] for one in found] == [
        "nsqd message",
        "nsqd message",
        "damaged",
        "nsqd message",
        "nsqd message",
    ]
    assert (found[2]["position"], found[2]["bytes"]) == (2 * size, size)
    (source / "t.diskqueue.meta.dat").write_text("?")
    assert [one["kind"] for one in show(source / "t.diskqueue.meta.dat")] == ["damaged"]


# The command


def test_a_dump_is_written_as_lines_or_json(topic: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(command, [str(chunks(topic)[0]), "-n", "3"], standalone_mode=False)
    assert shown.return_value == 0
    assert shown.output.splitlines()[0].startswith("chunk base_offset=1000 base_time_ns=")
    assert len(shown.output.splitlines()) == 3
    shown = CliRunner().invoke(
        command, [str(chunks(topic)[0]), "--json", "--bodies"], standalone_mode=False
    )
    kinds = [json.loads(line)["kind"] for line in shown.output.splitlines()]
    assert kinds.count("message") == 12
    (tmp_path / "unknown").write_bytes(b"what is this")
    for unknown in (tmp_path / "unknown", tmp_path):
        with pytest.raises(UsageError):
            kind_of_path(str(unknown))


def test_the_command_reports_damage_instead_of_crashing(topic: Path, tmp_path: Path) -> None:
    """LMDB's environment is read in a process of its own. Whatever a flipped bit does to that
    process, the command reports damage and ends.
    """

    def run(path: Path) -> subprocess.CompletedProcess[str]:
        return run_text("dump", "--json", path)

    ended = run(topic / "state")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(ended.stdout.splitlines()) == len(show(topic / "state"))
    assert run(tmp_path / "state").returncode == 2
    data = (topic / "state" / "data.mdb").read_bytes()
    path = tmp_path / "data.mdb"
    # Pages are missing. Reading them causes a SIGBUS or an error.
    path.write_bytes(data[: len(data) // 2 // 4096 * 4096])
    ended = run(path)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1])["kind"] == "damaged"


def test_records_are_written_as_lines_and_as_json() -> None:
    found = with_bytes(
        record("a", due_ns=TIME_NS, text="two words", none=None, empty=""),
        body=b"ok",
        tag=None,
        key=b"\xff",
    )
    assert as_line(found) == (
        'a due_ns=2023-11-14T22:13:20.000000000Z text="two words" none=null empty="" '
        "body=ok key_hex=ff"
    )
    assert json.loads(as_json(found))["due_ns"] == TIME_NS
    assert as_line(damaged("why", x="y" * 300)).count("y") == 202
    assert plain({b"\xff": (b"\x01", [1])}) == {"ff": ["01", [1]]}


def test_a_document_nested_too_deeply_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"[" * 100_000)
    assert only(list(dump(str(path), "json", bodies=False)), "damaged")


def test_a_row_that_was_set_aside(tmp_path: Path) -> None:
    value = b"its bytes"
    head = json.dumps(
        {
            "zsq": "delayed row",
            "key": "6400",
            "bytes": len(value),
            "crc": crc32c(value),
            "why": "a test",
        }
    ).encode()
    path = tmp_path / "delayed-00.bad"
    for line, kept, kinds in (
        (head + b" %08x\n" % crc32c(head), value, ["set aside"]),
        (head + b" %08x\n" % crc32c(head), b"its bits!", ["set aside", "damaged"]),
        (head.replace(b"a test", b"a text") + b" %08x\n" % crc32c(head), value, ["damaged"]),
    ):
        path.write_bytes(line + kept)
        assert [one["kind"] for one in show(path)] == kinds


@pytest.mark.parametrize("count", [1, 2])
def test_queues_are_known_by_their_records_also_where_there_is_one(
    tmp_path: Path, count: int
) -> None:
    """The kind of the file must be recognized by its content, because its name says nothing."""
    path = tmp_path / "what"
    path.write_bytes(
        b"".join(encode_record(encode_message(message(number))) for number in range(count))
    )
    assert [one["kind"] for one in show(path)] == ["nsqd message"] * count


@pytest.mark.parametrize("time_ns", [-1, 0, 10**30])
def test_a_number_that_is_no_time_is_shown_as_a_number(time_ns: int) -> None:
    assert as_line(record("x", time_ns=time_ns)) == f"x time_ns={time_ns}"

"""Tests of reading damaged files of an nsqd: one flipped bit costs only one message, and each loss
is reported. Further tests check runs of attempts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nsqd import backlogs, message, write_nsqd

from zsq.apps.nsqd import source
from zsq.apps.nsqd.attempt_runs import AttemptRuns
from zsq.apps.nsqd.nsqd_import import import_nsqd
from zsq.apps.nsqd.salvage import FileView, LostBytes, read_messages
from zsq.storage.directory.store import StoreOptions
from zsq.storage.files import Files
from zsq.storage.nsq.disk_queue_format import (
    Meta,
    NsqdChannel,
    NsqdList,
    NsqdTopic,
    encode_message,
    encode_meta,
    encode_record,
)

MESSAGES = [message(number, number % 3, size=number) for number in range(20)]
RECORDS = [encode_record(encode_message(one)) for one in MESSAGES]
STARTS = [sum(map(len, RECORDS[:number])) for number in range(21)]
WHOLE = b"".join(RECORDS)


def read(folder: Path, data: bytes, position: int = 0) -> tuple[list[bytes], list[LostBytes]]:
    path = folder / "t.diskqueue.000000.dat"
    path.write_bytes(data)
    lost: list[LostBytes] = []
    return [one.body for _, one in read_messages(Files(), str(path), position, lost.append)], lost


def test_a_whole_file_is_read_without_loss(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE) == ([one.body for one in MESSAGES], [])
    assert read(tmp_path, WHOLE, STARTS[3])[0] == [one.body for one in MESSAGES[3:]]
    assert read(tmp_path, b"") == ([], [])


def test_any_flipped_bit_of_a_head_costs_its_message_only(tmp_path: Path) -> None:
    """The head contains lengths, times and ids. If a length became shorter, the message looks like
    a complete one, and the report says so.
    """
    for bit in range(30 * 8):
        broken = bytearray(WHOLE)
        broken[STARTS[7] + bit // 8] ^= 1 << bit % 8
        bodies, lost = read(tmp_path, bytes(broken))
        others = [one.body for one in MESSAGES[:7] + MESSAGES[8:]]
        if bit // 8 in (12, 13):  # nothing shows that the attempts are wrong
            assert (len(bodies), lost) == (20, [])
            continue
        kept = [body for body in bodies if body in others]
        assert kept == others, f"bit {bit}"
        wrong = [body for body in bodies if body not in others]
        assert wrong in ([], [MESSAGES[7].body]) or (lost and "may be incomplete" in lost[0].why), (
            f"bit {bit}"
        )
        assert lost or wrong == [MESSAGES[7].body], f"bit {bit}"


def test_a_length_that_swallows_others_is_noticed(tmp_path: Path) -> None:
    broken = bytearray(WHOLE)
    broken[STARTS[7] + 2] += 1  # the length is now 256 bytes longer
    bodies, lost = read(tmp_path, bytes(broken))
    assert bodies == [one.body for one in MESSAGES[:7] + MESSAGES[8:]]
    assert [(loss.position, loss.bytes) for loss in lost] == [(STARTS[7], len(RECORDS[7]))]


@pytest.mark.parametrize(
    ("tail", "why"),
    [
        (RECORDS[0][:-1], "unfinished write"),
        (RECORDS[0][:4], "unfinished write"),
        (bytes(100), "zeros"),
        (b"\xff" * 100, "may be incomplete"),
    ],
)
def test_a_damaged_tail_costs_no_message_before_it(tmp_path: Path, tail: bytes, why: str) -> None:
    bodies, lost = read(tmp_path, WHOLE + tail)
    assert bodies == [one.body for one in MESSAGES]
    assert [(loss.position, loss.bytes) for loss in lost] == [(len(WHOLE), len(tail))]
    assert why in lost[0].why


@pytest.mark.parametrize(
    "time_ns", [-1, 0, 1, 946_684_800 * 10**9, 5_000_000_000 * 10**9, 2**63 - 1]
)
def test_a_message_of_any_time_is_taken(tmp_path: Path, time_ns: int) -> None:
    """The times may come from a wrong clock or from very old data. Behind a damaged place, the
    search must find the next message without relying on times.
    """
    odd = [one._replace(timestamp_ns=time_ns) for one in MESSAGES]
    records = [encode_record(encode_message(one)) for one in odd]
    assert read(tmp_path, b"".join(records)) == ([one.body for one in odd], [])
    assert read(tmp_path, b"".join([*RECORDS[:5], records[5], *RECORDS[6:]])) == (
        [one.body for one in MESSAGES],
        [],
    )
    broken = b"".join(records[:5]) + b"\xff" * len(records[5]) + b"".join(records[6:])
    bodies, lost = read(tmp_path, broken)
    assert bodies == [one.body for one in odd[:5] + odd[6:]]
    assert [loss.bytes for loss in lost] == [len(records[5])]


def test_the_reason_given_for_a_loss_is_right(tmp_path: Path) -> None:
    """The report may say that the message before a damaged place can be incomplete only if there is
    such a message. If only the id in a head is broken, the length in that head still counts.
    """
    assert read(tmp_path, b"\xff" * 50 + WHOLE)[1][0].why == "no message can be read"
    assert read(tmp_path, RECORDS[0] + b"\xff" * 50 + WHOLE)[1][0].why.endswith(
        "the message before it may be incomplete"
    )
    id_at = STARTS[7] + 14
    for position in (0, STARTS[7]):
        bodies, lost = read(
            tmp_path, (WHOLE[:id_at] + b"!" + WHOLE[id_at + 1 :])[STARTS[7] - position :]
        )
        assert [
            (loss.position, "the head of a message is damaged" in loss.why) for loss in lost
        ] == [(position, True)]
        assert len(bodies) in (19, 12)


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_a_bad_stretch_anywhere_costs_what_it_touches(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    begin = data.draw(st.integers(0, len(WHOLE) - 1))
    rubbish = data.draw(st.binary(min_size=40, max_size=90))
    broken = (WHOLE[:begin] + rubbish + WHOLE[begin + len(rubbish) :])[: len(WHOLE)]
    bodies, _ = read(tmp_path_factory.mktemp("a"), broken)
    untouched = [
        one.body
        for one, at, end in zip(MESSAGES, STARTS, STARTS[1:], strict=False)
        if end <= begin or at >= begin + len(rubbish)
    ]
    assert [body for body in bodies if body in untouched] == untouched


def test_the_search_crosses_the_borders_of_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zsq.apps.nsqd.salvage.READ_BYTES", 64)
    for gap in range(1, 200, 7):
        bodies, lost = read(tmp_path, RECORDS[5] + b"\x01" * gap + b"".join(RECORDS[6:]))
        assert bodies == [one.body for one in MESSAGES[5:]]
        assert [loss.bytes for loss in lost] == [gap]


def test_memory_is_bounded_by_the_window(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(10 << 20))
    view = FileView(Files(), str(path))
    assert view.next_record(0, view.size) == view.size
    assert len(view._window) <= 1 << 20
    view.close()


def test_reads_are_as_large_as_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There must not be one read for each record. A large damaged part, which may be gigabytes,
    must not be read at once either.
    """
    monkeypatch.setattr("zsq.apps.nsqd.salvage.READ_BYTES", 1_000)
    sizes: list[int] = []
    real = Files.pread

    def pread(files: Files, fd: int, size: int, position: int) -> bytes:
        sizes.append(size)
        return real(files, fd, size, position)

    monkeypatch.setattr(Files, "pread", pread)
    bodies, lost = read(tmp_path, b"".join(RECORDS) + b"\x01" * 20_000)
    assert (len(bodies), lost[-1].bytes) == (len(MESSAGES), 20_000)
    assert set(sizes) == {1_000}
    assert len(sizes) < (len(b"".join(RECORDS)) + 20_000) / 1_000 * 2 + 10


def test_reading_begins_at_the_metadata_if_they_agree_with_the_files(tmp_path: Path) -> None:
    """The metadata may point into the middle of a message, or beyond files that nsqd has already
    read.
    """
    listed = NsqdList((NsqdTopic("t", False, (NsqdChannel("c"),)),))
    source = write_nsqd(
        tmp_path / "a", listed, {"t:c": [[MESSAGES[1]], MESSAGES[2:6], [MESSAGES[6]]]}
    )
    for case, (meta, expected, said) in enumerate(
        (
            (
                Meta(4, 1, len(RECORDS[2]), 2, len(RECORDS[6])),
                MESSAGES[3:7],
                "are left out, because nsqd has read them",
            ),
            (
                Meta(4, 1, 3, 2, len(RECORDS[6])),
                MESSAGES[1:7],
                "counts 4 messages, but there are 1 from its read position on",
            ),
            (Meta(1, 0, 0, 1, 0), MESSAGES[1:7], "older than its data"),
            (
                Meta(6, 8, 0, 2, len(RECORDS[6])),
                MESSAGES[1:7],
                "the read position after the write position",
            ),
            (Meta(6, 2, len(RECORDS[6]), 2, len(RECORDS[6])), MESSAGES[1:7], "counts 6 messages"),
            (Meta(6, 2, 0, 2, len(RECORDS[6])), MESSAGES[1:7], "counts 6 messages"),
            (Meta(6, 0, 999, 2, len(RECORDS[6])), MESSAGES[1:7], "which ends at"),
            (Meta(-1, 1, 3, 2, len(RECORDS[6])), MESSAGES[1:7], "counts -1 messages"),
        )
    ):
        (source / "t:c.diskqueue.meta.dat").write_bytes(encode_meta(meta))
        data_dir = tmp_path / f"data-{case}"
        report = import_nsqd(Files(), str(source), data_dir, options=StoreOptions(reserve_bytes=0))
        found = sorted(backlogs(data_dir)["t"].channels["c"])
        assert found == sorted((one.body, one.attempts) for one in expected)
        assert any(said in note for note in report.found.notes)


def test_broken_records_are_named_with_file_and_position_and_the_rest_is_taken(
    tmp_path: Path,
) -> None:
    listed = NsqdList((NsqdTopic("t", False, (NsqdChannel("c"),)),))
    source = write_nsqd(tmp_path / "a", listed, {"t:c": [MESSAGES]})
    path = source / "t:c.diskqueue.000000.dat"
    path.write_bytes(WHOLE[: STARTS[4]] + b"\xff" * len(RECORDS[4]) + WHOLE[STARTS[5] :])
    report = import_nsqd(
        Files(), str(source), tmp_path / "data", options=StoreOptions(reserve_bytes=0)
    )
    assert [(loss.file, loss.position, loss.bytes) for loss in report.found.lost] == [
        (str(path), STARTS[4], len(RECORDS[4]))
    ]
    assert len(backlogs(tmp_path / "data")["t"].channels["c"]) == 19


# Runs of attempts


@given(attempts=st.lists(st.integers(0, 3), max_size=200), runs_max=st.integers(1, 20))
def test_runs_are_dense_few_and_never_too_low(attempts: list[int], runs_max: int) -> None:
    runs = AttemptRuns(runs_max)
    for offset, its in enumerate(attempts, 50):
        runs.add(offset, its)
    found = runs.finish()
    assert len(found) <= runs_max
    flat = [run.attempts for run in found for _ in range(run.count)]
    assert len(flat) == len(attempts)
    assert all(higher >= its for higher, its in zip(flat, attempts, strict=True))
    assert [run.start for run in found] == [
        50 + sum(run.count for run in found[:number]) for number in range(len(found))
    ]
    equal = sum(1 for a, b in zip([-1, *attempts], attempts, strict=False) if a != b)
    if equal <= runs_max:
        assert flat == attempts, "nothing is coarser than it must be"


def test_runs_are_joined_where_they_touch_and_bounded_while_they_are_gathered() -> None:
    """A queue of a hundred million messages with varying attempts must not become as many rows in
    memory.
    """
    runs = AttemptRuns(2)
    for offset, attempts in ((0, 1), (1, 1), (5, 1)):
        runs.add(offset, attempts)
    assert [(run.start, run.count) for run in runs.finish()] == [(0, 2), (5, 1)]
    runs = AttemptRuns(2)
    for offset in range(1_000):
        runs.add(offset, offset % 7)
        assert len(runs._runs) <= 4


def test_a_bounded_number_of_losses_is_named_and_all_are_counted() -> None:
    report = source.SourceReport()
    for number in range(source.LOSSES_MAX + 5):
        report.lose(LostBytes("f", number, 10, "by plan"))
    assert (len(report.lost), report.lost_count, report.lost_bytes) == (
        source.LOSSES_MAX,
        source.LOSSES_MAX + 5,
        10 * report.lost_count,
    )

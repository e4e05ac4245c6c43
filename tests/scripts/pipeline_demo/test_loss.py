"""Tests of the demo's option --bucket: its checks must find what a restore loses or repeats."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from local_setup.s3_servers import Traffic, parse_traffic
from pipeline_demo.flights import origin_of
from pipeline_demo.live import Acknowledged, LivePublisher, Reminders, due_ns_of
from pipeline_demo.loss import FINISHED_S, Sampled, is_moment, kill_all, size_of, wait_for_end
from pipeline_demo.loss_report import Place, misplaced, split_at
from pipeline_demo.report import reason_of

BODIES: Final = [b"0,a", b"1,b", b"2,c", b"3,d"]
BLOCKS: Final = [Acknowledged((0, 1), 10, 1.0), Acknowledged((2, 3), 70_000, 5.0)]
TOPIC: Final = {
    (-1, 10): b"0,a",
    (-1, 11): b"1,b",
    (-1, 70_000): b"2,c",
    (-1, 70_001): b"3,d",
}


def test_acknowledged_rows_are_at_their_offsets() -> None:
    assert misplaced(BLOCKS, TOPIC, BODIES) == 0


@pytest.mark.parametrize(
    "changed",
    [{(-1, 10): b"1,b"}, {(-1, 11): b"x"}, {(-1, 70_001): b""}],
)
def test_a_row_that_is_not_at_its_offset_is_found(changed: dict[Place, bytes]) -> None:
    assert misplaced(BLOCKS, TOPIC | changed, BODIES) == 1


def test_a_lost_block_is_found() -> None:
    assert misplaced(BLOCKS, {(-1, 10): b"0,a", (-1, 11): b"1,b"}, BODIES) == 2


def test_a_row_is_at_its_offset_only_in_its_part() -> None:
    block = [Acknowledged((1, 3), 10, 1.0, part=2)]
    topic = {(2, 10): b"1,b", (2, 11): b"3,d"}
    assert misplaced(block, topic, BODIES) == 0
    assert misplaced(block, {(1, 10): b"1,b", (2, 11): b"3,d"}, BODIES) == 1


def test_acknowledgements_are_split_at_the_loss() -> None:
    assert split_at(BLOCKS, 1.0) == (BLOCKS[:1], BLOCKS[1:])
    assert split_at(BLOCKS, 0.5) == ([], BLOCKS)


def test_a_counter_is_compared_with_its_value_some_seconds_ago() -> None:
    sampled = Sampled(2.0)
    assert sampled.grown == 0
    for at, value in ((0.0, 0), (1.0, 5), (2.0, 7), (4.0, 8)):
        sampled.add(at, value)
    assert sampled.grown == 1
    sampled.add(4.5, 20)
    assert sampled.grown == 13


def test_the_loss_waits_for_the_stream_the_publisher_and_the_auditor() -> None:
    late = 10.0 + FINISHED_S + 0.1
    assert is_moment(1, 1, 10.0, late)
    assert not is_moment(0, 1, 10.0, late)
    assert not is_moment(1, 0, 10.0, late)
    assert not is_moment(1, 1, 0.0, late)
    assert not is_moment(1, 1, 10.0, 10.5)


def test_a_delayed_message_must_come_once_and_not_early() -> None:
    reminders = Reminders("tcp://127.0.0.1:1", BODIES)
    reminders.due_ns = {b"0,a": 100, b"1,b": 200}
    reminders.came = [(b"1,b", 200), (b"0,a", 150)]
    assert reminders.good
    assert reminders.is_done
    reminders.came[0] = (b"1,b", 199)
    assert not reminders.good
    reminders.came = [(b"0,a", 150)]
    assert not reminders.good
    assert not reminders.is_done
    reminders.came = [(b"0,a", 150), (b"1,b", 300), (b"1,b", 300)]
    assert not reminders.good


def test_the_key_of_a_delayed_message_has_its_time() -> None:
    assert due_ns_of("00000000000000ff0000000000000001") == 255


def test_a_publisher_that_was_not_started_is_not_done() -> None:
    live = LivePublisher("tcp://127.0.0.1:1", BODIES, 0)
    live.acknowledged += BLOCKS
    assert live.rows == 4
    assert not live.is_done


def test_the_traffic_of_the_bucket_is_read_from_the_metrics() -> None:
    page = """\
# HELP SeaweedFS_s3_request_total Counter of s3 requests.
SeaweedFS_s3_bucket_traffic_sent_bytes_total{bucket="zsq-test"} 1.0001e+07
SeaweedFS_s3_bucket_traffic_received_bytes_total{bucket="zsq-test"} 7
SeaweedFS_s3_request_total{bucket="",code="200",type="LIST"} 1
SeaweedFS_s3_request_total{bucket="zsq-test",code="200",type="GET"} 10
SeaweedFS_s3_request_total{bucket="zsq-test",code="206",type="GET"} 1
"""
    assert parse_traffic(page) == Traffic(10_001_000, 11)
    assert parse_traffic("") == Traffic(0, 0)
    assert Traffic(5, 3).since(Traffic(2, 1)) == Traffic(3, 2)


def test_the_reason_is_found_in_an_error_of_spark() -> None:
    error = "[STREAM_FAILED] Query\n  raise\nzsq.errors.DataLoss: E_DATA_LOSS topic t ends\n SQL"
    assert reason_of(error) == "E_DATA_LOSS topic t ends"
    assert reason_of("Job aborted\nmore") == "Job aborted"


def test_the_airport_of_departure_is_the_thirteenth_field() -> None:
    assert origin_of(b"2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227") == b"EWR"


def test_the_size_of_a_directory_counts_its_files(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "file").write_bytes(b"x" * 10_000)
    count, size = size_of(tmp_path)
    assert count == 1
    assert size >= 10_000


def test_a_process_is_killed_with_its_children() -> None:
    child = "import subprocess; subprocess.Popen(['sleep', '60']); print(flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        process.stdout.readline()
        assert kill_all(process) == 2
        assert process.returncode == -9


def test_processes_that_end_or_are_zombies_are_not_waited_for() -> None:
    states = {1: "Z", 2: ""}
    wait_for_end([1, 2], lambda pid: states[pid])

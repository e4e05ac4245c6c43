"""Tests of brokers that a cluster forgets in the middle of a move, or by itself, with real
processes.
"""

from __future__ import annotations

import signal
from pathlib import Path

from support.broker import Broker, wait_for
from support.cluster import Cluster, running
from support.cluster_traffic import DONE_S, Traffic, check_log, parts_of

import zsq
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.cluster.directory import AutoEntry, ReadyEntry, decode_entry
from zsq.storage.cluster.directory_log import DirectoryLog
from zsq.storage.cluster.notices import parse_notice
from zsq.storage.files import Files

SAFE = ("--sync", "bucket")
SKIPPED = 1 << 16


def wait_ready(cluster: Cluster) -> None:
    """Wait until the target of a move has said that it is ready."""
    log = DirectoryLog(FolderBucket(Files(), parse_bucket_url(cluster.place)))

    def is_ready() -> bool:
        log.read_on()
        return any(isinstance(decode_entry(raw), ReadyEntry) for raw in log.take().entries)

    wait_for(is_ready, DONE_S)


def stop_before_it_confirms(cluster: Cluster, target: Broker) -> None:
    """Stop the target of a move when it is ready. The part is given to it all the same."""
    wait_ready(cluster)
    target.signal_all(signal.SIGSTOP)


def test_a_part_that_comes_back_from_a_broker_that_is_gone_uses_no_offset_twice(
    tmp_path: Path,
) -> None:
    """The other broker may have given out offsets before it died, and shipped nothing of them."""
    with running(tmp_path, *SAFE) as cluster:
        one, two = cluster.brokers
        with zsq.Admin(one.tcp, timeout=30) as admin:
            admin.create_topic("t", parts=1, brokers=[0], sync="bucket")
            admin.create_channel("t", "c")
            with zsq.Producer(one.tcp) as producer:
                for number in range(3):
                    assert producer.publish("t", b"%d" % number).wait() == number
                producer.publish("t", b"late", delay=4)
            admin.move_part("t#0", 1)
            stop_before_it_confirms(cluster, two)
            wait_for(lambda: admin.cluster()["topics"][0]["origins"], DONE_S)
            two.signal_all(signal.SIGKILL)
            admin.forget_broker(1, force=True)
            wait_for(lambda: parts_of(cluster, "t") == [0], DONE_S)
            with zsq.Producer(one.tcp, timeout=DONE_S) as producer:
                first = producer.publish("t", b"3").wait()
            assert first >= 3 + SKIPPED
            one.signal_all(signal.SIGKILL)
            one.start()
            # The bucket has the gap, too: another broker can take the part from there.
            three = cluster.add()
            cluster.brokers.append(three)
            three.start()
            wait_for(lambda: len(admin.cluster(fresh=True)["brokers"]) == 3, DONE_S)
            admin.move_part("t#0", 2)
            wait_for(lambda: parts_of(cluster, "t") == [2], DONE_S)
        found: dict[bytes, int] = {}
        with zsq.Consumer("t", "c", url=three.tcp, timeout=DONE_S) as consumer:
            while len(found) < 5:
                message = consumer.receive(timeout=DONE_S)
                assert message is not None
                found[bytes(message.body)] = message.offset
                message.finish()
        late = found.pop(b"late")
        assert found == {b"0": 0, b"1": 1, b"2": 2, b"3": first}
        assert late not in found.values()


def test_a_broker_that_was_only_cut_off_acknowledges_nothing_more_and_says_why_it_ends(
    tmp_path: Path,
) -> None:
    """Its clients are connected all the time, and it has not heard that it was forgotten."""
    with running(tmp_path, *SAFE) as cluster:
        two = cluster.brokers[1]
        with zsq.Admin(cluster.brokers[0].tcp, timeout=30) as admin:
            admin.create_topic("t", parts=2, brokers=[1, 0], sync="bucket")
            with Traffic(cluster, "t") as traffic:
                two.signal_all(signal.SIGSTOP)
                admin.forget_broker(1, force=True)
                wait_for(lambda: parts_of(cluster, "t") == [0, 0], DONE_S)
                two.signal_all(signal.SIGCONT)
                traffic.goes_on()
                assert two.process is not None
                wait_for(lambda: two.process.poll() is not None, DONE_S)  # type: ignore[union-attr]
        check_log(cluster, "t", traffic.acknowledged)
        said = two.log.read_text()
        assert "the cluster has forgotten this broker: its parts are at other brokers" in said
        assert "has taken over" not in said
        assert "is a standby now" not in said


def fast(broker: Broker) -> None:
    """Let a broker announce itself often, so that its silence is noticed soon."""
    text = (
        "import runpy; from zsq.storage.cluster import notices; notices.UP_S, notices.NOTICE_S = "
        "4.0, 0.5; from zsq.actors.bucket.archive import cluster_reader; cluster_reader.LOOK_MS = "
        "250; from zsq.actors.supervisor.commands import parts; parts.QUIET_S = 1.0; "
        "runpy.run_module('zsq', run_name='__main__')"
    )
    broker.program = ("-c", text)


def test_a_broker_that_is_silent_for_the_time_of_auto_is_forgotten_and_one_that_falters_is_not(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path, *SAFE, count=3)
    for broker in cluster.brokers:
        fast(broker)
    try:
        cluster.start()
        gone, url = cluster.brokers[1], cluster.brokers[0].tcp
        # The command permits 60 s at least.
        bucket = FolderBucket(Files(), parse_bucket_url(cluster.place))
        DirectoryLog(bucket).append(AutoEntry("a" * 32, True, 0, 2, 5))
        with zsq.Admin(url, timeout=30) as admin:
            admin.create_topic("t", parts=3, brokers=[0, 1, 2], sync="bucket")
            names = [row["uuid"] for row in admin.cluster(fresh=True)["brokers"]]
            with Traffic(cluster, "t") as traffic:
                # All have announced themselves for long enough to be missed.
                wait_for(lambda: {seen_of(bucket, name) > 8 for name in names} == {True}, DONE_S)
                gone.signal_all(signal.SIGSTOP)
                before = seen_of(bucket, names[0])
                wait_for(lambda: seen_of(bucket, names[0]) > before + 3, DONE_S)
                gone.signal_all(signal.SIGCONT)
                before = seen_of(bucket, names[1])
                wait_for(lambda: seen_of(bucket, names[1]) > before, DONE_S)
                assert not any(row["gone"] for row in admin.cluster(fresh=True)["brokers"])
                gone.signal_all(signal.SIGKILL)
                wait_for(lambda: 1 not in parts_of(cluster, "t"), DONE_S)
                traffic.goes_on()
            rows = admin.cluster(fresh=True)["brokers"]
            assert [row["gone"] for row in rows] == [False, True, False]
        check_log(cluster, "t", traffic.acknowledged)
    finally:
        cluster.close()


def seen_of(bucket: FolderBucket, uuid: str) -> int:
    """Return how many notices a broker has created."""
    notices = [parse_notice(name) for name in bucket.names("alive/")]
    return max((count for of_broker, count in notices if of_broker == uuid), default=0)

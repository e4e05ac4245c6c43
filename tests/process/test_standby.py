"""Tests of a broker and its standby in real processes, with a folder as bucket."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import zsq_command
from support.broker import Broker, wait_for
from support.router import recv_word
from support.standby_pair import TOPIC, Pair

import zsq
from zsq.transport.block.block import pack
from zsq.transport.client.blocking.stage_writer import StageCommitter, StageWriter
from zsq.transport.errors import E_NOT_FOUND, E_STANDBY, NotFound, Refused
from zsq.transport.wire import protocol as p
from zsq.transport.wire import sockets


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        made.begin()
        yield made
    finally:
        made.close()


def test_a_standby_takes_over_from_a_killed_broker_which_then_follows(pair: Pair) -> None:
    pair.publish(100)
    pair.wait_shipped(pair.one)
    with pytest.raises(Refused) as caught, zsq.Admin(pair.two.tcp, timeout=2) as admin:
        admin.stats()
    assert caught.value.code == E_STANDBY
    assert pair.one.tcp in str(caught.value)
    pair.one.signal_all(signal.SIGKILL)
    pair.two.wait_ready()
    pair.publish(10, pair.urls)
    assert pair.read(pair.two.tcp) == list(range(111))
    assert pair.one.process is not None
    pair.one.process.wait(20)
    pair.one.launch()
    pair.one.wait_said("is a standby of")
    pair.one.wait_said("follows file://")
    assert pair.status(pair.one)["primary"] == [pair.two.tcp]


def test_a_stopped_primary_acknowledges_nothing_when_it_goes_on(pair: Pair) -> None:
    pair.publish(10)
    pair.wait_shipped(pair.one)
    told: list[object] = []

    def publish_late() -> None:
        try:
            with zsq.Producer(pair.one.tcp, timeout=20) as producer:
                producer.publish(TOPIC, b"-1")
                producer.flush()
                told.append("acknowledged")
        except zsq.ZsqError as error:
            told.append(error)

    pair.one.signal_all(signal.SIGSTOP)
    pair.two.wait_ready()
    late = threading.Thread(target=publish_late)
    late.start()
    pair.publish(10, pair.two.tcp)
    pair.one.signal_all(signal.SIGCONT)
    pair.one.wait_said("this broker is not primary any more and stops")
    pair.one.wait_said("is a standby of")
    late.join(60)
    assert isinstance(told[0], zsq.ZsqError), told
    assert pair.read(pair.two.tcp) == list(range(21))


def test_a_handover_loses_nothing_and_can_be_done_again(pair: Pair) -> None:
    pair.publish(50)
    done = zsq_command.run_text("--url", pair.urls, "handover")
    assert done.returncode == 0, done.stderr
    assert "the standby is primary" in done.stdout
    assert done.stderr == "", "what was planned is no warning"
    assert pair.read(pair.two.tcp) == list(range(51))
    pair.one.wait_said("this broker is a standby now: ")
    assert pair.one.process is not None
    assert not _zombies(pair.one.process.pid)
    pair.publish(50, pair.urls)
    wait_for(lambda: _standbys(pair.two) == 1, 40, what="the new primary knows its standby")
    done = zsq_command.run_text("--url", pair.urls, "handover")
    assert done.returncode == 0, done.stderr
    pair.publish(1, pair.urls)
    assert pair.read(pair.one.tcp) == list(range(102))


def test_offsets_that_takeovers_skipped_count_nowhere(pair: Pair) -> None:
    """Each takeover skips offsets. They are no messages that wait, came, or were lost."""
    with zsq.Admin(pair.one.tcp, timeout=20) as admin:
        admin.create_channel(TOPIC, "old")
    for broker, successor in ((pair.one, pair.two), (pair.two, pair.one)):
        wait_for(partial(_is_followed, broker), 40, what="the primary knows its standby")
        assert zsq_command.run_text("--url", broker.tcp, "handover").returncode == 0
        successor.wait_ready()
        with zsq.Admin(successor.tcp, timeout=20) as admin:
            row = admin.stats()["bucket"]
            shown = row["url"], row["shipping"] != "off", row["addresses"] != ""
            assert shown == (f"file://{pair.bucket}", True, True), "also before its first report"
        pair.publish(2, successor.tcp)
    url = pair.one.tcp
    with zsq.Admin(url, timeout=20) as admin:
        admin.create_channel(TOPIC, "new", start="earliest")

        def counts() -> dict[str, tuple[int, int]]:
            (topic,) = admin.stats(TOPIC)["topics"]
            assert topic["kept_count"] == 5 < topic["head"]
            rows = {row["channel_name"]: row for row in topic["channels"]}
            assert not any(row["lost_count"] + row["dropped_count"] for row in rows.values())
            return {name: (row["depth"], row["message_count"]) for name, row in rows.items()}

        wait_for(lambda: counts() == {"old": (5, 5), "new": (5, 5)}, what="counts of messages")

        def measured() -> list[str]:
            """The HTTP door may begin after the others."""
            with contextlib.suppress(httpx.TransportError):
                lines = httpx.get(f"http://127.0.0.1:{pair.one.http}/metrics").text.splitlines()
                return [line.split()[-1] for line in lines if line.startswith("zsq_channel_depth{")]
            return []

        wait_for(lambda: measured() == ["5.0", "5.0"], what="the metrics of both channels")
        with zsq.Reader(TOPIC, url=url, timeout=20) as reader:
            assert reader.measure(0).messages == 5
        for channel in ("old", "new"):
            with zsq.Consumer(TOPIC, channel, url=url, timeout=20) as consumer:
                for _ in range(3):
                    message = consumer.receive(20)
                    assert message is not None
                    message.finish(sync=True)
        wait_for(lambda: counts() == {"old": (2, 5), "new": (2, 5)}, what="counts of messages")
        admin.seek(TOPIC, "new", "earliest")
        wait_for(lambda: counts()["new"][0] == 5, what="counts of messages")
        assert 8 <= counts()["new"][1] <= 10, "with those that the consumer held"


def test_the_schedules_go_on_at_the_standby(pair: Pair) -> None:
    """The new primary has the schedules, and knows what the old one has published of each."""
    with zsq.Admin(pair.one.tcp, timeout=20) as admin:
        admin.schedule_add(TOPIC, "daily", "0 3 * * *", b"x", timezone="Europe/Berlin")
        admin.schedule_add(TOPIC, "stopped", "* * * * *", b"x")
        admin.schedule_pause(TOPIC, "stopped")
        (daily, _) = admin.schedule_list()
    rows = json.loads((pair.one.data_dir / "registry.json").read_text())["topics"][TOPIC]
    app = f"schedule-{rows['schedules']['daily']['uuid']}"
    due = daily["next_due_ns"] // 10**9
    with StageCommitter(TOPIC, url=pair.one.tcp) as committer:
        committer.commit(app, due, [])  # as the scheduler does at that time
    pair.wait_shipped(pair.one)
    pair.one.signal_all(signal.SIGKILL)
    pair.two.wait_ready()
    with zsq.Admin(pair.two.tcp, timeout=20) as admin:
        wait_for(lambda: admin.schedule_list()[0]["state"] == "waiting", what="the new scheduler")
        daily, stopped = admin.schedule_list()
        assert (daily["name"], daily["last_due_ns"]) == ("daily", due * 10**9)
        assert daily["next_due_ns"] > due * 10**9
        assert (stopped["name"], stopped["state"]) == ("stopped", "paused")


def _zombies(parent: int) -> list[str]:
    """Return the names of the children that have ended, and for which nobody has waited."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = path.read_text().rpartition(")")
            if rest.split()[:2] == ["Z", f"{parent}"]:
                found.append(name)
    return found


def _shipping(broker: Broker) -> str:
    with zsq.Admin(broker.tcp, timeout=10) as admin:
        return str(admin.stats()["bucket"]["shipping"])


def _is_followed(broker: Broker) -> bool:
    return _standbys(broker) == 1


def _standbys(broker: Broker) -> int:
    with zsq.Admin(broker.tcp, timeout=10) as admin:
        return int(admin.stats()["bucket"]["standbys"])


def take(consumer: Any) -> int:
    message = consumer.receive(60)
    message.finish()
    return int(message.body)


def test_a_consumer_goes_on_at_the_standby(pair: Pair) -> None:
    got: set[int] = set()
    with zsq.Consumer(TOPIC, "work", url=pair.urls, timeout=60) as consumer:
        pair.publish(20)
        while len(got) < 20:
            got.add(take(consumer))
        pair.wait_shipped(pair.one)
        pair.one.signal_all(signal.SIGKILL)
        assert pair.one.process is not None
        pair.one.process.wait(20)
        pair.publish(20, pair.urls)
        while len(got) < 41:
            got.add(take(consumer))
    assert got == set(range(41))


def test_zsq_cluster_and_the_console_show_the_command_that_hands_over(pair: Pair) -> None:
    """The broker belongs to no cluster. The command that is shown works."""
    found = json.loads(zsq_command.run_text("--url", pair.urls, "cluster", "--json").stdout)
    (broker,) = found["brokers"]
    assert not found["is_cluster"]
    assert (broker["role"], broker["standbys"]) == ("primary", 1)
    places = [(one["url"], one["role"]) for one in broker["places"]]
    assert places == [(pair.one.tcp, "primary"), (pair.two.tcp, "standby")]
    command = f"zsq handover --url {pair.urls}"
    assert broker["handover"] == command
    assert command in zsq_command.run_text("--url", pair.urls, "cluster").stdout
    base = f"http://127.0.0.1:{pair.one.http}"
    (shown,) = httpx.get(f"{base}/api/cluster", timeout=20).json()["brokers"]
    changing = {"lag_s": 0, "free_bytes": None}
    assert shown | changing == broker | changing, "these change all the time"
    assert httpx.get(f"{base}/api/overview").json()["broker"]["clustered"] is True
    done = zsq_command.run_text(*command.split()[1:])
    assert done.returncode == 0, done.stderr

    def epoch() -> int:
        """Return the epoch of the new primary. It is 0 until that one has asked the bucket."""
        ended = zsq_command.run_text("--url", pair.urls, "cluster", "--json")
        return int(json.loads(ended.stdout)["brokers"][0]["epoch"])

    wait_for(lambda: epoch() > broker["epoch"], 20, "the epoch of the new primary")


def test_nobody_hands_over_without_a_standby(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with Broker(tmp_path / "one", "--bucket", f"file://{tmp_path}/bucket") as one:
        wait_for(lambda: _shipping(one) == "open", what="the broker ships")
        with zsq.Admin(one.tcp, timeout=10) as admin, pytest.raises(NotFound) as caught:
            admin.handover()
        assert caught.value.code == E_NOT_FOUND


def test_a_standby_tells_over_http_what_it_does(pair: Pair) -> None:
    base = f"http://127.0.0.1:{pair.two.http}"
    assert httpx.get(f"{base}/ping").text == "OK"
    assert httpx.get(f"{base}/ready").status_code == 503
    assert httpx.post(f"{base}/pub?topic=t", content=b"x").status_code == 503
    found = httpx.get(f"{base}/stats").json()
    assert found["role"] == "standby"
    assert found["topics"] == 1
    assert "zsq_standby_following 1" in httpx.get(f"{base}/metrics").text
    assert json.loads(httpx.get(f"{base}/health").text)["state"] == "following"
    found = json.loads(zsq_command.run_text("doctor", pair.two.data_dir, "--json").stdout)
    about = {row["what"]: row for row in found["findings"]}
    assert about["data directory"]["level"] == "ok"
    assert "of a standby, its process is" in about["data directory"]["text"]
    assert "broker" not in about


def test_a_standby_stops_and_the_primary_goes_on_without_it(pair: Pair) -> None:
    assert pair.two.stop() == 0
    assert not list((pair.bucket / "standby").glob("*"))
    wait_for(lambda: _standbys(pair.one) == 0, 40, what="the primary has noticed it")
    pair.publish(10)
    assert pair.read(pair.one.tcp) == list(range(11))


def test_two_standbys_of_an_empty_bucket_begin_a_broker(tmp_path: Path) -> None:
    """So both machines have the same command from their first start on."""
    (tmp_path / "bucket").mkdir()
    more = ("--bucket", f"file://{tmp_path}/bucket", "--first")
    one, two = Broker(tmp_path / "one", *more), Broker(tmp_path / "two", *more)
    one.command = two.command = "standby"
    try:
        one.start()
        with zsq.Producer(one.tcp, timeout=20) as producer:
            producer.publish(TOPIC, b"x")
        two.launch()
        two.wait_said("follows file://")
    finally:
        one.close()
        two.close()


def test_a_list_that_fails_at_the_start_is_tried_again(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    (bucket / "log").touch()  # so the list of ticks fails
    more = ("--bucket", f"file://{bucket}")
    two = Broker(tmp_path / "two", *more, "--first")
    two.command = "standby"
    one = Broker(tmp_path / "one", *more)
    try:
        two.launch()
        two.wait_said("cannot find out whether the bucket is empty")
        (bucket / "log").unlink()
        one.start()
        two.wait_said("follows file://")
        assert two.stop() == 0
        serve = Broker(tmp_path / "two")
        serve.launch()
        assert serve.process is not None
        assert serve.process.wait(20) == 1
        assert "is the directory of a standby: start it with `zsq standby`" in serve.log.read_text()
    finally:
        one.close()
        two.close()


def test_data_that_was_never_shipped_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    one = Broker(tmp_path / "one")
    one.start()
    with zsq.Producer(one.tcp, timeout=20) as producer:
        producer.publish(TOPIC, b"x")
    one.stop()
    two = Broker(tmp_path / "one", "--bucket", f"file://{tmp_path}/bucket")
    two.command = "standby"
    two.launch()
    assert two.process is not None
    assert two.process.wait(20) == 1
    assert "has shipped nothing" in two.log.read_text()
    assert (tmp_path / "one" / "registry.json").exists()


def test_a_standby_that_has_nothing_to_follow_yet_waits_and_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells so to the service manager, which would end it otherwise."""
    (tmp_path / "bucket").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        two = Broker(tmp_path / "two", "--bucket", f"file://{tmp_path}/bucket")
        two.command = "standby"
        try:
            two.launch()
            words = heard.recv(4096).decode().split("\n")
            while "READY=1" not in words:
                words = heard.recv(4096).decode().split("\n")
            assert f"STATUS=standby of file://{tmp_path}/bucket" in words
            two.wait_said("no broker has shipped its data there")
        finally:
            assert two.stop() == 0


class CutPair(Pair):
    """A pair whose first broker reaches the bucket by a path that a test can cut."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "path"
        self.path.symlink_to(self.bucket)
        given = list(self.one.extra)
        given[given.index("--bucket") + 1] = f"file://{self.path}"
        self.one.extra = tuple(given)

    def cut(self) -> None:
        self.path.unlink()
        self.path.write_text("not a folder")

    def mend(self) -> None:
        self.path.unlink()
        self.path.symlink_to(self.bucket)


@pytest.fixture
def cut_pair(tmp_path: Path) -> Iterator[CutPair]:
    made = CutPair(tmp_path)
    try:
        made.begin()
        yield made
    finally:
        made.close()


def refusal(call: Callable[[], object]) -> str:
    """Return the code of the error that this call raises, or "" if it raises none."""
    try:
        call()
    except zsq.ZsqError as error:
        return error.code
    return ""


def epoch_of(broker: Broker) -> int:
    """Return the epoch that this broker tells the clients of a topic, or 0."""
    dealer = sockets.make_dealer()
    try:
        dealer.connect(broker.tcp)
        sockets.send_word(dealer, (), p.Open(1, "topic", TOPIC, "", False, {}))
        assert dealer.poll(10_000)
        found = recv_word(dealer)
        assert found is not None
        assert isinstance(found[1], p.Done)
        return int(found[1].data.get("epoch", 0))
    finally:
        dealer.close(linger=0)


def test_clients_leave_a_primary_that_was_replaced_and_does_not_know(cut_pair: CutPair) -> None:
    """Its processes answer heartbeats, and no client waits for an answer of the bucket."""
    pair = cut_pair
    one, two = pair.one.tcp, pair.two.tcp

    def head() -> None:
        with zsq.Reader(TOPIC, url=one, timeout=2) as reader:
            reader.bounds()

    def seal() -> None:
        with StageWriter(TOPIC, "app", 1, url=one, timeout=2) as writer:
            writer.push(pack([b"-1"]))
            writer.seal()

    def subscribe() -> None:
        with zsq.Consumer(TOPIC, "other", url=one, timeout=2) as consumer:
            consumer.receive(10)

    with (
        zsq.Consumer(TOPIC, "work", url=pair.urls, timeout=60) as consumer,
        zsq.Reader(TOPIC, url=pair.urls, timeout=60) as reader,
    ):
        got = {take(consumer)}
        pair.publish(10)
        got |= {take(consumer) for _ in range(10)}
        assert reader.bounds()[1] == 11
        pair.wait_shipped(pair.one)
        wait_for(lambda: epoch_of(pair.one) > 0, what="the primary knows its epoch")
        before = epoch_of(pair.one)
        pair.cut()
        pair.two.wait_ready()
        pair.publish(20, two)
        wait_for(
            lambda: epoch_of(pair.two) > before, what="a later epoch, for clients that are idle"
        )
        while len(got) < 31:
            got.add(take(consumer))
        assert got == set(range(31))
        assert reader.bounds()[1] > 31, "the offsets of a takeover"
        wait_for(lambda: refusal(head) == E_STANDBY, what="readers are refused")
        assert refusal(seal) == E_STANDBY, "nothing is sealed"
        assert refusal(subscribe) == E_STANDBY
    pair.mend()
    pair.one.wait_said("is a standby of")

"""Tests of the commands for topics with parts, as docs/parts.md shows them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker, wait_for
from support.cluster import Cluster, running

import zsq as api


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def zsq(cluster: Cluster, *words: str, stdin: str = "", code: int = 0) -> str:
    """Run a command, and return what it prints to both outputs."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "zsq", *words],
        input=stdin, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "ZSQ_URL": cluster.url},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def parts_of(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    told = json.loads(zsq(cluster, "cluster", "--json"))
    (found,) = [one for one in told["topics"] if one["topic"] == topic]
    rows: list[dict[str, Any]] = found["parts"]
    return rows


def test_the_commands_of_the_page(cluster: Cluster) -> None:
    assert "topic clicks has 4 parts" in zsq(cluster, "topic", "create", "clicks", "--parts", "4")
    zsq(cluster, "channel", "create", "clicks", "archive")
    lines = "".join(f"{number}\n" for number in range(1, 1001))
    assert "1,000 messages stored in clicks" in zsq(cluster, "pub", "clicks", stdin=lines)
    rows = parts_of(cluster, "clicks")
    assert [row["broker"] for row in rows] in ([0, 1, 0, 1], [1, 0, 1, 0])
    assert sum(row["messages"] for row in rows) == 1000
    shown = zsq(cluster, "cluster")
    assert "topic clicks, 4 parts" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"^0 \(this one\) +primary +1 +\d+\.\d s +0 +\d+ +tcp://", shown, re.MULTILINE)
    assert re.search(r"^1 +primary +1 +\d+\.\d s +0 +\d+ +tcp://", shown, re.MULTILINE)
    got = zsq(cluster, "sub", "clicks", "archive", "-n", "1000").split()
    assert sorted(map(int, got)) == list(range(1, 1001))
    full = next(f"clicks#{row['part']}" for row in rows if row["messages"])
    assert "offset" in zsq(cluster, "peek", full)
    assert full in zsq(cluster, "stats", full)
    assert zsq(cluster, "channel", "list", "clicks") == "archive\n"


def test_an_id_names_its_message_also_after_the_part_has_moved(cluster: Cluster) -> None:
    zsq(cluster, "topic", "create", "ids", "--parts", "2", "--brokers", "0")
    zsq(cluster, "channel", "create", "ids", "c")
    zsq(cluster, "pub", "ids#1", stdin="first\nsecond\n")
    with api.Consumer("ids", "c", url=cluster.url) as consumer:
        found = {}
        for _ in range(2):
            message = consumer.receive(timeout=30)
            assert message is not None
            found[message.body] = message.id
            message.finish(sync=True)
    assert found == {b"first": "01" + "0" * 14, b"second": "01" + "0" * 13 + "1"}
    second = found[b"second"]
    for _ in range(2):
        for topic in ("ids", "ids#1"):
            assert zsq(cluster, "message", topic, second) == "second\n"
        assert zsq(cluster, "tail", "ids#1", "--no-follow", "--from", second) == "second\n"
        zsq(cluster, "topic", "move-part", "ids#1", "1")
    assert "is in part ids#1" in zsq(cluster, "message", "ids#0", second, code=1)
    assert "E_NOT_FOUND" in zsq(cluster, "message", "ids", "02" + "0" * 14, code=1)


def test_tail_searches_all_parts(cluster: Cluster) -> None:
    zsq(cluster, "topic", "create", "searched", "--parts", "4")
    with api.Producer(cluster.url) as producer:
        keys = [b"user-%d" % number for number in range(200)]
        producer.publish_many("searched", [b"a click of %s" % key for key in keys], keys=keys)
    tail = ("tail", "searched", "--no-follow")
    lines = zsq(cluster, *tail).splitlines()
    assert sorted(lines) == sorted(f"a click of user-{number}" for number in range(200))
    found = zsq(cluster, *tail, "--grep", "user-1[0-4]$", "--json").splitlines()
    rows = [json.loads(line) for line in found]
    assert sorted(row["key"] for row in rows) == [f"user-{number}" for number in range(10, 15)]
    assert len({row["topic"] for row in rows}) > 1
    assert len(zsq(cluster, *tail, "--last", "3").splitlines()) == 12
    assert len(zsq(cluster, *tail, "-n", "150").splitlines()) == 150
    assert zsq(cluster, *tail, "--from", "1h") == zsq(cluster, *tail)
    assert zsq(cluster, *tail, "--from", "latest") == ""
    refused = zsq(cluster, *tail, "--from", "7", code=2)
    assert "E_PARTS" in refused
    assert "searched#0" in refused


def test_parts_are_added_closed_opened_and_deleted_with_their_topic(cluster: Cluster) -> None:
    zsq(cluster, "topic", "create", "t", "--parts", "2", "--brokers", "0")
    assert [row["broker"] for row in parts_of(cluster, "t")] == [0, 0]
    assert "topic t has 4 parts now" in zsq(cluster, "topic", "add-parts", "t", "2")
    assert [row["broker"] for row in parts_of(cluster, "t")] == [0, 0, 1, 1]
    zsq(cluster, "topic", "add-parts", "t", "1", "--brokers", "1")
    assert [row["broker"] for row in parts_of(cluster, "t")] == [0, 0, 1, 1, 1]
    zsq(cluster, "pub", "t#0", "moved")
    assert "part t#0 is at broker 1 now" in zsq(cluster, "topic", "move-part", "t#0", "1")
    row = parts_of(cluster, "t")[0]
    assert (row["broker"], row["messages"]) == (1, 1)
    zsq(cluster, "topic", "move-part", "t#0", "1")
    zsq(cluster, "topic", "close", "t#0")
    assert "closed" in parts_of(cluster, "t")[0]["state"]
    before = parts_of(cluster, "t")[0]["messages"]
    for number in range(6):
        zsq(cluster, "pub", "t", f"{number}")
    rows = parts_of(cluster, "t")
    assert (rows[0]["messages"], sum(row["messages"] for row in rows)) == (before, before + 6)
    zsq(cluster, "topic", "open", "t#0")
    assert "closed" not in parts_of(cluster, "t")[0]["state"]
    assert "E_NOT_EMPTY" in zsq(cluster, "topic", "delete", "t", "--yes", code=1)
    zsq(cluster, "topic", "delete", "t", "--yes", "--force")
    told = json.loads(zsq(cluster, "cluster", "--json"))
    assert "t" not in [one["topic"] for one in told["topics"]]
    folders = [broker.data_dir / "topics" for broker in cluster.brokers]
    wait_for(lambda: not any("t#" in one for one in registered(folders)))


def registered(folders: list[Path]) -> list[str]:
    return [
        name
        for folder in folders
        for name in json.loads((folder.parent / "registry.json").read_text())["topics"]
    ]


def test_errors_say_what_to_do(cluster: Cluster) -> None:
    zsq(cluster, "topic", "create", "errors", "--parts", "2")
    assert "name it, such as errors#0" in zsq(cluster, "peek", "errors", code=2)
    assert "E_EXISTS" in zsq(cluster, "topic", "create", "errors", "--parts", "2", code=2)
    assert "brokers" in zsq(
        cluster, "topic", "create", "e", "--parts", "2", "--brokers", "9", code=2
    )
    assert "E_NOT_FOUND" in zsq(cluster, "topic", "add-parts", "missing", "2", code=1)
    assert "has no part 'errors#9'" in zsq(cluster, "topic", "move-part", "errors#9", "1", code=2)
    assert "brokers 0 to 1, not 7" in zsq(cluster, "topic", "move-part", "errors#0", "7", code=2)
    assert "numbers" in zsq(cluster, "topic", "add-parts", "errors", "2", "--brokers", "x", code=2)
    assert "does not exist" in zsq(cluster, "sub", "missing", "c", "-n", "1", code=1)


def fill(cluster: Cluster, topic: str) -> None:
    """Create a topic with 4 parts at 2 brokers, and a channel with 2,000 messages in all parts."""
    zsq(cluster, "topic", "create", topic, "--parts", "4")
    zsq(cluster, "channel", "create", topic, "c")
    with api.Producer(cluster.url) as producer:
        keys = [b"%d" % number for number in range(2_000)]
        producer.publish_many(topic, [b"x"] * 2_000, keys=keys)
    with api.Admin(cluster.url) as admin:
        wait_for(lambda: sum(depths(admin, topic)) == 2_000)
        assert all(depths(admin, topic))


def depths(admin: api.Admin, topic: str) -> list[int]:
    return [row["channels"][0]["depth"] for row in admin.stats(topic)["topics"]]


def test_figures_and_confirmations_are_those_of_all_parts(cluster: Cluster) -> None:
    fill(cluster, "whole")
    for broker in cluster.brokers:
        listed = zsq(cluster, "topic", "list", "--url", broker.tcp).split()
        assert "whole" in listed
        assert not [name for name in listed if "#" in name]
    assert json.loads(
        zsq(cluster, "topic", "list", "--json").splitlines()[-1]
    ) == {"topic": "whole", "channels": ["c"], "parts": 4}  # fmt: skip
    shown = zsq(cluster, "topic", "show", "whole")
    assert shown.startswith("topic      whole, 4 parts, sync always, health OK\n")
    found = json.loads(zsq(cluster, "topic", "show", "whole", "--json"))
    assert (found["topic_name"], found["head"], len(found["parts"])) == ("whole", 2_000, 4)
    for number in range(4):
        assert f"part       whole#{number}, offsets 0 to " in shown
    shown = zsq(cluster, "channel", "show", "whole", "c")
    assert "channel    whole/c, 4 parts, health OK, 0 consumers" in shown
    assert "messages   2,000 waiting, 0 in flight, 0 deferred" in shown
    found = json.loads(zsq(cluster, "channel", "show", "whole", "c", "--json"))
    assert (found["depth"], sum(part["depth"] for part in found["parts"])) == (2_000, 2_000)
    moved = zsq(cluster, "seek", "whole", "c", "earliest").splitlines()
    assert moved == [f"whole#{number}/c continues at offset 0" for number in range(4)]
    refused = zsq(cluster, "channel", "delete", "whole", "c", code=1)
    assert "E_NOT_EMPTY" in refused
    assert "2,000 unfinished messages" in refused
    with api.Admin(cluster.url) as admin:
        assert len(depths(admin, "whole")) == 4, "no part has lost its channel"
    asked = zsq(cluster, "channel", "empty", "whole", "c", code=2)
    assert "this would clear 2,000 unfinished messages of whole/c" in asked
    asked = zsq(cluster, "channel", "delete", "whole", "c", "--force", code=2)
    assert "with 2,000 unfinished messages" in asked
    asked = zsq(cluster, "topic", "delete", "whole", "--force", code=2)
    assert "with 2,000 messages (2,000 of them unfinished) and the channels c" in asked
    done = zsq(cluster, "channel", "empty", "whole", "c", "--yes")
    assert "cleared 2,000 messages of whole/c" in done
    zsq(cluster, "topic", "pause", "whole")
    with api.Producer(cluster.url) as producer:
        producer.publish_many("whole", [b"x"] * 500, keys=[b"%d" % one for one in range(500)])
    asked = zsq(cluster, "topic", "empty", "whole", code=2)
    assert "this would clear 500 unfinished messages of whole." in asked
    assert "cleared 500 messages of whole" in zsq(cluster, "topic", "empty", "whole", "--yes")
    said = zsq(cluster, "sub", "whole", "c", "--idle", "3")
    assert "topic whole is paused" in said


def test_a_deletion_that_has_failed_can_be_repeated(cluster: Cluster) -> None:
    zsq(cluster, "topic", "create", "again", "--parts", "2")
    zsq(cluster, "channel", "create", "again", "c")
    zsq(cluster, "channel", "delete", "again#0", "c")
    assert "again/c, 1 part, health OK" in zsq(cluster, "channel", "show", "again", "c")
    refused = zsq(cluster, "channel", "pause", "again", "c", code=1)
    assert "again#1 did this, but again#0 did not" in refused
    zsq(cluster, "channel", "delete", "again", "c")
    assert "E_NOT_FOUND" in zsq(cluster, "channel", "delete", "again", "c", code=1)


def test_the_live_view_shows_brokers_and_sums_of_parts(cluster: Cluster) -> None:
    zsq(cluster, "topic", "create", "sums", "--parts", "4")
    zsq(cluster, "pub", "sums", "--key", "k", "hello")
    told = json.loads(zsq(cluster, "top", "--once", "--json", "--view", "brokers"))
    rows = told["brokers"]
    assert [(row["name"], row["role"], row["epoch"]) for row in rows] == [
        ("0 (this one)", "primary", 1),
        ("1", "primary", 1),
    ]
    assert told["broker"]["clustered"] is True
    found = json.loads(zsq(cluster, "top", "--once", "--json", "--view", "parts"))["parts"]
    (row,) = [one for one in found if one["topic"] == "sums"]
    assert (row["part_count"], row["brokers"], row["answered"]) == (4, 2, 4)
    wait_for(lambda: messages_of(cluster, "sums") == 1, what="the message is counted")


def messages_of(cluster: Cluster, topic: str) -> int:
    found = json.loads(zsq(cluster, "top", "--once", "--json", "--view", "parts"))["parts"]
    return int(next(one["messages"] for one in found if one["topic"] == topic))


def test_a_broker_that_is_away_is_shown_with_its_parts(cluster: Cluster) -> None:
    """This test comes late, because it kills a broker."""
    zsq(cluster, "topic", "create", "half", "--parts", "2", "--brokers", "0,1")
    fill(cluster, "away")
    gone = [row["name"] for row in parts_of(cluster, "away") if row["broker"] == 1]
    left = sum(row["messages"] for row in parts_of(cluster, "away") if row["broker"] == 0)
    cluster.brokers[1].signal_all(signal.SIGKILL)
    names = " and ".join(gone)
    for words in (("topic", "show", "away"), ("channel", "show", "away", "c")):
        assert f"{names} did not answer and are left out" in zsq(cluster, *words)
    assert f"messages   {left:,} waiting" in zsq(cluster, "channel", "show", "away", "c")
    empty = ("channel", "empty", "away", "c", "--timeout", "2")
    asked = zsq(cluster, *empty, code=2)
    assert f"this would clear {left:,} unfinished messages of away/c and those of {names}" in asked
    did = zsq(cluster, *empty, "--yes", code=3)
    assert f"did this, but {names} did not: repeat the order" in did
    assert "messages   0 waiting" in zsq(cluster, "channel", "show", "away", "c")
    assert "away" in zsq(cluster, "topic", "list").split()
    told = json.loads(zsq(cluster, "cluster", "--json"))
    one, two = told["brokers"]
    assert (one["state"], one["role"], one["lag_s"] >= 0) == ("up", "primary", True)
    assert (two["state"], two["role"], two["epoch"], two["lag_s"]) == ("away", "away", None, None)
    assert "did not answer" in two["why"]
    here, away = (part["state"] for part in parts_of(cluster, "half"))
    assert here in ("up", "asleep")
    assert away == "away"
    assert "messages" not in parts_of(cluster, "half")[1]
    shown = zsq(cluster, "cluster")
    assert re.search(r"^1 +away +\d+ +tcp://", shown, re.MULTILINE)
    assert "broker 1 is away: " in shown
    rows = json.loads(zsq(cluster, "top", "--once", "--json", "--view", "parts"))["parts"]
    (row,) = [one for one in rows if one["topic"] == "half"]
    assert row["said"] == "no answer for 1 of 2 parts"
    assert "E_TIMEOUT" in zsq(cluster, "tail", "half", "--no-follow", "--timeout", "1", code=3)
    with api.Producer(cluster.brokers[0].tcp) as producer:
        producer.publish("half#0", b"here")
    assert zsq(cluster, "tail", "half", "--from", "earliest", "-n", "1").startswith("here\n")


def test_a_stranger_at_the_address_of_a_broker_that_is_away_is_not_believed(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Addresses are used again, for example those of pods. This test follows the one before."""
    other = Broker(tmp_path / "stranger")
    other.port = cluster.brokers[1].port
    try:
        other.start()
        tail = ("tail", "half", "--no-follow", "--timeout", "1")
        assert "a broker answers that does not have it" in zsq(cluster, *tail, code=3)
        shown = zsq(cluster, "topic", "show", "half")
        assert "half#1 did not answer and are left out" in shown
        with pytest.raises(api.BrokerUnreachable), api.Producer(cluster.url, timeout=1) as producer:
            producer.publish("half#1", b"there")
    finally:
        other.close()

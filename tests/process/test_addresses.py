"""Tests of messages for one channel only: the address does not leave with a copy unless that is
asked for, and only an admin of the topic may set it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.broker import Broker, wait_for
from support.keys import Keyring
from support.zsq_command import run_text

import zsq
from zsq.actors.security.access import token_hash

ADDRESS: dict[str, Any] = {"zsq-channel": "work", "n": 1}
RULES = """
[users.boss]
curve = ["KEY boss"]
admin = ["*"]
publish = ["*"]
subscribe = ["*"]
[users.publisher]
curve = ["KEY publisher"]
tokens = ["PUBLISHER"]
publish = ["t"]
[users.owner]
curve = ["KEY owner"]
tokens = ["OWNER"]
publish = ["t"]
admin = ["t", "dead"]
subscribe = ["dead/redrive"]
[users.redriver]
curve = ["KEY redriver"]
publish = ["t", "other"]
subscribe = ["dead/redrive"]
view = ["dead"]
admin = ["dead"]
"""


def die(url: str, key_file: Path | None = None, topic: str = "t") -> None:
    """Let three messages of channel `work` become dead letters in topic `dead`."""
    with (
        zsq.Admin(url, key_file=key_file) as admin,
        zsq.Producer(url, key_file=key_file) as producer,
    ):
        for name in (topic, "dead"):
            admin.create_topic(name)
        for channel in ("work", "audit"):
            admin.create_channel(topic, channel, dead_letter_topic="dead", max_attempts=1)
        producer.publish_many(topic, [b"a", b"b", b"c"], headers={"own": 1})
        with zsq.Consumer(topic, "work", url=url, key_file=key_file) as consumer:
            for _ in range(3):
                message = consumer.receive(20)
                assert message is not None
                message.reject("why")
        with zsq.Reader("dead", url=url, key_file=key_file) as reader:
            wait_for(lambda: reader.bounds()[1] >= 3, 20, "three dead letters")


def bodies(url: str, topic: str, channel: str) -> list[bytes]:
    """Receive all messages of a channel, from the earliest on."""
    found: list[bytes] = []
    with zsq.Admin(url) as admin:
        admin.create_channel(topic, channel, start="earliest")
        with zsq.Consumer(topic, channel, url=url) as consumer:
            while True:
                message = consumer.receive(0.5)
                if message is not None:
                    assert "zsq-channel" not in message.headers
                    found.append(message.body)
                    message.finish(sync=True)
                    continue
                [row] = admin.stats(topic, channel)["topics"][0]["channels"]
                if found and not row["depth"] + row["in_flight_count"]:
                    return found


@pytest.fixture(scope="module")
def redriven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose topic `t` has three messages for all channels, and three for `work`."""
    with Broker(tmp_path_factory.mktemp("redriven") / "data", http=True) as broker:
        die(broker.ipc)
        done = run_text("redrive", "dead", "--all", ZSQ_URL=broker.tcp)
        assert (done.stdout, done.returncode) == ("3 to t, for channel work\n", 0)
        yield broker


def test_a_copy_goes_to_all_channels(redriven: Broker, tmp_path: Path) -> None:
    url = redriven.ipc
    tail = ["tail", "t", "--from", "earliest", "--no-follow", "--json"]
    plain, addressed = (
        run_text(*tail, *more, ZSQ_URL=url).stdout for more in ([], ["--addresses"])
    )
    assert "zsq-channel" not in plain + addressed
    assert "only_channel" not in plain
    shown = [json.loads(line) for line in addressed.splitlines()]
    assert [one.get("only_channel") for one in shown] == [None] * 3 + ["work"] * 3
    assert shown[3]["headers"]["zsq-redriven-reason"] == "rejected"
    for topic, lines, count in (("copied", plain, 6), ("addressed", addressed, 3)):
        done = run_text("pub", topic, "--json-lines", stdin=lines, ZSQ_URL=url)
        assert done.returncode == 0, done.stderr
        assert len(bodies(url, topic, "audit")) == count
    assert len(bodies(url, "addressed", "work")) == 6
    with httpx.Client(base_url=f"http://127.0.0.1:{redriven.http}/api") as web:
        assert web.get("/download", params={"topic": "t"}).text.count("zsq-channel") == 0
        for path in ("messages", "search"):
            answer = web.get(f"/{path}", params={"topic": "t", "offset": 0})
            assert "zsq-channel" not in answer.text
            found = [one["only_channel"] for one in answer.json()["messages"]]
            assert found == [None] * 3 + ["work"] * 3
    with zsq.Reader("t", url=url) as reader:
        assert [reader.message(offset).only_channel for offset in (0, 5)] == [None, "work"]
        rows = reader.arrow(columns=["headers"]).read_all().to_pylist()
        assert "zsq-channel" not in str(rows)
    done = run_text("message", "t", "5", "--json", ZSQ_URL=url)
    assert json.loads(done.stdout)["only_channel"] == "work"


def test_a_channel_forwards_without_the_address(redriven: Broker) -> None:
    sub = ["sub", "t", "forward", "-n", "3", "--start", "earliest", "--json"]
    lines = run_text(*sub, ZSQ_URL=redriven.ipc).stdout
    assert "zsq-channel" not in lines
    assert len(lines.splitlines()) == 3


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Keyring]]:
    folder = tmp_path_factory.mktemp("guarded")
    ring = Keyring(folder, ("boss", "publisher", "owner", "redriver"))
    rules = RULES.replace("PUBLISHER", token_hash("publisher"))
    ring.allow(rules.replace("OWNER", token_hash("owner")))
    with Broker(folder / "data", *ring.options(), http=True) as broker:
        die(broker.tcp, ring.file("boss"))
        yield broker, ring


def test_only_an_admin_of_the_topic_addresses_messages(guarded: tuple[Broker, Keyring]) -> None:
    broker, ring = guarded
    with zsq.Producer(broker.tcp, key_file=ring.file("publisher")) as producer:
        for number in range(3):
            producer.publish("t", b"%d" % number)
            with pytest.raises(zsq.Refused, match="may not publish messages for one channel"):
                producer.publish("t", b"x", headers=ADDRESS)
            with pytest.raises(zsq.Refused, match="needs admin"):
                producer.publish_many("t", [b"x", b"y"], headers=[None, ADDRESS])
            with pytest.raises(zsq.Refused, match="needs admin"):
                producer.publish("t", b"x", headers=ADDRESS, delay=60)
        producer.publish("t", b"last", headers={"note": "about zsq-channels"})
    with zsq.Producer(broker.tcp, key_file=ring.file("owner")) as producer:
        producer.publish("t", b"addressed", headers=ADDRESS)
    with zsq.Reader("t", url=broker.tcp, key_file=ring.file("boss")) as reader:
        found = [reader.message(offset) for offset in range(3, reader.bounds()[1])]
    assert [one.body for one in found] == [b"0", b"1", b"2", b"last", b"addressed"]
    assert [one.only_channel for one in found] == [*[None] * 4, "work"]
    for user, code in (("publisher", 403), ("owner", 200)):
        answer = httpx.post(
            f"http://127.0.0.1:{broker.http}/api/topic/publish?topic=t",
            headers={"authorization": f"Bearer {user}"},
            json={"body": "x", "headers": ADDRESS},
            timeout=20,
        )
        assert answer.status_code == code, answer.text


def test_a_redrive_to_one_channel_needs_admin_of_the_target(
    guarded: tuple[Broker, Keyring],
) -> None:
    broker, ring = guarded

    def redrive(user: str, *more: str) -> dict[str, Any]:
        command = ["--url", broker.tcp, "--key-file", ring.file(user), "redrive", "dead"]
        done = run_text(*command, *more, "--json")
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    refused = redrive("redriver", "--all")
    assert refused["sent"] == []
    assert [one["messages"] for one in refused["left"]] == [3]
    assert "publish messages for one channel of topic 't'" in refused["left"][0]["why"]
    assert redrive("redriver", "--to", "t", "-n", "1")["sent"] == [
        {"topic": "t", "channel": None, "messages": 1}
    ]
    assert redrive("owner", "-n", "1")["sent"] == [{"topic": "t", "channel": "work", "messages": 1}]

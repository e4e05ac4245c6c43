"""Tests of a cluster's brokers through their doors: NSQ and HTTP clients, and users of an access
file. They see topics with parts as well as topics without.
"""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import wait_for
from support.cluster import Cluster, running
from support.nsq_socket import NsqSocket

import zsq
from zsq.transport.errors import E_BAD_NAME, E_EXISTS, E_FORBIDDEN, E_NOT_EMPTY, E_UNSUPPORTED

RULES = """
[anonymous]
admin = ["open*"]
publish = ["open*"]
subscribe = ["open*"]
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster"), nsq=True) as made:
        yield made


@pytest.fixture
def admin(shared: Cluster) -> Iterator[zsq.Admin]:
    with zsq.Admin(shared.brokers[0].tcp) as made:
        yield made


def rows(admin: zsq.Admin, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [dict(row) for row in admin.stats(topic)["topics"]]
    return sorted(found, key=lambda row: str(row["topic_name"]))


def test_nsq_clients_publish_to_all_parts_and_read_one(shared: Cluster, admin: zsq.Admin) -> None:
    admin.create_topic("nsq", parts=2, brokers=[0, 1])
    place = shared.brokers[0].nsq
    for number in range(2):
        with NsqSocket(place) as client:
            client.subscribe(f"nsq#{number}", "c", ready=1)
            with NsqSocket(place) as publisher:
                assert publisher.ask(f"PUB nsq#{number}", b"%d" % number) == "OK"
            message = client.message()
            assert message.body == b"%d" % number
            client.answer("FIN", message)
    with NsqSocket(place) as client:
        assert client.ask("PUB nsq", b"anywhere") == "OK"
    assert sum(row["head"] for row in rows(admin, "nsq")) == 3


def test_http_clients_see_and_pause_all_parts(shared: Cluster, admin: zsq.Admin) -> None:
    admin.create_topic("http", parts=2, brokers=[0, 1])
    place = f"http://127.0.0.1:{shared.brokers[0].http}"

    def get(path: str, data: bytes | None = None) -> bytes:
        with urllib.request.urlopen(f"{place}{path}", data, timeout=20) as answer:
            return bytes(answer.read())

    get("/topic/pause?topic=http", b"")
    found = json.loads(get("/stats?format=json&topic=http"))["topics"]
    assert {row["topic_name"]: row["paused"] for row in found} == {"http#0": True, "http#1": True}
    get("/topic/unpause?topic=http%231", b"")
    assert [row["paused"] for row in rows(admin, "http")] == [True, False]


def test_a_part_is_neither_created_nor_deleted_alone(shared: Cluster, admin: zsq.Admin) -> None:
    admin.create_topic("whole", parts=2)
    refused: tuple[tuple[str, Callable[[], object]], ...] = (
        (E_EXISTS, lambda: admin.create_topic("whole")),
        (E_EXISTS, lambda: admin.create_topic("whole", parts=1)),
        (E_BAD_NAME, lambda: admin.create_topic("whole#1")),
        (E_BAD_NAME, lambda: admin.create_topic("other#0")),
        (E_UNSUPPORTED, lambda: admin.delete_topic("whole#1", force=True)),
        (E_NOT_EMPTY, lambda: admin.delete_topic("whole")),
    )
    for code, carry_out in refused:
        with pytest.raises(zsq.ZsqError, match=code):
            carry_out()
    for broker in shared.brokers:
        with zsq.Producer(broker.tcp) as producer, pytest.raises(zsq.NotFound, match="no part 2"):
            producer.publish("whole#2", b"x")


def test_a_topic_that_one_broker_created_is_no_new_topic_at_another(shared: Cluster) -> None:
    """Messages in a topic that only one broker has would be hidden."""
    one, two = shared.brokers
    with zsq.Admin(one.tcp) as first, zsq.Producer(two.tcp) as producer:
        for number in range(5):
            first.create_topic(f"quick{number}", parts=2)
            assert producer.publish(f"quick{number}", b"x").part is not None
    with zsq.Admin(two.tcp) as second:
        assert not [
            name for name in second.topics() if name.startswith("quick") and "#" not in name
        ]


def test_the_audit_log_names_who_changed_the_cluster(shared: Cluster, admin: zsq.Admin) -> None:
    admin.create_topic("audited", parts=2, brokers=[0])
    admin.pause("audited")
    admin.delete_topic("audited", force=True)

    def noted() -> set[tuple[str, str, str]]:
        entries = [*admin.audit(count=50)]
        return {(one["action"], one["topic"], one["via"]) for one in entries}

    wait_for(lambda: {("delete", f"audited#{n}", "cluster") for n in (0, 1)} <= noted())
    found = {one for one in noted() if one[1].startswith("audited")}
    assert found == {
        ("create", "audited", "zeromq"),
        ("delete", "audited", "zeromq"),
        *((action, f"audited#{n}", "cluster") for action in ("create", "delete") for n in (0, 1)),
        *(("pause", f"audited#{n}", "zeromq") for n in (0, 1)),
    }


def test_parts_survive_that_all_brokers_are_killed(tmp_path: Path) -> None:
    with running(tmp_path) as made:
        with zsq.Admin(made.url) as admin, zsq.Producer(made.url) as producer:
            admin.create_topic("t", parts=4, max_bytes=1 << 30)
            admin.create_channel("t", "c")
            for number in range(40):
                producer.publish("t", b"x", key=b"%d" % number)
            before = rows(admin, "t")
        for broker in made.brokers:
            broker.signal_all(signal.SIGKILL)
        for broker in made.brokers:
            broker.start(60)
        with zsq.Admin(made.url) as admin:
            after = rows(admin, "t")
        for name in ("topic_name", "uuid", "head", "settings", "sync"):
            assert [row[name] for row in after] == [row[name] for row in before], name
        assert sum(row["head"] for row in after) == 40


def test_the_rules_of_a_topic_are_those_of_its_parts(tmp_path: Path) -> None:
    access = tmp_path / "access.toml"
    access.write_text(RULES)
    made = Cluster(tmp_path, "--access", str(access))
    try:
        for broker in made.brokers:
            broker.start(60)
        one, two = made.brokers
        with zsq.Admin(one.ipc) as boss, zsq.Admin(one.tcp) as admin:
            wait_for(lambda: len(admin.cluster()["brokers"]) == 2)
            boss.create_topic("shut", parts=2, brokers=[0, 1])
            admin.create_topic("open", parts=2, brokers=[0, 1])
            assert [topic["topic"] for topic in admin.cluster()["topics"]] == ["open"]
            forbidden: tuple[Callable[[], object], ...] = (
                lambda: admin.pause("shut"),
                lambda: admin.pause("shut#1"),
                lambda: admin.add_parts("shut", 1),
                lambda: admin.delete_topic("shut", force=True),
                lambda: admin.create_topic("new", parts=2),
            )
            for carry_out in forbidden:
                with pytest.raises(zsq.Refused, match=E_FORBIDDEN):
                    carry_out()
            assert admin.add_parts("open", 1) == {"parts": 3}
            admin.pause("open#1")
        with zsq.Producer(two.tcp) as producer:
            for number in range(10):
                producer.publish("open", b"x", key=b"%d" % number)
            producer.publish("open#0", b"x")
            for name in ("shut", "shut#0", "shut#1"):
                with pytest.raises(zsq.ZsqError, match=E_FORBIDDEN):
                    producer.publish(name, b"x")
    finally:
        made.close()

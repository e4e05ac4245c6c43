"""Tests of a broker that requires keys: which clients may connect, what each client may do, and
that nothing else is possible.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

import pytest
import zmq
from support.admin_examples import EXAMPLES
from support.broker import Broker, wait_for
from support.keys import Keyring
from support.router import recv_word

import zsq
from zsq.actors.gateways.zeromq import ALLOWED
from zsq.transport.block.block import pack
from zsq.transport.client.blocking.range_reader import RangeReader
from zsq.transport.client.blocking.stage_writer import StageCommitter, StageWriter
from zsq.transport.errors import (
    E_BAD_COMMAND,
    E_BAD_KEY,
    E_FORBIDDEN,
    E_HELLO,
    BrokerUnreachable,
    Refused,
    UsageError,
)
from zsq.transport.wire import protocol as p
from zsq.transport.wire import sockets
from zsq.transport.wire.actions import Action
from zsq.transport.wire.admin_codec import manage_of
from zsq.transport.wire.admin_requests import ROW_OF
from zsq.transport.wire.codec import block_frames, encode
from zsq.transport.wire.credentials import Credentials

USERS = """
[users.etl]
curve = ["KEY etl"]
publish = ["clicks"]
subscribe = ["clicks"]
admin = ["clicks"]
[users.viewer]
curve = ["KEY viewer"]
view = ["*"]
[users.nothing]
curve = ["KEY nothing"]
"""
BRIEFLY = """
[users.brief]
curve = ["KEY brief"]
publish = ["clicks"]
subscribe = ["clicks"]
"""


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    found = Keyring(
        tmp_path_factory.mktemp("keys"), ("etl", "viewer", "nothing", "brief", "stranger")
    )
    found.allow(USERS)
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, ring: Keyring) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("keyed") / "data", *ring.options()) as one:
        with zsq.Admin(one.ipc) as admin:  # the same user on the same machine needs no keys
            for topic in ("clicks", "orders"):
                admin.create_topic(topic)
                admin.create_channel(topic, "c")
        yield one


class Raw:
    """A link that can send messages that no client of ZSQ would send."""

    def __init__(
        self, broker: Broker, credentials: Credentials | None, routing_id: bytes = b""
    ) -> None:
        self.socket = sockets.make_dealer(credentials)
        if routing_id:
            self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        self.socket.connect(broker.tcp)

    def ask(self, word: p.Wire, *frames: bytes) -> Any:
        sockets.send_frames(self.socket, [b"", encode(word), *frames])
        while True:
            assert self.socket.poll(10_000), f"no answer to {word}"
            found = recv_word(self.socket)
            assert found is not None
            if type(found[1]) is not p.Beat:
                return found[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close(linger=0)


def test_every_kind_of_client_comes_in_by_its_key_file(
    broker: Broker, ring: Keyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file = ring.file("etl")
    with zsq.Producer(broker.tcp, key_file=key_file) as producer:
        first = producer.publish("clicks", b"one").wait()
    with StageWriter("clicks", "app", 1, url=broker.tcp, key_file=key_file) as writer:
        writer.push(pack([b"two"]))
        part = writer.seal()
    with StageCommitter("clicks", url=broker.tcp, key_file=key_file) as committer:
        assert committer.commit("app", 1, [part])["messages"] == 1
    with zsq.Reader("clicks", url=broker.tcp, key_file=str(key_file)) as reader:
        assert reader.message(first).body == b"one"
    with RangeReader("clicks", first, first + 2, url=broker.tcp, key_file=key_file) as blocks:
        assert sum(block.count for block in blocks) == 2
    monkeypatch.setenv("ZSQ_KEY_FILE", str(key_file))
    with zsq.Consumer("clicks", "c", url=broker.tcp) as consumer, zsq.Admin(broker.tcp) as admin:
        taken = consumer.receive(10)
        assert taken is not None
        taken.finish(sync=True)
        assert admin.peek("clicks", "c").messages is not None


def test_asyncio_clients_work_over_keyed_links(broker: Broker, ring: Keyring) -> None:
    async def main() -> None:
        keys = ring.of("etl")
        async with (
            zsq.aio.Producer(broker.tcp, key_file=keys) as producer,
            zsq.aio.Admin(broker.tcp, key_file=keys) as admin,
        ):
            await producer.publish("clicks", b"async")
            assert "clicks" in await admin.topics()
            assert await admin.peek("clicks") is not None
        async with zsq.aio.Consumer(
            "clicks", "a", url=broker.tcp, key_file=keys, start="earliest"
        ) as consumer:
            message = await consumer.receive(10)
            assert message is not None
            await message.finish()

    asyncio.run(main())


def test_a_client_without_a_key_is_told_to_get_one(broker: Broker) -> None:
    with (
        zsq.Producer(broker.tcp, timeout=20) as producer,
        pytest.raises(UsageError, match="key_file=") as caught,
    ):
        producer.publish("clicks", b"x")
    assert caught.value.code == E_BAD_KEY


def test_a_client_with_an_unknown_key_is_told_which_key(broker: Broker, ring: Keyring) -> None:
    keys = ring.of("stranger")
    with (
        zsq.Reader("clicks", url=broker.tcp, key_file=keys, timeout=20) as reader,
        pytest.raises(Refused) as caught,
    ):
        reader.bounds()
    assert caught.value.code == E_FORBIDDEN
    assert keys.public in caught.value.text
    assert keys.secret not in caught.value.text
    assert b"unknown public key" in broker.log.read_bytes()
    assert keys.secret.encode() not in broker.log.read_bytes()


def test_a_client_with_another_brokers_key_is_told_to_check_the_file(
    broker: Broker, ring: Keyring
) -> None:
    """The client cannot be sure that the key is wrong. So it waits for the time-out before it gives
    this advice.
    """
    etl = ring.of("etl")
    keys = Credentials(etl.public, etl.secret, ring.of("stranger").public, "etl.key")
    with (
        zsq.Admin(broker.tcp, key_file=keys, timeout=1) as admin,
        pytest.raises(BrokerUnreachable, match=r"`server` in etl\.key"),
    ):
        admin.topics()


def test_whose_rights_end_somewhere_is_told_what_is_missing(broker: Broker, ring: Keyring) -> None:
    with (
        zsq.Producer(broker.tcp, key_file=ring.file("etl")) as producer,
        pytest.raises(Refused, match="etl may not publish to topic 'orders'"),
    ):
        producer.publish("orders", b"x")
    with zsq.Admin(broker.tcp, key_file=ring.file("viewer")) as admin:
        assert set(admin.topics()) == {"clicks", "orders"}
        with pytest.raises(Refused, match="viewer may not delete topic 'clicks'"):
            admin.delete_topic("clicks", force=True)
    with zsq.Admin(broker.tcp, key_file=ring.file("etl")) as admin:
        assert set(admin.topics()) == {"clicks"}
        assert [row["topic_name"] for row in admin.stats()["topics"]] == ["clicks"]
        with pytest.raises(Refused, match="etl may not view topic 'orders'"):
            admin.stats("orders")


def a_word(word: type[p.Wire]) -> p.Wire:
    """Return a valid message with names that exist."""
    plain: dict[str, Any] = {
        "int": 1,
        "str": "c",
        "bool": True,
        "bytes": b"x" * 16,
        "float": 1.0,
        "tuple": (),
    }
    found = {}
    for field in dataclasses.fields(word):
        kind = str(field.type).partition("[")[0]
        # All other fields are maps.
        found[field.name] = "clicks" if field.name == "topic" else plain.get(kind, {})
    return word(**found)


@pytest.mark.parametrize("user", ["nothing", "viewer"])
def test_no_message_has_an_effect_without_permission(
    broker: Broker, ring: Keyring, user: str
) -> None:
    """Send every message of the protocol: to a gateway without a link, and on each link that the
    user can open.
    """
    with zsq.Admin(broker.ipc) as admin:
        before = admin.stats()["topics"]
    block = [bytes(frame) for frame in block_frames([pack([b"x"])])]
    with Raw(broker, ring.of(user)) as raw:
        for word in p.WORDS.values():
            if word is not p.Open:
                assert raw.ask(a_word(word), *block).code == E_HELLO, word
        for kind in ALLOWED:
            opened = raw.ask(p.Open(1, kind, "clicks", "c", True))
            if user == "viewer" and kind == "supervisor":
                assert isinstance(opened, p.Done)
            else:
                assert opened.code == E_FORBIDDEN, kind
    if user == "viewer":
        with Raw(broker, ring.of(user)) as raw:
            raw.ask(p.Open(1, "supervisor", "", "", False))
            for op in sorted(set(p.WORDS) - ALLOWED["supervisor"] - {p.Open.op}):
                assert raw.ask(a_word(p.WORDS[op]), *block).code == E_BAD_COMMAND, op
            for request_kind, example in EXAMPLES.items():
                topic = example.topic and "clicks"
                request = replace(example, topic=topic, request=7, by={"user": "root"})
                answer = raw.ask(manage_of(request))
                assert answer.request == 7
                may_see = ROW_OF[request_kind].action in (Action.SEE, Action.SEE_SOME)
                assert (getattr(answer, "code", "") != E_FORBIDDEN) == may_see, request_kind
            for action in ("stop", "", "CREATE"):
                assert raw.ask(p.Manage(7, action, "clicks", "", {})).code == E_BAD_COMMAND
            assert raw.ask(p.Lookup(8, "new", "c", True)).code == E_FORBIDDEN
            assert all("pid" not in row for row in raw.ask(p.Stats(9, "", "")).data["processes"])
    with zsq.Admin(broker.ipc) as admin:
        after = admin.stats()["topics"]
    same = ("topic_name", "message_count", "depth", "paused", "closed", "head", "settings")
    assert [{name: row[name] for name in same} for row in after] == [
        {name: row[name] for name in same} for row in before
    ]
    assert [len(row["channels"]) for row in after] == [len(row["channels"]) for row in before]


def test_a_client_cannot_choose_under_which_name_it_is_answered(
    broker: Broker, ring: Keyring
) -> None:
    """A client that took the name of a client that just left would get the answers that are on
    their way to that client.
    """
    for routing_id in (b"mine", b"\xff\xfe"):
        with Raw(broker, ring.of("etl"), routing_id) as raw:
            assert raw.ask(p.Open(1, "reader", "clicks", "", False)).code == E_BAD_COMMAND


def test_the_audit_log_names_the_real_user_of_an_order(broker: Broker, ring: Keyring) -> None:
    with Raw(broker, ring.of("etl")) as raw:
        raw.ask(p.Open(1, "supervisor", "", "", False))
        forged = {"user": "root", "from": "10.9.9.9", "via": "http"}
        assert isinstance(raw.ask(p.Manage(2, "pause", "clicks", "c", {}, forged)), p.Done)
        assert isinstance(raw.ask(p.Manage(3, "unpause", "clicks", "c", {}, forged)), p.Done)
        assert isinstance(raw.ask(p.Lookup(4, "clicks", "found", True, {}, forged)), p.Done)
    file = broker.data_dir / "audit.log"
    wait_for(lambda: '"found"' in file.read_text(), 30, "the line of the audit log")
    lines = [json.loads(line) for line in file.read_text().splitlines()[-2:]]
    assert [[line[name] for name in ("action", "user", "from", "via")] for line in lines] == [
        ["unpause", "etl", "127.0.0.1", "zeromq"], ["first use", "etl", "127.0.0.1", "zeromq"],
    ]  # fmt: skip


def test_a_key_that_is_taken_back_ends_what_is_open(broker: Broker, ring: Keyring) -> None:
    assert broker.process is not None

    def reload(text: str) -> None:
        assert broker.process is not None
        ring.allow(text)
        os.kill(broker.process.pid, signal.SIGHUP)

    def open_to_brief() -> bool:
        with zsq.Admin(broker.tcp, key_file=ring.of("brief"), timeout=30) as admin:
            try:
                return "clicks" in admin.topics()
            except Refused:
                return False

    reload(USERS + BRIEFLY)
    wait_for(open_to_brief, 60, "the new user's way in")
    with (
        zsq.Producer(broker.tcp, key_file=ring.of("brief")) as producer,
        zsq.Consumer(
            "clicks", "brief", url=broker.tcp, key_file=ring.of("brief"), start="latest"
        ) as consumer,
        zsq.Consumer("clicks", "brief", url=broker.tcp, key_file=ring.of("etl"), ready=10) as other,
    ):
        consumer.subscribe()
        producer.publish("clicks", b"held")
        held = consumer.receive(30)
        assert held is not None
        other.subscribe()
        broken = ring.access.read_text() + "nonsense ="
        ring.access.write_text(broken)
        os.kill(broker.process.pid, signal.SIGHUP)
        wait_for(
            lambda: b"not valid TOML" in broker.log.read_bytes(), 30, "the complaint about the file"
        )
        producer.publish("clicks", b"still permitted")
        reload(USERS)
        with pytest.raises(Refused) as caught:
            consumer.run(lambda message: None)
        assert caught.value.code == E_FORBIDDEN
        # The topic refuses it. A producer that connects again meanwhile is refused at the door.
        with pytest.raises(
            (Refused, BrokerUnreachable), match=r"needs publish|this client's public"
        ):
            producer.publish("clicks", b"not permitted any more")
        bodies = {
            message.body
            for message in (other.receive(30), other.receive(30))
            if message is not None
        }
        assert bodies == {b"held", b"still permitted"}, "what it held went to the others at once"

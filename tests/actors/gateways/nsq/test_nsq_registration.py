"""Tests of registration with nsqlookupd: what the lookupds are told and when, lookupds that go
away, come back or send nonsense, and the channels of new topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from support.fake_lookupd import FakeLookupd
from support.small_web import said

import zsq.aio
from zsq.actors.gateways.nsq import registration
from zsq.actors.gateways.nsq.registration import Registrar
from zsq.transport.errors import UsageError
from zsq.transport.nsq import lookup
from zsq.transport.nsq.lookup import LookupFailed, Node

NODE = Node("node.example.org", "node", 4150, 4151, "1.3.0-zsq", "eu", "b")
TOPICS = {"orders": ["billing", "mail"], "clicks": [], "t#ephemeral": ["c#ephemeral"]}
TOLD = {(topic, channel) for topic, channels in TOPICS.items() for channel in ["", *channels]}


def run(main: Coroutine[Any, Any, None]) -> None:
    zsq.aio.run(asyncio.wait_for(main, 60))


async def until(true: Callable[[], bool]) -> None:
    """Poll until `true` returns True. Use this for changes that no event announces.

    A FakeLookupd has its own `until`.
    """
    async with asyncio.timeout(10):
        while not true():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.01)


def with_registrar(test: Callable[[Registrar, FakeLookupd], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with FakeLookupd() as lookupd:
            registrar = Registrar([lookupd.address], NODE, pause_s=0.02)
            registrar.start()
            try:
                await test(registrar, lookupd)
            finally:
                await registrar.close()

    run(main())


def test_a_node_registers_new_topics_and_unregisters_removed_ones() -> None:
    async def test(registrar: Registrar, lookupd: FakeLookupd) -> None:
        registrar.update(TOPICS)
        await lookupd.until(lambda: lookupd.here() == TOLD)
        assert list(lookupd.nodes.values()) == [asdict(NODE)]
        assert lookupd.lines[0] == "IDENTIFY"
        assert lookupd.lines[1:4] == [
            "REGISTER clicks",
            "REGISTER orders",
            "REGISTER orders billing",
        ]
        registrar.update(TOPICS)  # this update changes nothing
        registrar.update({"orders": ["mail", "audit"], "clicks": []})
        await lookupd.until(lambda: lookupd.lines[-1] == "REGISTER orders audit")
        assert lookupd.here() == {
            ("orders", ""),
            ("orders", "mail"),
            ("orders", "audit"),
            ("clicks", ""),
        }
        before = len(lookupd.lines)
        assert lookupd.lines[7:before] == [
            "UNREGISTER t#ephemeral c#ephemeral",
            "UNREGISTER t#ephemeral",
            "UNREGISTER orders billing",
            "REGISTER orders audit",
        ]
        registrar.update({})
        await lookupd.until(lambda: lookupd.here() == set())
        assert lookupd.lines[before:] == [
            "UNREGISTER orders mail",
            "UNREGISTER orders audit",
            "UNREGISTER orders",
            "UNREGISTER clicks",
        ]
        assert lookupd.connections == 1

    with_registrar(test)


def test_hundreds_of_topics_are_registered_and_unregistered() -> None:
    async def test(registrar: Registrar, lookupd: FakeLookupd) -> None:
        registrar.update({f"topic-{number}": ["c"] for number in range(500)})
        await lookupd.until(lambda: len(lookupd.lines) == 1001)
        assert len(lookupd.here()) == 1000
        registrar.update({})
        await lookupd.until(lambda: len(lookupd.lines) == 2001)
        assert lookupd.here() == set()

    with_registrar(test)


def test_names_that_nsq_does_not_allow_are_not_registered() -> None:
    async def test(registrar: Registrar, lookupd: FakeLookupd) -> None:
        registrar.update(
            {"good": ["c", "bad channel", "x" * 65], "two\nlines": ["c"], "": [], "é": []}
        )
        await lookupd.until(lambda: lookupd.here() == {("good", ""), ("good", "c")})
        assert lookupd.connections == 1

    with_registrar(test)


def test_after_a_lost_connection_everything_is_registered_again() -> None:
    async def test(registrar: Registrar, lookupd: FakeLookupd) -> None:
        registrar.update(TOPICS)
        for _ in range(3):
            await lookupd.until(lambda: lookupd.here() == TOLD)
            await lookupd.cut()
            assert lookupd.here() == set()
        await lookupd.until(lambda: lookupd.here() == TOLD)
        assert lookupd.connections == 4

    with_registrar(test)


def test_a_lookupd_that_returns_gets_the_present_registrations() -> None:
    async def test(registrar: Registrar, lookupd: FakeLookupd) -> None:
        registrar.update(TOPICS)
        await lookupd.until(lambda: lookupd.here() == TOLD)
        await lookupd.stop()
        for number in range(50):
            registrar.update({f"t{number}": []})
        await until(lambda: registrar.statistics()[0]["trouble"].startswith("[Errno"))
        assert not registrar.statistics()[0]["connected"]
        await lookupd.start()
        await lookupd.until(lambda: lookupd.here() == {("t49", "")})
        assert registrar.statistics()[0]["registered"] == 1

    with_registrar(test)


def test_a_lookupd_that_is_away_does_not_affect_another_one() -> None:
    async def main() -> None:
        async with FakeLookupd() as one, FakeLookupd() as two:
            await two.stop()
            registrar = Registrar([two.address, one.address, one.address], NODE, pause_s=0.02)
            registrar.start()
            registrar.update(TOPICS)
            await one.until(lambda: one.here() == TOLD)
            assert one.connections == 1  # the same address given twice is one connection
            await two.start()
            await two.until(lambda: two.here() == TOLD)
            await registrar.close()
            await one.until(lambda: one.here() == set())  # a clean end removes all registrations
            await two.until(lambda: two.here() == set())

    run(main())


@pytest.mark.parametrize(
    "answer", [b"garbage", b"[]", b"{" * 5000, b"\xff" * 70_000, b"E_INVALID", b"OKOK"]
)
@pytest.mark.parametrize("command", ["IDENTIFY", "REGISTER orders", "PING"])
def test_a_wrong_reply_of_a_lookupd_ends_only_its_connection(
    answer: bytes, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "PING_NS", 20_000_000)

    async def test(registrar: Registrar, lookupd: FakeLookupd) -> None:
        lookupd.answer = lambda line: answer if line == command else None
        registrar.update({"orders": []})
        await lookupd.until(lambda: lookupd.connections >= 2)
        lookupd.answer = lambda _: None
        if command != "REGISTER orders" or answer != b"E_INVALID":
            await lookupd.until(lambda: lookupd.here() == {("orders", "")})

    with_registrar(test)


def test_a_registration_that_a_lookupd_refused_is_not_repeated() -> None:
    async def test(registrar: Registrar, lookupd: FakeLookupd) -> None:
        def answer(line: str) -> bytes | None:
            return (
                b"E_BAD_TOPIC REGISTER topic name 'b' is not valid"
                if line == "REGISTER b"
                else None
            )

        lookupd.answer = answer
        registrar.update({"a": [], "b": [], "c": []})
        await lookupd.until(
            lambda: lookupd.connections == 2 and {("a", ""), ("c", "")} <= lookupd.here()
        )
        await lookupd.until(lambda: "REGISTER c" in lookupd.lines)
        assert lookupd.lines.count("REGISTER b") == 1
        assert registrar.statistics()[0]["refused"] == 1
        lookupd.answer = lambda _: None
        registrar.update({"a": [], "c": []})
        registrar.update({"a": [], "b": [], "c": []})
        await lookupd.until(lambda: ("b", "") in lookupd.here())
        assert lookupd.connections == 2

    with_registrar(test)


def test_pings_are_sent_while_there_is_nothing_to_register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "PING_NS", 30_000_000)

    async def test(registrar: Registrar, lookupd: FakeLookupd) -> None:
        await lookupd.until(lambda: lookupd.lines.count("PING") >= 3)
        assert lookupd.connections == 1

    with_registrar(test)


@pytest.mark.parametrize("silent", ["IDENTIFY", "PING", "REGISTER a"])
def test_a_lookupd_that_does_not_reply_is_disconnected(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "PING_NS", 30_000_000)
    monkeypatch.setattr(lookup, "ANSWER_NS", 100_000_000)

    async def test(registrar: Registrar, lookupd: FakeLookupd) -> None:
        lookupd.answer = lambda line: b"" if line == silent else None
        registrar.update({"a": []})
        await lookupd.until(lambda: lookupd.connections >= 2)
        lookupd.answer = lambda _: None
        await lookupd.until(lambda: lookupd.here() == {("a", "")})

    with_registrar(test)


def test_the_durable_channels_of_all_lookupds_are_merged() -> None:
    async def main() -> None:
        async with FakeLookupd() as one, FakeLookupd() as two, FakeLookupd() as three:
            one.names |= {
                ("orders", ""),
                ("orders", "billing"),
                ("orders", "tail#ephemeral"),
                ("clicks", "x"),
            }
            two.names |= {("orders", ""), ("orders", "billing"), ("orders", "mail")}
            two.broadcast_address = (
                # This name cannot be found, like the host name of a container. Then the address
                # where the node is registered is used.
                "no-such-host.invalid"
            )
            three.web.answer = lambda _: said(b"garbage")
            registrar = Registrar([one.address, two.address, three.address], NODE)
            assert await registrar.channels_of("orders") == []  # the registrar has not started
            registrar.start()
            assert await registrar.channels_of("orders") == ["billing", "mail"]
            assert await registrar.channels_of("unknown") == []
            assert await registrar.channels_of("not a topic&x=y") == []
            assert [question.parameters for question in one.web.asked] == [
                {"topic": "orders"},
                {"topic": "unknown"},
            ]
            await registrar.close()

    run(main())


@pytest.mark.parametrize(
    "peer",
    [
        {"http_port": "4161"},
        {"http_port": 0},
        {"http_port": 99_999},
        {},
        {"http_port": 1, "broadcast_address": "a\r\nX: y/?"},
    ],
)
def test_a_lookupd_with_a_wrong_description_of_itself_is_not_asked(peer: dict[str, Any]) -> None:
    async def test(registrar: Registrar, lookupd: FakeLookupd) -> None:
        lookupd.answer = lambda line: json.dumps(peer).encode() if line == "IDENTIFY" else None
        registrar.update({"a": []})
        await lookupd.until(lambda: lookupd.here() == {("a", "")})
        assert await registrar.channels_of("a") == []
        assert not lookupd.web.asked

    with_registrar(test)


def test_a_lookupd_that_is_away_returns_no_channels() -> None:
    async def main() -> None:
        async with FakeLookupd() as lookupd:
            await lookupd.stop()
            registrar = Registrar([lookupd.address], NODE, pause_s=0.02)
            registrar.start()
            for _ in range(3):
                assert await asyncio.wait_for(registrar.channels_of("a"), 3) == []
            await registrar.close()

    run(main())


def test_a_lookupd_that_is_too_slow_returns_no_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "CHANNELS_S", 0.2)

    async def test(registrar: Registrar, lookupd: FakeLookupd) -> None:
        lookupd.web.answer = lambda _: None
        registrar.update({"a": []})
        await lookupd.until(lambda: lookupd.here() == {("a", "")})
        assert await asyncio.wait_for(registrar.channels_of("a"), 4) == []

    with_registrar(test)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        "host:",
        ":4160",
        "host:x",
        "http://host:4160",
        "host:4160/",
        "host:70000",
        "ho st:1",
    ],
)
def test_each_bad_lookupd_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        Registrar([address], NODE)
    Registrar(["[::1]:4160", "lookup.example.org:4160"], NODE)


class Enough(Exception):
    pass


@pytest.mark.parametrize(
    ("steady", "expected"), [(False, [1, 2, 4, 8, 15, 15]), (True, [1, 1, 1, 1, 1, 1])]
)
def test_pauses_grow_up_to_a_limit_and_start_again_after_a_steady_time(
    steady: bool, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    clock = itertools.count(0, registration.STEADY_S + 1 if steady else 0)

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == len(expected):
            raise Enough

    async def refused(self: object) -> None:
        raise OSError("nobody listens")

    monkeypatch.setattr(registration, "PAUSE_S_MAX", 15)
    monkeypatch.setattr(registration, "asyncio", SimpleNamespace(sleep=sleep, Event=asyncio.Event))
    monkeypatch.setattr(registration, "random", SimpleNamespace(uniform=lambda low, high: 1.0))
    monkeypatch.setattr(registration, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(registration._Lookupd, "_connection", refused)

    async def main() -> None:
        with pytest.raises(Enough):
            await registration._Lookupd("127.0.0.1:1", NODE, 1.0).run()

    asyncio.run(main())
    assert pauses == expected


def test_the_number_of_remembered_refused_registrations_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "REFUSED_MAX", 2)

    async def main() -> None:
        peer = registration._Lookupd("127.0.0.1:1", NODE, 1.0)
        for number in range(4):
            await refused_once(peer, (f"topic{number}", ""))
        assert peer.statistics()["refused"] == 2

    async def refused_once(peer: Any, about: tuple[str, str]) -> None:
        """Run a connection that ends with this refusal."""
        async with FakeLookupd() as lookupd:
            peer._host, port = lookupd.address.rsplit(":", 1)
            peer._port = int(port)
            connection = asyncio.create_task(peer._connection())
            await until(lambda: peer._line is not None and peer._line.session.identified)
            peer._line.session._refused = about
        with contextlib.suppress(LookupFailed, OSError):
            await connection

    run(main())

"""Tests of Admin and Reader against a small fake broker."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import zsq
from zsq.transport.client.core import requester
from zsq.transport.wire import protocol as p

Broker = Any


def put(broker: Broker, *bodies: bytes) -> None:
    """Store messages, in the broker's own thread."""
    done = threading.Event()

    def store() -> None:
        broker.put(*bodies)
        done.set()

    broker.call(store)
    assert done.wait(5)


def numbers(n: int, start: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(start, start + n)]


def test_a_link_that_was_idle_for_long_may_lead_nowhere(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other end may have forgotten the link without notice, as when a connection breaks on one
    side only. So an idle link is opened again before it is used.
    """
    with zsq.Admin(broker.url, timeout=1) as admin:
        assert admin.ping() == "OK"
        broker.forgotten = set(broker.known)
        monkeypatch.setattr(requester, "IDLE_NS", 0)
        assert admin.ping() == "OK"


def test_admin_sends_each_command_and_returns_its_answer(broker: Broker) -> None:
    broker.manage_data = {"existed": True}
    with zsq.Admin(broker.url) as admin:
        assert admin.create_topic("t", sync="never") == {"existed": True}
        admin.create_channel("t", "c")
        admin.pause("t", "c")
        admin.unpause("t")
        admin.empty("t", "c")
        admin.delete_channel("t", "c", force=True)
        assert admin.stats("t")["health"] == "OK"
        assert admin.ping() == "OK"
        with pytest.raises(zsq.NotFound, match="absent"):
            admin.delete_topic("absent")
        with pytest.raises(zsq.UsageError):
            admin.create_topic("t", sync="sometimes")
        with pytest.raises(zsq.UsageError):
            admin.stats(channel="c")
    words = [(w.action, w.topic, w.channel, w.options) for w in broker.heard if type(w) is p.Manage]
    assert words[0] == ("create", "t", "", {"sync": "never"})
    assert words[-2] == ("delete", "t", "c", {"force": True})


def test_admin_when_the_link_is_lost(broker: Broker) -> None:
    with zsq.Admin(broker.url, timeout=5) as admin:
        admin.ping()
        broker.deaf_to |= {p.Manage, p.Stats}
        killer = threading.Thread(
            target=lambda: (broker.wait_for(lambda: broker.count(p.Manage) == 1), broker.die())
        )
        killer.start()
        with pytest.raises(zsq.BrokerUnreachable, match="check whether the request took effect"):
            admin.create_topic("t")
        killer.join(5)
        broker.start()
        killer = threading.Thread(
            target=lambda: (broker.wait_for(lambda: broker.count(p.Stats) >= 2), broker.die())
        )
        killer.start()

        def start_again() -> None:
            killer.join(5)
            broker.deaf_to.clear()
            broker.start()

        starter = threading.Thread(target=start_again)
        starter.start()
        assert admin.ping() == "OK", "a question that changes nothing is asked again"
        starter.join(5)


def test_reader_reads_from_an_offset_to_the_end(broker: Broker) -> None:
    put(broker, *numbers(10))
    put(broker, *numbers(5, 10))
    with zsq.Reader("t", url=broker.url) as reader:
        found = reader.read(12)
        assert (found.start, found.head, [block.first_offset for block in found.blocks]) == (
            0,
            15,
            [10],
        )
        assert reader.read(15).blocks == []
        with pytest.raises(zsq.UsageError):
            reader.read(-1)
    with pytest.raises(zsq.Refused, match="closed"):
        reader.read(0)


@pytest.mark.parametrize("value", [2**64, 2**62 + 1, -(2**64), 10**400, [1], b"1"])
def test_settings_that_do_not_fit_into_a_message_are_refused(broker: Broker, value: Any) -> None:
    with zsq.Admin(broker.url) as admin:
        for call in (admin.configure_topic, admin.create_topic):
            with pytest.raises(zsq.UsageError, match="keep_bytes must be a number up to"):
                call("t", keep_bytes=value)
        assert (
            admin.configure_topic("t", keep_bytes=2**62, keep_time_s=1.5, when_full=None)
            == broker.manage_data
        )

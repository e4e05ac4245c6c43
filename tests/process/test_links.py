"""Tests of broken connections between the broker's processes: each kind of actor connects again and
is recognized as before.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from support.broker import Broker, wait_for
from support.links import cut, wait_linked
from support.nsq_socket import NsqSocket
from support.receivers import Hook

import zsq
from zsq.actors.runtime.services import actor_classes

KINDS = set(actor_classes())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start a broker with an actor of each kind."""
    folder = tmp_path_factory.mktemp("links")
    with Hook() as hook:
        (folder / "zsq.toml").write_text(
            f'log-level = "debug"\n[alarm]\nhold = 0\nwebhook = "{hook.url}"\n'
        )
        (folder / "bucket").mkdir()
        more = ["--config", str(folder / "zsq.toml"), "--bucket", f"file://{folder}/bucket"]
        more += ["--own-process", "always"]
        with Broker(folder / "data", *more, nsq=True, http=True) as one:
            with zsq.Admin(one.ipc) as admin:
                admin.create_channel("t", "c")
                admin.schedule_add("t", "yearly", "0 0 1 1 *", b"a new year")
            wait_for(lambda: one.pids("scheduler"), what="the scheduler")
            yield one


def actors(broker: Broker) -> list[dict[str, Any]]:
    return [actor for actor in broker.actors() if actor["kind"] not in ("supervisor", "forkserver")]


def reload(broker: Broker, names: set[str]) -> None:
    """Reload, and wait until each of these actors has confirmed the new settings."""
    begin = broker.log.stat().st_size
    assert broker.process is not None
    broker.process.send_signal(signal.SIGHUP)
    said = {f"{name} has the new settings" for name in names}
    wait_for(
        lambda: all(one in broker.log.read_bytes()[begin:].decode() for one in said),
        15,
        f"a reload of {names}",
    )


def works(broker: Broker) -> None:
    """Publish through each gateway and consume through one. One message times out, so the scan must
    find it and it must be delivered again.
    """
    with NsqSocket(broker.nsq) as client:
        assert client.ask("PUB t", b"nsq") == "OK"
    with zsq.Producer(broker.tcp, timeout=20) as producer:
        producer.publish("t", b"zeromq")
    found: list[bytes] = []
    with zsq.Consumer("t", "c", url=broker.tcp, message_timeout=1.0) as consumer:
        timed_out = consumer.receive(20)
        while len(found) < 2:
            message = consumer.receive(20)
            assert message is not None
            if timed_out is not None and message.offset == timed_out.offset:
                assert message.attempts > 1
            message.finish()
            found.append(message.body)
    assert set(found) == {b"nsq", b"zeromq"}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_of_actor_is_reached_after_its_link_to_the_supervisor_broke(
    broker: Broker, kind: str
) -> None:
    run = broker.data_dir / "run"
    chosen = [actor for actor in actors(broker) if actor["kind"] == kind]
    assert chosen, f"there is no {kind}"
    for actor in chosen:
        ended = cut(actor["pid"], run, "supervisor")
        assert ended
        wait_linked(actor["pid"], run, ended)
    reload(broker, {actor["name"] for actor in chosen})
    assert {actor["pid"] for actor in chosen} <= set(broker.pids(kind)), "the same processes"


def test_all_links_of_all_processes_break_and_the_broker_goes_on(broker: Broker) -> None:
    run = broker.data_dir / "run"
    works(broker)
    known = actors(broker)
    before = {actor["pid"] for actor in known}
    for actor in actors(broker):
        wait_linked(actor["pid"], run, cut(actor["pid"], run))
    reload(broker, {actor["name"] for actor in actors(broker)})
    works(broker)
    with zsq.Admin(broker.tcp, timeout=10) as admin:
        admin.pause("t", "c")
        assert admin.stats("t", "c")["topics"][0]["channels"][0]["paused"]
        admin.unpause("t", "c")
    after = {actor["pid"] for actor in actors(broker)}
    assert before <= after, [one for one in known if one["pid"] not in after]


def test_a_gateway_that_does_not_answer_a_reload_is_started_again_and_health_is_bad_until_then(
    broker: Broker,
) -> None:
    [gateway] = [actor for actor in actors(broker) if actor["kind"] == "nsq_gateway"]
    os.kill(gateway["pid"], signal.SIGSTOP)
    try:
        assert broker.process is not None
        broker.process.send_signal(signal.SIGHUP)
        with zsq.Admin(broker.ipc, timeout=20) as admin:
            wait_for(lambda: "nsq gateway: the new settings" in health(admin), 20, "bad health")
            wait_for(
                lambda: gateway["pid"] not in broker.pids("nsq_gateway"),
                30,
                "the end of the one that does not answer",
            )
            wait_for(
                lambda: health(admin) == "OK" and broker.pids("nsq_gateway"), 20, "good health"
            )
    finally:
        broker.wait_gone([gateway["pid"]])
    assert (
        b"nsq gateway did not apply the new settings (no answer within 10 s;"
        in broker.log.read_bytes()
    )
    assert b"alarm raised: broker: nsq gateway: the new settings" in broker.log.read_bytes()
    wait_for(
        lambda: (
            b"alarm cleared: broker: all gateways have the new settings" in broker.log.read_bytes()
        ),
        30,
        "the alarm's end",
    )
    works(broker)


def health(admin: zsq.Admin) -> str:
    return str(admin.overview()["broker"]["health"])

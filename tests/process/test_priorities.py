"""Tests of channels with priorities on real processes: urgent messages overtake a backlog that is
larger than the channel's memory, also after a kill, and each message is finished once.
"""

from __future__ import annotations

import signal

from support.broker import Broker, wait_for
from support.zsq_command import run_text

import zsq

URGENT = {"zsq-priority": 1}
BACKLOG, BLOCK = 20_000, 500


def publish(broker: Broker) -> None:
    """Publish about 20 MB without priority, and ten urgent messages behind them."""
    with zsq.Producer(broker.ipc) as producer:
        for first in range(0, BACKLOG, BLOCK):
            numbers = range(first, first + BLOCK)
            producer.publish_many("jobs", [b"%d".ljust(1_000) % n for n in numbers])
        bodies = [b"urgent %d" % n for n in range(10)]
        producer.publish_many("jobs", bodies, headers=[URGENT] * 10)


def number_parked(broker: Broker) -> int:
    with zsq.Admin(broker.ipc) as admin:
        (channel,) = admin.stats("jobs")["topics"][0]["channels"]
        return int(channel.get("parked_count", 0))


def test_urgent_messages_overtake_a_backlog_also_after_a_kill(own_broker: Broker) -> None:
    with zsq.Admin(own_broker.ipc) as admin:
        admin.create_channel("jobs", "workers", priorities=2)
    publish(own_broker)
    got: list[bytes] = []
    with zsq.Consumer("jobs", "workers", url=own_broker.ipc, ready=1) as consumer:
        wait_for(
            lambda: number_parked(own_broker) >= BACKLOG, what="the channel has read the backlog"
        )
        while not any(body.startswith(b"urgent") for body in got):
            message = consumer.receive(10)
            assert message is not None
            got.append(message.body)
            message.finish(sync=True)
        assert len(got) < 10, "it did not wait for the backlog"
    with zsq.Producer(own_broker.ipc) as producer, zsq.Admin(own_broker.ipc) as admin:
        producer.publish("jobs", b"urgent late", headers=URGENT)

        def knows() -> bool:  # the topic tells an idle channel its end once a second
            (channel,) = admin.stats("jobs")["topics"][0]["channels"]
            waiting: int = channel["depth"] + channel["in_flight_count"]
            return waiting == BACKLOG + 11 - len(got)

        wait_for(knows, what="the depth")
    with zsq.Consumer("jobs", "workers", url=own_broker.ipc, ready=1_000) as consumer:
        first: list[bytes | None] = []  # the message that the first consumer held may come alone
        while b"urgent late" not in first and len(first) < 20:
            batch = consumer.receive_batch(10)
            assert batch is not None
            first += batch.bodies
        assert b"urgent late" in first, "it goes before what the consumer takes in advance"
    own_broker.signal_all(signal.SIGKILL)
    own_broker.close()
    own_broker.start()
    with zsq.Consumer("jobs", "workers", url=own_broker.ipc, ready=500) as consumer:
        while len(got) < BACKLOG + 11:
            batch = consumer.receive_batch(20)
            assert batch is not None, f"{len(got)} messages"
            got += [message.body for message in batch.messages()]
            batch.finish(sync=True)
        assert consumer.receive(0.05) is None
    places = [at for at, body in enumerate(got) if body.startswith(b"urgent")]
    assert len(set(got)) == BACKLOG + 11
    assert places[-1] < BACKLOG // 2, "a start finds them again"
    bulk = [int(body) for body in got if not body.startswith(b"urgent")]
    assert bulk == sorted(bulk), "messages of one priority keep their order"


def test_the_command_line_and_its_refusals(broker: Broker) -> None:
    def zsq_(*words: str) -> tuple[int, str]:
        ended = run_text(*words, "--url", broker.ipc)
        return ended.returncode, ended.stdout + ended.stderr

    code, said = zsq_("channel", "create", "jobs", "workers", "--priorities", "3")
    assert code == 0, said
    for number in (0, 2, 1):
        header = ("--header", f"zsq-priority={number}")
        assert zsq_("pub", "jobs", f"message {number}", *header)[0] == 0
    _, shown = zsq_("channel", "show", "jobs", "workers")
    assert "\npriorities 3 levels\n" in shown, shown
    code, said = zsq_("sub", "jobs", "workers", "-n", "3")
    assert (code, said.split("\n")[:3]) == (0, ["message 2", "message 1", "message 0"])
    code, said = zsq_("channel", "create", "jobs", "other", "--priorities", "1")
    assert (code, "from 2 to 10" in said) == (2, True), said
    code, said = zsq_("channel", "create", "jobs", "other", "--priorities", "2", "--ordered")
    assert (code, "ordered or has priorities, not both" in said) == (2, True), said
    code, said = zsq_("channel", "set", "jobs", "workers", "--priorities", "4")
    assert (code, "priorities" in said) == (2, True), said

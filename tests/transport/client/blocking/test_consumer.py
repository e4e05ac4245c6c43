"""Tests of the blocking consumer against a small fake broker."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.broker import wait_for as until

import zsq
from zsq.transport.errors import E_FORBIDDEN, E_LIMIT
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


def test_a_message_has_its_body_key_tag_and_other_attributes(broker: Broker) -> None:
    with zsq.Producer(broker.url) as producer:
        producer.publish("t", b"body", key="k", tag="g", headers={"a": 1})
    with zsq.Consumer("t", "c", url=broker.url) as consumer:
        message = consumer.receive()
        assert message is not None
        assert (message.body, message.key, message.tag, message.headers) == (
            b"body",
            b"k",
            "g",
            {"a": 1},
        )
        assert (message.offset, message.attempts, message.topic, message.channel) == (
            0,
            1,
            "t",
            "c",
        )
        assert message.timestamp_ns == 1_700_000_000_000_000_000
        message.finish(sync=True)
        assert broker.finished == [0]
        with pytest.raises(zsq.UsageError, match="already answered"):
            message.finish()
        with pytest.raises(zsq.UsageError, match="already answered"):
            message.requeue()


def test_each_message_of_an_iteration_can_be_finished(broker: Broker) -> None:
    put(broker, *numbers(3000))
    put(broker, *numbers(100, 3000))
    with zsq.Consumer("t", "c", url=broker.url, ready=500) as consumer:
        seen = []
        for message in consumer:
            seen.append(message.body)
            message.finish()
            if len(seen) == 3100:
                break
        consumer.flush()
        assert broker.finished == list(range(3100))
    assert seen == numbers(3100)
    fins = [request for request in broker.heard if type(request) is p.Fin]
    assert len(fins) < 40, "finishes travel as ranges"
    assert consumer.stale_count == 0


def test_batches_are_finished_as_ranges(broker: Broker) -> None:
    put(broker, *numbers(1000))
    with zsq.Consumer("t", "c", url=broker.url, ready=400) as consumer:
        sizes = []
        for batch in consumer.batches():
            sizes.append(len(batch))
            assert batch.bodies == numbers(len(batch), batch.offsets[0])
            assert batch.attempts == [1] * len(batch)
            batch.finish()
            if sum(sizes) == 1000:
                break
    assert sizes == [400, 400, 200]
    assert broker.finished == list(range(1000))
    assert {message.ranges for message in broker.heard if type(message) is p.Fin} == {()}


def test_a_batch_can_be_answered_in_part_and_then_as_a_whole(broker: Broker) -> None:
    put(broker, *numbers(10))
    with zsq.Consumer("t", "c", url=broker.url) as consumer:
        batch = consumer.receive_batch()
        assert batch is not None
        messages = batch.messages()
        messages[3].finish()
        messages[5].finish(sync=True)
        assert broker.finished == [3, 5]
        messages[0].requeue(1.5)
        # This is the same message through another object. It is sent only once.
        batch.messages()[3].finish()
        batch.finish(sync=True)
        assert sorted(broker.finished) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert broker.requeued == [(0, 1500)]
    assert consumer.stale_count == 0


def test_plain_finishes_are_sent_although_no_call_follows(broker: Broker) -> None:
    put(broker, b"a", b"b")
    with zsq.Consumer("t", "c", url=broker.url) as consumer:
        message = consumer.receive()
        assert message is not None
        message.finish()
        broker.wait_for(lambda: broker.finished == [0])


def test_a_requeued_message_comes_again_with_another_attempt(broker: Broker) -> None:
    put(broker, b"a")
    with zsq.Consumer("t", "c", url=broker.url) as consumer:
        message = consumer.receive()
        assert message is not None
        message.touch()
        message.requeue()
        again = consumer.receive(5)
        assert again is not None
        assert (again.body, again.attempts) == (b"a", 2)
        again.finish(sync=True)
        with pytest.raises(zsq.UsageError):
            again.requeue(7200)
    assert broker.count(p.Touch) == 1


def test_receive_returns_none_when_its_timeout_passes(broker: Broker) -> None:
    with zsq.Consumer("t", "c", url=broker.url) as consumer:
        assert consumer.receive(0) is None
        assert consumer.receive_batch(0.05) is None
        put(broker, b"a")
        assert consumer.receive(5) is not None


def test_leaving_early_gives_the_rest_back_at_once(broker: Broker) -> None:
    put(broker, *numbers(10))
    with zsq.Consumer("t", "c", url=broker.url) as first:
        for message in first:
            message.finish()
            if message.offset == 2:
                break
        assert [m.offset for m in (first.receive(), first.receive()) if m is not None] == [3, 4]
    with zsq.Consumer("t", "c", url=broker.url) as second:
        again = [second.receive(5) for _ in range(7)]
        assert [message.offset for message in again if message is not None] == [3, 4, 5, 6, 7, 8, 9]
    assert broker.finished == [0, 1, 2]


def test_a_lost_link_makes_leases_void(broker: Broker) -> None:
    put(broker, *numbers(4))
    consumer = zsq.Consumer("t", "c", url=broker.url)
    old = [consumer.receive(5) for _ in range(3)]
    broker.die()
    broker.start()
    again = [consumer.receive(5) for _ in range(4)]
    assert sorted(message.offset for message in again if message is not None) == [0, 1, 2, 3]
    assert old[0] is not None
    assert old[1] is not None
    with pytest.raises(zsq.LeaseLost):
        old[0].finish(sync=True)
    old[1].finish()
    consumer.flush()
    assert consumer.stale_count == 0
    consumer.close()
    assert broker.finished == [1], "the message is here again, so its finish counts"


def test_finishes_told_and_not_confirmed_when_the_link_was_lost(broker: Broker) -> None:
    put(broker, *numbers(2))
    consumer = zsq.Consumer("t", "c", url=broker.url)
    message = consumer.receive(5)
    assert message is not None
    message.finish()
    broker.wait_for(lambda: broker.finished == [0])
    broker.die()
    broker.start()
    broker.wait_for(lambda: broker.count(p.Sub) == 2)
    assert consumer.receive(5) is not None
    with pytest.raises(zsq.LeaseLost, match="1 finishes were not confirmed"):
        consumer.flush()
    consumer.close()


def test_finishes_are_confirmed_with_the_heartbeats(broker: Broker) -> None:
    """A consumer that never flushes would call all of them unconfirmed when its link is lost."""
    put(broker, *numbers(2))
    with zsq.Consumer("t", "c", url=broker.url, heartbeat_ms=60_000, ready=2) as consumer:
        for _ in range(2):
            message = consumer.receive(5)
            assert message is not None
            message.finish()
        broker.wait_for(lambda: broker.finished == [0, 1])
        drive = consumer._made
        assert drive is not None
        session, leg = drive.engine.session, drive.engine.legs[0]
        # The broker may have the finish before the consumer has noted that it is sent.
        until(lambda: leg._confirm_ns < time.monotonic_ns() + 61_000_000_000, 20)
        with drive.lock:
            leg._confirm_ns = 0  # the heartbeat is over
            drive.engine.sooner(0)
            drive.settle()
        until(lambda: session.unconfirmed == 0, 20)
        assert leg._confirm_ns > 0, "the next ones have a heartbeat's time"
        broker.die()
        broker.start()
        broker.wait_for(lambda: broker.count(p.Sub) == 2)
        consumer.flush()


def test_close_logs_how_many_finishes_were_not_confirmed(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    put(broker, *numbers(2))
    consumer = zsq.Consumer("t", "c", url=broker.url)
    message = consumer.receive(5)
    assert message is not None
    message.finish()
    broker.wait_for(lambda: broker.finished == [0])
    broker.die()
    broker.start()
    broker.wait_for(lambda: broker.count(p.Sub) == 2)
    assert consumer.receive(5) is not None
    consumer.close()
    assert "t/c: consumer closed, but 1 finishes were not confirmed" in caplog.text


def test_close_logs_nothing_when_all_finishes_were_confirmed(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    put(broker, *numbers(2))
    consumer = zsq.Consumer("t", "c", url=broker.url)
    message = consumer.receive(5)
    assert message is not None
    message.finish()
    consumer.close()
    assert broker.finished == [0]
    assert "not confirmed" not in caplog.text


def test_a_finish_after_the_lease_expired_raises_lease_lost(broker: Broker) -> None:
    put(broker, b"a", b"b")
    with zsq.Consumer("t", "c", url=broker.url, ready=2) as consumer:
        message = consumer.receive(5)
        other = consumer.receive(5)
        assert message is not None
        assert other is not None
        broker.call(broker.expire)
        assert consumer.receive(5) is not None
        with pytest.raises(zsq.LeaseLost):
            message.finish(sync=True)
        other.finish()
        with pytest.raises(zsq.LeaseLost):
            consumer.flush()
        assert consumer.stale_count == 1


def test_a_corrupt_delivery_is_not_used(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    put(broker, b"body")
    right = broker.todo[0]
    block = right[0]
    broken = bytearray(bytes(block.columns))
    broken[12] ^= 1
    wrong = type(block)(block.header, bytes(broken))
    broker.call(lambda: broker.todo.__setitem__(0, (wrong, 1)))
    consumer = zsq.Consumer("t", "c", url=broker.url, ready=1)
    consumer.subscribe()
    broker.wait_for(lambda: broker.count(p.Sub) >= 2)
    broker.call(lambda: (broker.leases.clear(), broker.todo.append((block, 1)), broker._deliver()))
    message = consumer.receive(5)
    assert message is not None
    assert message.body == b"body"
    consumer.close()
    assert "checksum" in caplog.text


def test_a_refused_subscription_is_raised_and_can_be_tried_again(broker: Broker) -> None:
    broker.lookup_error = (E_LIMIT, "too many channels")
    consumer = zsq.Consumer("t", "c", url=broker.url)
    with pytest.raises(zsq.Refused, match="too many channels"):
        consumer.receive()
    broker.lookup_error = None
    put(broker, b"a")
    assert consumer.receive(5) is not None
    consumer.close()


def test_an_unreachable_broker_is_reported(tmp_path: Path) -> None:
    consumer = zsq.Consumer("t", "c", url=f"ipc://{tmp_path}/none", timeout=0.2)
    with pytest.raises(
        zsq.BrokerUnreachable, match=r"no link to channel t/c .* within 0.2 s .*zsq serve"
    ):
        consumer.receive()
    with pytest.raises(zsq.BrokerUnreachable, match="could not subscribe"), consumer:
        pass
    assert consumer.receive(0.05) is None, "a time-out of its own is no error"
    consumer.close()


def test_each_wrong_argument_is_refused() -> None:
    for more in (
        {"ready": 0},
        {"ready": 1_000_000},
        {"message_timeout": 0.5},
        {"timeout": -1},
        {"heartbeat_ms": 1},
    ):
        with pytest.raises(zsq.UsageError):
            zsq.Consumer("t", "c", **more)
    with pytest.raises(zsq.UsageError, match="E_BAD_NAME channel name"):
        zsq.Consumer("t", "c/d")


# Running a handler


@pytest.mark.parametrize("concurrency", [1, 4])
def test_run_finishes_and_requeues(broker: Broker, concurrency: int) -> None:
    put(broker, *numbers(200))
    consumer = zsq.Consumer("t", "c", url=broker.url, ready=50)
    failed: list[tuple[int, str]] = []
    handled: list[int] = []

    def handle(message: zsq.Message) -> None:
        if message.offset % 50 == 7 and message.attempts == 1:
            raise RuntimeError("at random")
        handled.append(message.offset)
        if len(handled) == 200:
            consumer._stop_taking()

    consumer.run(
        handle,
        concurrency=concurrency,
        requeue_delay=0,
        on_error=lambda m, e: failed.append((m.offset, str(e))),
    )
    assert sorted(handled) == list(range(200))
    assert sorted(failed) == [(offset, "at random") for offset in (7, 57, 107, 157)]
    assert sorted(broker.finished) == list(range(200))
    broker.wait_for(lambda: broker.count(p.Bye) == 1)
    with pytest.raises(zsq.Refused, match="closed"):
        consumer.run(handle)


def test_a_signal_ends_run_after_the_current_message(broker: Broker) -> None:
    put(broker, *numbers(10))
    consumer = zsq.Consumer("t", "c", url=broker.url)
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def handle(message: zsq.Message) -> None:
        seen.append(message.offset)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    consumer.run(handle)
    assert seen == [0, 1, 2]
    assert broker.finished == [0, 1, 2]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_ends_run_while_no_message_arrives(broker: Broker) -> None:
    consumer = zsq.Consumer("t", "c", url=broker.url)

    def interrupt() -> None:
        broker.wait_for(lambda: broker.count(p.Sub) == 1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    consumer.run(lambda message: None)
    assert broker.count(p.Bye) <= 1


def test_run_ends_with_the_brokers_error(broker: Broker) -> None:
    broker.lookup_error = (E_FORBIDDEN, "no")
    with pytest.raises(zsq.Refused, match="E_FORBIDDEN no"):
        zsq.Consumer("t", "c", url=broker.url).run(lambda message: None, concurrency=3)


def test_close_from_another_thread_waits_for_the_batch_in_hand(broker: Broker) -> None:
    put(broker, *numbers(5))
    consumer = zsq.Consumer("t", "c", url=broker.url)
    closer = threading.Thread(target=consumer.close)
    for batch in consumer.batches():
        closer.start()
        broker.wait_for(lambda: broker.count(p.Ready) == 1)
        assert closer.is_alive()
        batch.finish()
    closer.join(5)
    assert not closer.is_alive()
    assert broker.finished == [0, 1, 2, 3, 4]


def test_close_wakes_who_waits(broker: Broker) -> None:
    consumer = zsq.Consumer("t", "c", url=broker.url)
    got: list[object] = []
    waiting = [threading.Thread(target=lambda: got.append(consumer.receive())) for _ in range(3)]
    for thread in waiting:
        thread.start()
    broker.wait_for(lambda: broker.count(p.Sub) == 1)
    consumer.close()
    for thread in waiting:
        thread.join(5)
    assert got == [None] * 3


def test_a_forked_child_subscribes_by_itself(broker: Broker) -> None:
    put(broker, b"a")
    consumer = zsq.Consumer("t", "c", url=broker.url)
    message = consumer.receive(5)
    assert message is not None
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            consumer.subscribe(10)
            consumer.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    message.finish(sync=True)
    consumer.close()
    assert broker.finished == [0]
    assert broker.count(p.Sub) == 2


def test_a_coroutine_is_no_handler_here(broker: Broker) -> None:
    """Nothing would await the coroutine: each message would count as handled, and no line of the
    handler would have run.
    """

    async def handler(message: zsq.Message) -> None:
        raise AssertionError("never awaited")

    put(broker, b"precious")
    with zsq.Consumer("t", "c", url=broker.url) as consumer:
        with pytest.raises(zsq.UsageError, match="coroutine"):
            consumer.run(handler, signals=False)
        with pytest.raises(zsq.UsageError, match="coroutine"):
            consumer.run(lambda message: handler(message), signals=False)
    assert broker.finished == []

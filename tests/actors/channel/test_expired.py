"""Test of messages that their consumer returns as expired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zsq.transport.wire.protocol import EXPIRED

if TYPE_CHECKING:
    from tests.actors.conftest import ChannelHarness

A = (b"a",)


def test_messages_returned_as_expired_are_counted_as_timed_out(harness: ChannelHarness) -> None:
    """The channel treats the messages as if the scan had found that their lease ended: it
    redelivers them at once and counts them as time-outs, not as requeues.
    """
    harness.join(A, 10)
    harness.come(4)
    assert harness.channel.req(
        A, harness.send_one().token, [(1, 2), (9, 1)], EXPIRED, harness.wall_ns
    ) == [(9, 1)]
    assert (
        harness.channel.counters["timeout_count"],
        harness.channel.counters["requeue_count"],
    ) == (2, 0)
    assert harness.channel.consumers[A].timeout_count == 2
    harness.commit()
    assert harness.told(harness.send()) == [("a", ((1, 2, 2),))]

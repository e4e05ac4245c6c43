"""Parts of a delivery that their consumer gives back as expired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zsq.transport.protocol import EXPIRED

if TYPE_CHECKING:
    from tests.actors.conftest import Desk

A = (b"a",)


def test_who_keeps_a_deadline_for_each_message_says_which_are_over(desk: Desk) -> None:
    """As if the scan had found them: at once, and counted as time-outs, not as requeues."""
    desk.join(A, 10)
    desk.come(4)
    assert desk.channel.req(A, desk.send_one().token, [(1, 2), (9, 1)], EXPIRED, desk.wall_ns) == [(9, 1)]
    assert (desk.channel.counters["timeout_count"], desk.channel.counters["requeue_count"]) == (2, 0)
    assert desk.channel.consumers[A].timeout_count == 2
    desk.commit()
    assert desk.told(desk.send()) == [("a", ((1, 2, 2),))]

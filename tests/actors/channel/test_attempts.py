"""Tests of what uses an attempt: each end of a message that a consumer has, held or begun.

The table in docs/delivery.md is written by this file: python tests/actors/channel/test_attempts.py
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.actors.conftest import ChannelHarness
from zsq.actors.channel.lease import Departure, OutgoingDelivery
from zsq.transport.settings import ChannelSettings
from zsq.transport.wire.protocol import EXPIRED, UNBEGUN

S: Final = 1_000_000_000
A, B, C = (b"a",), (b"b",), (b"c",)
ALL: tuple[tuple[int, int], ...] = ()
DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "delivery.md"


def _requeue(harness: ChannelHarness, token: int) -> None:
    harness.channel.req(A, token, ALL, 0, harness.wall_ns)


def _give_back(harness: ChannelHarness, token: int) -> None:
    harness.channel.req(A, token, ALL, UNBEGUN, harness.wall_ns)


def _defer(harness: ChannelHarness, token: int) -> None:
    harness.channel.req(A, token, ALL, 0, harness.wall_ns, defer=True)


def _pass_time(harness: ChannelHarness, token: int) -> None:
    for _ in range(70):
        harness.channel.consumers[A].seen_ns = harness.now_ns
        harness.scan(1)


def _restart(harness: ChannelHarness, token: int) -> None:
    """The channel stops cleanly."""
    harness.channel.end()


def _leave(how: Departure) -> Callable[[ChannelHarness, int], None]:
    def leave(harness: ChannelHarness, token: int) -> None:
        harness.channel.unsubscribe(A, how)

    return leave


class Case(NamedTuple):
    """One end. `held` and `begun` are the attempts that it uses, or None if nothing ends."""

    what: str
    happen: Callable[[ChannelHarness, int], None]
    held: int | None
    begun: int | None


CASES: Final = (
    Case("the handler raises, or the program requeues the message", _requeue, 1, 1),
    Case("the handler puts the message off", _defer, 0, 0),
    Case("the program closes the consumer, or ends after SIGTERM", _leave(Departure.LEFT), 0, 1),
    Case("the process of the consumer is killed, or its link is lost", _leave(Departure.LOST), 0, 1),
    Case("the message timeout passes", _pass_time, None, 1),
    Case("the broker asks for it, because another consumer is idle", _give_back, 0, 0),
    Case("the topic is closed to consumers", _leave(Departure.SENT_AWAY), 0, 0),
    Case("the broker stops or starts again, cleanly", _restart, 0, 0),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.what for case in CASES])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("most", [0, 5])
def test_an_end_uses_the_attempts_that_the_table_says(
    case: Case, *, begun: bool, most: int
) -> None:
    harness = ChannelHarness(max_attempts=most)
    harness.join(A, 10, reports=True)
    harness.come(4)
    delivery = harness.send_one()
    assert delivery.runs == ((0, 4, 1),)
    if begun:
        harness.channel.note_begun(A, delivery.token, ALL, harness.now_ns)
    case.happen(harness, delivery.token)
    uses = case.begun if begun else case.held
    if uses is None:
        assert harness.stats() == (0, 4, 0)
        return
    rows = {row[0]: row for row in harness.commit().holes_put}
    assert rows[0] == (0, 4, uses, 0)
    if case.happen is _restart:
        return
    harness.join(B, 10, reports=True)
    again: list[OutgoingDelivery] = []
    while harness.stats()[0]:
        again += (sent := harness.send())
        for one in sent:
            harness.channel.fin(one.peer, one.token, ALL)
        harness.commit()
    runs = sorted(run for one in again for run in one.runs)
    assert sum(run[1] for run in runs) == 4
    assert {run[2] for run in runs} == {uses + 1}


def test_an_nsq_consumer_has_begun_what_was_sent() -> None:
    harness = ChannelHarness()
    harness.join(A, 10)
    harness.come(4)
    harness.send_one()
    harness.channel.unsubscribe(A, Departure.LEFT)
    assert harness.commit().holes_put == ((0, 4, 1, 0),)


def test_held_messages_wait_as_long_as_their_consumer_lives() -> None:
    harness = ChannelHarness()
    harness.join(A, 10, reports=True)
    harness.come(4)
    token = harness.send_one().token
    harness.channel.note_begun(A, token, [(0, 1)], harness.now_ns)
    _pass_time(harness, token)
    assert harness.stats() == (1, 3, 0)
    assert harness.channel.counters["timeout_count"] == 1


def test_a_lease_runs_from_the_moment_that_its_own_message_was_begun() -> None:
    harness = ChannelHarness()
    harness.join(A, 10, reports=True)
    harness.come(4)
    token = harness.send_one().token
    for offset in range(3):
        harness.channel.note_begun(A, token, [(offset, 1)], harness.now_ns)
        harness.scan(20)
    harness.scan(1)
    assert harness.stats() == (1, 3, 0)
    assert harness.channel.touch(A, token, harness.now_ns, [(1, 1)]) == ()
    harness.scan(20)
    assert harness.stats() == (1, 3, 0), "1 was extended, and 2 has time left"
    harness.scan(20)
    assert harness.stats() == (2, 2, 0), "2 is over"
    assert harness.channel.fin(A, token, [(2, 1)]) == [(2, 1)]
    assert harness.channel.fin(A, token, [(1, 1), (3, 1)]) == []


@pytest.mark.parametrize("reports", [False, True])
def test_a_message_that_kills_its_consumers_takes_no_others_with_it(*, reports: bool) -> None:
    """Eight handlers work at a time, and 20 messages wait. Message 5 ends the process at once."""
    harness = ChannelHarness(max_attempts=3)
    harness.come(28)
    harness.channel.supply.shelve(harness.block_at(0, 28))
    done: set[int] = set()
    deaths = 0
    for life in range(40):
        peer = (b"%d" % life,)
        harness.join(peer, 28, reports=reports)
        dead = False
        while not dead and (sent := harness.send()):
            for delivery in sent:
                offsets = [run[0] + i for run in delivery.runs for i in range(run[1])]
                for offset in offsets:
                    if reports:
                        harness.channel.note_begun(
                            peer, delivery.token, [(offset, 1)], harness.now_ns
                        )
                    if offset == 5:
                        dead = True
                        break
                    # Of the first delivery, the first ones are not answered before it is lost.
                    if life or offset > 5:
                        harness.channel.fin(peer, delivery.token, [(offset, 1)])
                        done.add(offset)
                if dead:
                    break
            harness.commit()
        if not dead:
            break
        deaths += 1
        harness.channel.unsubscribe(peer)
        harness.commit()
    assert done == set(range(28)) - {5}
    assert deaths == 3
    assert [one.death.run for one in harness.channel.supply.next_dead()] == [(5, 1, 3)]


def test_a_message_of_which_nothing_was_heard_is_found_too() -> None:
    """A consumer that dies within the time of a report has told nothing. The message is delivered
    apart, and its consumer reports it before the handler begins.
    """
    harness = ChannelHarness(max_attempts=2)
    harness.come(100)
    harness.channel.supply.shelve(harness.block_at(0, 100))
    done: set[int] = set()
    deaths = 0
    for life in range(60):
        peer = (b"%d" % life,)
        harness.join(peer, 100, reports=True)
        dead = False
        while not dead and (sent := harness.send()):
            for delivery in sent:
                offsets = [run[0] + i for run in delivery.runs for i in range(run[1])]
                if delivery.alone:
                    harness.channel.note_begun(peer, delivery.token, ALL, harness.now_ns)
                if dead := 77 in offsets:
                    break
                harness.channel.fin(peer, delivery.token, ALL)
                done.update(offsets)
            harness.commit()
        if not dead:
            break
        deaths += 1
        harness.channel.unsubscribe(peer)
        harness.commit()
    assert done == set(range(100)) - {77}
    assert [one.death.run for one in harness.channel.supply.next_dead()] == [(77, 1, 2)]
    assert deaths <= 2 + 7, "the attempts, and a few deaths in groups"


def test_suspects_have_a_consumer_for_themselves() -> None:
    harness = ChannelHarness(max_attempts=3)
    harness.join(A, 10, reports=True)
    harness.come(4)
    harness.channel.note_begun(A, harness.send_one().token, [(0, 2)], harness.now_ns)
    harness.channel.unsubscribe(A)
    harness.commit()
    harness.join(B, 10, reports=True)
    harness.join(C, 10, reports=True)
    harness.come(3, 3)
    harness.channel.supply.shelve(harness.block_at(0, 4))
    sent = harness.send()
    alone = [one for one in sent if one.alone]
    assert [one.runs for one in alone] == [((0, 1, 2),)]
    others = {one.peer for one in sent if not one.alone}
    assert others == {B, C} - {alone[0].peer}
    assert harness.send() == []
    harness.channel.fin(alone[0].peer, alone[0].token, ALL)
    assert [one.runs for one in harness.send()] == [((1, 1, 2),)], "the same consumer goes on"


def test_without_a_limit_of_attempts_nothing_is_suspect() -> None:
    harness = ChannelHarness(max_attempts=0)
    harness.join(A, 10, reports=True)
    harness.come(4)
    harness.send_one()
    harness.channel.unsubscribe(A)
    harness.commit()
    harness.channel.supply.shelve(harness.block_at(0, 4))
    harness.join(B, 10, reports=True)
    assert harness.told(harness.send()) == [("b", ((0, 4, 1),))]


def test_suspects_are_trusted_when_the_limit_is_lifted() -> None:
    harness = ChannelHarness(max_attempts=3)
    harness.join(A, 10, reports=True)
    harness.come(4)
    harness.send_one()
    harness.channel.unsubscribe(A)
    harness.channel.configure(ChannelSettings())
    harness.commit()
    harness.channel.supply.shelve(harness.block_at(0, 4))
    harness.join(B, 10, reports=True)
    assert harness.told(harness.send()) == [("b", ((0, 4, 1),))]


def test_an_idle_consumer_gets_what_another_one_only_holds() -> None:
    harness = ChannelHarness()
    harness.join(A, 10, reports=True)
    harness.come(9)
    token = harness.send_one().token
    harness.channel.note_begun(A, token, [(0, 1)], harness.now_ns)
    harness.join(B, 2, reports=True)
    harness.channel.look_for_idle(harness.now_ns)
    assert harness.channel.recalls(harness.now_ns) == [], "it may begin them at once"
    harness.scan(0.1)
    assert harness.channel.recalls(harness.now_ns) == [(A, 2)], "as many as B has room for"
    harness.channel.look_for_idle(harness.now_ns)
    assert harness.channel.recalls(harness.now_ns) == [], "it was asked just now"
    harness.channel.req(A, token, [(7, 2)], UNBEGUN, harness.wall_ns)
    harness.commit()
    assert harness.told(harness.send()) == [("b", ((7, 2, 1),))]
    assert harness.channel.counters["requeue_count"] == 0


def test_a_consumer_keeps_half_of_what_it_holds() -> None:
    harness = ChannelHarness()
    harness.join(A, 10, reports=True)
    harness.come(5)
    harness.send_one()
    harness.join(B, 100, reports=True)
    harness.channel.look_for_idle(harness.now_ns)
    harness.scan(0.1)
    assert harness.channel.recalls(harness.now_ns) == [(A, 3)]


def test_expired_messages_of_nsq_use_an_attempt() -> None:
    harness = ChannelHarness()
    harness.join(A, 10)
    harness.come(4)
    harness.channel.req(A, harness.send_one().token, [(0, 1)], EXPIRED, harness.wall_ns)
    assert sorted(harness.commit().holes_put)[0] == (0, 1, 1, 0)


def table() -> str:
    def uses(count: int | None) -> str:
        if count is None:
            return "it stays with its consumer"
        return "uses an attempt" if count else "uses no attempt"

    lines = ["| what happens | to a held message | to a begun message |", "|---|---|---|"]
    lines += [f"| {case.what} | {uses(case.held)} | {uses(case.begun)} |" for case in CASES]
    return "\n".join(lines)


def written(text: str) -> str:
    pattern = r"(<!-- attempts: written from the tests -->\n).*?(<!-- end -->)"
    assert len(re.findall(pattern, text, re.DOTALL)) == 1
    return re.sub(pattern, lambda found: f"{found[1]}{table()}\n{found[2]}", text, flags=re.DOTALL)


def test_the_table_is_current() -> None:
    text = DOCUMENT.read_text()
    assert written(text) == text, "run python tests/actors/channel/test_attempts.py"


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text()))

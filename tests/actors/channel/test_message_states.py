"""Tests of the table of message states: every message moves only as the table says, each move of
the table happens, and the table in the documentation is current.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from support.message_states import MOVES
from support.watched import SEEN, Watch

from tests.actors.channel.test_choice_machine import ChoiceMachine
from tests.actors.channel.test_delivery_machine import DeliveryMachine
from tests.actors.channel.test_ordered_machine import OrderedMachine
from tests.actors.channel.test_wild_channel import PEERS, WildChannel
from tests.actors.conftest import ChannelHarness
from zsq.actors.channel.lease import Departure
from zsq.transport.block.block import pack
from zsq.transport.settings import ChannelSettings
from zsq.transport.wire.protocol import BACKOFF, DEAD, UNBEGUN

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "delivery.md"


class WatchedDelivery(DeliveryMachine):
    def start(self) -> None:
        super().start()
        self.watch = Watch(
            self.channel,
            chain.from_iterable(range(start, start + row[0]) for start, row in self.kept.items()),
        )


class WatchedOrdered(OrderedMachine):
    def start(self) -> None:
        super().start()
        self.watch = Watch(
            self.channel,
            chain.from_iterable(range(start, start + row[0]) for start, row in self.kept.items()),
        )


class WatchedChoice(ChoiceMachine):
    def start(self) -> None:
        super().start()
        self.watch = Watch(self.channel)


@pytest.mark.parametrize("machine", [WatchedDelivery, WatchedOrdered, WatchedChoice])
def test_messages_move_as_the_table_says(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=40))


def walk(seed: int) -> None:
    """Run 120 random steps of a channel in `WildChannel`, and then finish everything."""
    dice = random.Random(seed)
    late = partial(random.Random(seed).choice, [False] * 4 + [True])
    one = WildChannel()
    age = dice.choice([-1, -1, 60.0])
    one.begin(
        kind=dice.choices(["ordered", "plain", "priorities"], (4, 5, 1))[0],
        tags=dice.choice(["", "x"]),
        most=dice.choice([0, 1, 2]),
        age=age,
    )
    keys, tags, rates, delays = (
        [b"a", b"b", None],
        [b"x", b"y", None],
        [0, 0, 50],
        [0, 10_000, BACKOFF, DEAD, UNBEGUN],
    )

    steps: list[Callable[[], object]] = [
        lambda: one.publish([(dice.choice(keys), dice.choice(tags)) for _ in range(dice.randint(1, 6))]) if one.head < 60 else None,
        lambda: one.feed(dice.randint(1, 3)),
        one.fetch,
        lambda: one.damage(dice.randint(0, 60), dice.randint(0, 5)),
        lambda: one.drop_oldest(1, dice.randint(0, 5)),
        lambda: one.join(dice.choice(PEERS), dice.randint(0, 8), dice.choice(rates), reports=dice.random() < 0.7),
        lambda: one.leave(dice.choice(PEERS), dice.choice(list(Departure))),
        lambda: one.note_begun(dice.randint(0, 2), dice.randint(0, one.head), dice.randint(0, 9)) if one.tokens else None,
        lambda: one.fin(dice.randint(0, 2), dice.randint(0, one.head), dice.randint(0, 9)) if one.tokens else None,
        lambda: one.scan(dice.choice([1, 11, 61])),
        lambda: one.scan(30_000) if dice.random() < 0.3 else None,  # all consumers are lost
        lambda: one.due(3) if one.channel.may_ask() else None,
        one.bury,
        *[lambda: one.configure(dice.choice([0, 1, 2]), dice.randint(0, 2))] * 2,
        lambda: one.seek(dice.randint(0, 60), dice.randint(0, 5)),
        lambda: one.skip({dice.randint(0, one.head) for _ in range(3)}, dice.randint(0, 1)),
        lambda: one.end_and_begin(dice.randint(0, 3), dice.random() < 0.5, dice.random() < 0.5),
        *[lambda: one.deliver(dice.randint(1, 4))] * 4,
        *[lambda: one.req(0, dice.randint(0, one.head), dice.randint(0, 2), dice.choice(delays), defer=late()) if one.tokens else None] * 3,
        *[lambda: one.save() if one.pending is None else one.committed()] * 3,
    ]  # fmt: skip
    try:
        for _ in range(120):
            dice.choice(steps)()
    finally:
        one.teardown()


def lower_the_limit_meanwhile(how: Callable[[ChannelHarness, int], object], *, begun: bool) -> None:
    """Let a message come back whose attempts were used up by a change while a consumer had it."""
    harness = ChannelHarness(max_attempts=3)
    Watch(harness.channel)
    harness.join(PEERS[0], 1, reports=True)
    harness.come(1)
    harness.channel.req(PEERS[0], harness.send_one().token, (), 0, harness.wall_ns)
    harness.commit()
    token = harness.send_one().token
    if begun:
        harness.channel.note_begun(PEERS[0], token, (), harness.now_ns)
    harness.channel.configure(ChannelSettings(max_attempts=1))
    how(harness, token)


def let_messages_expire() -> None:
    """Let a message become a dead letter before its first delivery, and one before its second."""
    harness = ChannelHarness(max_age_s=10.0, dead_letter_expired=True)
    Watch(harness.channel)
    harness.join(PEERS[0], 1)
    harness.take_in(pack([b"x"]))
    harness.channel.req(PEERS[0], harness.send_one().token, (), 0, harness.wall_ns)
    harness.commit()
    harness.take_in(pack([b"x"]))
    harness.channel.rest()
    for _ in range(2):
        harness.channel.next_delivery(harness.now_ns, harness.wall_ns + 11 * 10**9)


def test_each_move_of_the_table_is_made() -> None:
    """A move that never happens does not belong in the table."""
    every = {
        (state, event, after)
        for state, events in MOVES.items()
        for event, ends in events.items()
        for after in ends
    }
    let_messages_expire()
    for begun in (False, True):
        lower_the_limit_meanwhile(
            lambda harness, token: harness.channel.req(
                PEERS[0], token, (), UNBEGUN, harness.wall_ns
            ),
            begun=begun,
        )
        lower_the_limit_meanwhile(
            lambda harness, token: harness.channel.unsubscribe(PEERS[0]), begun=begun
        )
        lower_the_limit_meanwhile(lambda harness, token: harness.scan(3_600 * 3), begun=begun)
    for seed in range(600):
        walk(seed)
        if every <= SEEN:
            return
    raise AssertionError(f"never seen: {[(a.value, e.value, b.value) for a, e, b in every - SEEN]}")


def rows() -> str:
    """Return a row for each state. Events with the same ends share their place in it."""
    lines = ["| a message that is | by this | is then |", "|---|---|---|"]
    for state, events in MOVES.items():
        ends: dict[str, list[str]] = {}
        for event, after in events.items():
            ends.setdefault(", ".join(sorted(one.value for one in after)), []).append(event.value)
        lines += [f"| {state.value} | {', '.join(by)} | {after} |" for after, by in ends.items()]
    return "\n".join(lines)


def drawn(text: str) -> str:
    pattern = r"(<!-- moves: drawn from the code -->\n).*?(<!-- end -->)"
    assert len(re.findall(pattern, text, re.DOTALL)) == 1
    return re.sub(pattern, lambda found: f"{found[1]}{rows()}\n{found[2]}", text, flags=re.DOTALL)


def test_the_table_of_the_page_is_current() -> None:
    text = DOCUMENT.read_text()
    assert drawn(text) == text, "run python tests/actors/channel/test_message_states.py"


if __name__ == "__main__":
    DOCUMENT.write_text(drawn(DOCUMENT.read_text()))

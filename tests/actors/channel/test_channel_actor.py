"""Tests of the channel actor with ports that only record what was sent. Most of them check how the
channel reacts when storage reports that messages were removed.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from support.routed import Routed
from support.stage_bench import A

from zsq.actors.channel.channel import ChannelActor
from zsq.actors.channel.feed import FeedState
from zsq.actors.runtime.port import Mail
from zsq.actors.settings import options
from zsq.actors.settings.starts import ChannelStart
from zsq.transport.block.block import pack, with_place
from zsq.transport.errors import Refused
from zsq.transport.settings import ChannelSettings
from zsq.transport.wire import protocol as p


class Wire(Routed):
    """A replacement for a port. `answers` are the messages that arrive while the channel opens."""

    def __init__(self, *answers: p.Wire) -> None:
        super().__init__()
        self.answers = list(answers)
        self.sent: list[p.Wire] = []
        self.socket = self

    def poll(self, _: int) -> bool:
        return bool(self.answers)

    def receive(self, limit: int) -> list[Mail]:
        return [Mail((), self.answers.pop(0), []) for _ in range(limit)]

    def send(self, envelope: Any, message: p.Wire, blocks: Any = ()) -> bool:
        self.sent.append(message)
        return True

    def descriptor(self) -> int:
        return 9

    def take(self) -> list[p.Wire]:
        found, self.sent = self.sent, []
        return found


class Shell:
    """A channel actor at offset 5 of 20. It holds 2 messages from offset 2 for redelivery."""

    def __init__(self, start: int, name: str = "c") -> None:
        row = {"next": 5, "paused": False, "counters": {}}
        data = {
            "row": row,
            "end": 20,
            "start": start,
            "deferred": (0, 0, 0),
            "holes": ((2, 2, 1, 0),),
            "more": False,
            "gaps": (),
        }
        self.wires = {
            "storage": Wire(p.Done(1, data)),
            "topic": Wire(),
            "scan": Wire(),
            "front": Wire(),
            "supervisor": Wire(),
        }
        given = ChannelStart(
            channel=name, closed=False, front="front", topic="topic", storage="storage", scan="scan"
        )
        self.channel = ChannelActor(7, f"channel t/{name}", given)
        parts: dict[str, Any] = {
            "open_dealer": self.wires.__getitem__,
            "open_router": self.wires.__getitem__,
            "supervisor": self.wires["supervisor"],
            "ends": SimpleNamespace(note=lambda peer, descriptor: None),
        }
        vars(self.channel).update(parts)
        self.channel.on_start()

    def hear(self, name: str, message: p.Wire, who: tuple[bytes, ...] = ()) -> None:
        self.wires[name].hear(message, who)

    def turn(self, name: str) -> list[p.Wire]:
        self.channel.on_turn()
        return self.wires[name].take()


@pytest.mark.parametrize(("start", "following", "dropped"), [(0, 5, 0), (3, 5, 1), (10, 10, 7)])
def test_messages_removed_before_the_start_are_skipped_and_counted(
    start: int, following: int, dropped: int
) -> None:
    shell = Shell(start)
    saves = [message for message in shell.turn("storage") if isinstance(message, p.Save)]
    assert [save.row["next"] for save in saves] == [following]
    assert shell.channel.core.counters["dropped_count"] == dropped


def test_a_channel_does_not_wait_for_dropped_messages() -> None:
    """The topic was going to send all blocks. When messages beyond the channel's position are
    dropped, the channel must read the following blocks from storage, because the topic does not
    send them again.
    """
    shell = Shell(0)
    shell.hear("front", p.Sub(1, p.PROTOCOL_VERSION, 5, 0, 30_000, "test"), A)
    assert any(isinstance(message, p.Attach) for message in shell.turn("topic"))
    shell.wires["storage"].take()
    assert p.Dropped not in shell.wires["topic"].routes, "only storage says so"
    shell.hear("storage", p.Dropped(4))
    assert shell.channel.feed.state is FeedState.ATTACHED, "it is farther on already"
    shell.hear("storage", p.Dropped(12))
    assert [
        message.offset for message in shell.turn("storage") if isinstance(message, p.Fetch)
    ] == [12]


@pytest.mark.parametrize(("start", "dropped"), [(4, 0), (5, 0), (12, 7)])
def test_a_seek_to_removed_messages_is_answered_with_the_real_place(
    start: int, dropped: int
) -> None:
    """Storage removes the messages before it commits the seek. So its report of the removal arrives
    before its answer to the commit. Messages that the channel had already passed do not count as
    dropped.
    """
    shell = Shell(0)
    shell.turn("storage")
    shell.hear("supervisor", p.Seek(9, 3, 0, 20, clamp=False, forward=False))
    shell.hear("storage", p.Done(shell.channel.commits.out, {}))  # the answer to the first commit
    (save,) = [message for message in shell.turn("storage") if isinstance(message, p.Save)]
    assert save.row["next"] == 3
    shell.hear("storage", p.Dropped(start))
    shell.wires["supervisor"].take()
    shell.hear("storage", p.Done(save.request, {}))
    assert shell.wires["supervisor"].take() == [p.Position(9, start)]
    assert shell.channel.core.supply.next_offset == start
    assert shell.channel.core.counters["dropped_count"] == dropped


def test_a_seek_holds_deliveries_until_it_is_committed_and_is_answered_then() -> None:
    shell = Shell(0)
    shell.hear("front", p.Sub(1, p.PROTOCOL_VERSION, 100, 0, 30_000, "test"), A)
    shell.turn("storage")
    shell.hear("supervisor", p.Seek(9, 0, 0, 20, clamp=False, forward=False))
    offered(shell, 3, b"x")
    assert not [message for message in shell.turn("front") if isinstance(message, p.Deliver)]
    # The answer to the commit before the seek.
    shell.hear("storage", p.Done(shell.channel.commits.out, {}))
    assert not [message for message in shell.turn("front") if isinstance(message, p.Deliver)]
    shell.wires["supervisor"].take()
    shell.hear("storage", p.Done(shell.channel.commits.out, {}))
    assert shell.wires["supervisor"].take() == [p.Position(9, 0)]
    assert [message.runs for message in shell.turn("front") if isinstance(message, p.Deliver)] == [
        ((0, 1, 1),),
        ((1, 1, 1),),
        ((2, 1, 1),),
    ]


def test_a_held_channel_gives_out_nothing_and_goes_on_by_itself_if_it_is_not_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = Shell(0)
    now = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    shell.hear("front", p.Sub(1, p.PROTOCOL_VERSION, 100, 0, 30_000, "test"), A)
    shell.turn("storage")
    shell.hear("supervisor", p.Hold(9, is_over=False))
    offered(shell, 1, b"x")
    assert not [message for message in shell.turn("front") if isinstance(message, p.Deliver)]
    assert shell.wires["supervisor"].take() == [p.Done(9, {})]
    now += options.HOLD_MS * 1_000_000 - 1
    assert not [message for message in shell.turn("front") if isinstance(message, p.Deliver)]
    now += 1
    assert [message for message in shell.turn("front") if isinstance(message, p.Deliver)]
    assert shell.wires["supervisor"].take() == []


def offered(shell: Shell, count: int, tag: bytes) -> None:
    """Offer `count` blocks of one message each."""
    for _ in range(count):
        supply = shell.channel.supply
        assert supply.offer(with_place(pack([b"x"], tags=[tag]), supply.window_end, 0))


@pytest.mark.parametrize(
    ("limit", "tag", "sent"), [("LOOKS_MAX", b"other", 0), ("DRAIN_MAX", b"mine", 30)]
)
def test_work_beyond_the_limit_of_a_turn_is_done_in_the_next_turn(
    limit: str, tag: bytes, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel must not wait between the turns, whether it skips messages that it does not want
    or delivers messages. Between two turns it processes what has arrived.
    """
    monkeypatch.setattr(options, limit, 10)
    monkeypatch.setattr(options, "LOOK_BLOCK", 0)
    monkeypatch.setattr(options, "GATHER_COUNT_MAX", 1)
    shell = Shell(0)
    shell.channel.core.configure(ChannelSettings(tags="mine" if limit == "LOOKS_MAX" else ""))
    shell.hear("front", p.Sub(1, p.PROTOCOL_VERSION, 100, 0, 30_000, "test"), A)
    offered(shell, 30, tag)
    shell.wires["front"].take()
    deliveries: list[p.Wire] = []
    shell.channel.every(60_000, lambda: None)
    for turn in range(1, 5):
        deliveries += [message for message in shell.turn("front") if isinstance(message, p.Deliver)]
        if shell.channel._wait_ms():
            break
        assert shell.channel.supply.next_offset == 5 + 10 * turn
    assert turn == 4
    assert (shell.channel.supply.next_offset, len(deliveries)) == (35, sent)


def test_an_ephemeral_channel_without_consumers_is_over_and_takes_none() -> None:
    shell = Shell(0, "c#ephemeral")
    sub = p.Sub(2, p.PROTOCOL_VERSION, 0, 0, p.HEARTBEAT_MS, "")
    shell.hear("front", sub, (b"one",))
    assert shell.turn("supervisor") == []
    shell.hear("front", p.Bye(), (b"one",))
    shell.hear("front", sub, (b"two",))
    assert shell.turn("supervisor") == [], "another came in the same turn"
    shell.hear("front", p.Bye(), (b"two",))
    assert shell.turn("supervisor") == [p.Over(7)]
    with pytest.raises(Refused, match="E_CLOSING"):
        shell.hear("front", sub, (b"three",))
    assert shell.turn("supervisor") == [], "not in each turn"


def test_another_channel_is_never_over() -> None:
    shell = Shell(0)
    shell.hear("front", p.Sub(2, p.PROTOCOL_VERSION, 0, 0, p.HEARTBEAT_MS, ""), (b"one",))
    shell.hear("front", p.Bye(), (b"one",))
    assert shell.turn("supervisor") == []


def test_a_channel_ends_when_memory_changes_too_many_of_its_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "CORRUPT_MAX", 2)
    now = [1]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    channel = Shell(0).channel

    def found() -> None:
        channel.supply.corrupt_count += 1
        channel._found_corrupt()

    for _ in range(3):
        found()
    now[0] += options.CORRUPT_S * 1_000_000_000
    for _ in range(3):
        found()
    with pytest.raises(RuntimeError, match="2 blocks changed in memory within"):
        found()


@pytest.mark.parametrize("look_ms", [0.0, 100.0])
def test_a_barrier_needs_no_commit_of_its_own_if_nothing_changed_since_the_last_one(
    look_ms: float,
) -> None:
    """A consumer asks for a confirmation once a second. While another broker may take over, only a
    new commit says whether finishes may be confirmed.
    """
    shell = Shell(0)
    shell.channel.acks.look_ms = look_ms
    shell.hear("front", p.Sub(1, p.PROTOCOL_VERSION, 5, 0, 30_000, "test"), A)
    (first,) = [message for message in shell.turn("storage") if isinstance(message, p.Save)]
    shell.wires["front"].take()
    shell.hear("front", p.Fin(2, 0, ()), A)
    assert shell.turn("front") == [], "the first commit is still under way"
    shell.hear("storage", p.Done(first.request, {}))
    (second,) = [message for message in shell.turn("storage") if isinstance(message, p.Save)]
    shell.hear("storage", p.Done(second.request, {}))
    assert shell.turn("front") == [p.Answer(2, 0, ())]
    shell.wires["storage"].take()
    shell.hear("front", p.Fin(3, 0, ()), A)
    assert shell.wires["front"].take() == ([] if look_ms else [p.Answer(3, 0, ())])
    saves = [message for message in shell.turn("storage") if isinstance(message, p.Save)]
    assert len(saves) == (1 if look_ms else 0)

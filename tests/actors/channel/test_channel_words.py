"""Tests of the channel actor: which answers of storage it accepts, which consumers it removes when
a gateway ends, and how many reads it requests.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from support.stage_bench import A

from tests.actors.channel.test_channel_actor import Shell
from zsq.actors.channel.feed import FeedState
from zsq.actors.settings import options
from zsq.transport.block.block import Block, pack, with_place
from zsq.transport.errors import UsageError
from zsq.transport.wire import protocol as p
from zsq.transport.wire.admin_requests import END


def sub(ready: int = 5) -> p.Sub:
    return p.Sub(1, p.PROTOCOL_VERSION, ready, 0, 30_000, "test")


@pytest.fixture
def shell() -> Shell:
    """Return a channel actor with one consumer and no commit in progress."""
    found = Shell(0)
    settle(found)
    found.hear("front", sub(), A)
    found.wires["front"].take()
    return found


def settle(shell: Shell) -> None:
    """Answer commits until nothing is left to commit."""
    for _ in range(3):
        shell.channel.on_turn()
        if shell.channel.commits.out:
            shell.hear("storage", p.Done(shell.channel.commits.out, {}))
    assert not shell.channel.commits.out


def held(shell: Shell, count: int) -> p.Deliver:
    """Publish `count` messages and return the delivery with which the consumer gets them."""
    supply = shell.channel.supply
    assert supply.offer(with_place(pack([b"x"] * count), supply.window_end, 0))
    found = [message for message in shell.turn("front") if isinstance(message, p.Deliver)]
    settle(shell)
    return found[-1]


def test_a_finish_needs_its_lease_and_a_barrier_needs_none(shell: Shell) -> None:
    deliver = held(shell, 3)
    offset = deliver.runs[0][0]
    shell.hear("front", p.Fin(0, deliver.token + 1, ((offset, 1),)), A)
    (refused,) = shell.wires["front"].take()
    assert isinstance(refused, p.Answer)
    assert refused.refused
    shell.hear("front", p.Fin(0, deliver.token, ((offset, 1),)), A)
    assert shell.wires["front"].take() == [], "it holds"
    shell.hear("front", p.Fin(5, 0, ()), A)
    settle(shell)
    answers = [message for message in shell.wires["front"].take() if isinstance(message, p.Answer)]
    assert answers == [p.Answer(5, 0, ())]


def test_only_the_commit_that_is_out_confirms(shell: Shell) -> None:
    deliver = held(shell, 1)
    shell.hear("front", p.Fin(5, deliver.token, ((deliver.runs[0][0], 1),)), A)
    shell.turn("storage")
    out = shell.channel.commits.out
    assert out
    shell.hear("storage", p.Done(out + 1_000, {}))
    assert shell.wires["front"].take() == []
    shell.hear("storage", p.Done(out, {}))
    assert shell.wires["front"].take() == [p.Answer(5, deliver.token, ())]


def test_a_commit_that_storage_refuses_ends_the_channel_and_no_other_answer_does(
    shell: Shell,
) -> None:
    deliver = held(shell, 1)
    shell.hear("front", p.Fin(5, deliver.token, ((deliver.runs[0][0], 1),)), A)
    shell.turn("storage")
    shell.hear("storage", p.Failed(shell.channel.commits.out + 1_000, "E_X", "why"))
    with pytest.raises(RuntimeError, match="why"):
        shell.hear("storage", p.Failed(shell.channel.commits.out, "E_X", "why"))


def test_a_block_that_cannot_be_read_is_lost_alone(shell: Shell) -> None:
    lost: list[tuple[int, int]] = []
    vars(shell.channel.core)["supply"] = SimpleNamespace(
        lost=lambda *run: lost.append(run), deferred=shell.channel.supply.deferred
    )
    shell.channel._fetches[77] = 3
    shell.hear("storage", p.Failed(78, "E_X", "why"))
    assert (lost, shell.channel._fetches) == ([], {77: 3})
    shell.hear("storage", p.Failed(77, "E_X", "why"))
    assert (lost, shell.channel._fetches) == ([(3, 4)], {})


def test_consumers_behind_a_gateway_are_removed_with_it(shell: Shell) -> None:
    for peer in ((b"gate", b"1"), (b"gate", b"2"), (b"other", b"1")):
        shell.hear("front", sub(), peer)
    shell.channel.on_gone("gate")
    assert {*shell.channel.core.consumers} == {A, (b"other", b"1")}


def test_the_number_of_reads_for_redelivery_is_bounded(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "FETCHES_MAX", 3)
    monkeypatch.setattr(
        type(shell.channel.supply),
        "wanted",
        property(lambda self: set(range(10, 20))),
        raising=False,
    )
    shell.channel._ask_for_blocks()
    asked = {
        message.offset for message in shell.wires["storage"].take() if isinstance(message, p.Fetch)
    }
    assert len(asked & set(range(10, 20))) == 3
    shell.channel._ask_for_blocks()
    assert not [
        message
        for message in shell.wires["storage"].take()
        if isinstance(message, p.Fetch) and message.offset >= 10
    ]


def blocks_word(
    shell: Shell, request: int, first: int, count: int, head: int
) -> tuple[p.Blocks, list[Block]]:
    return p.Blocks(request, 0, head, first + count), [with_place(pack([b"x"] * count), first, 0)]


@pytest.mark.parametrize(("head", "reached"), [(8, True), (9, False)])
def test_a_reader_that_has_reached_the_head_goes_back_to_the_topics_hands(
    shell: Shell, head: int, reached: bool
) -> None:
    shell.turn("topic")
    shell.channel.feed.behind()
    (fetch,) = [
        message
        for message in shell.turn("storage")
        if isinstance(message, p.Fetch) and message.offset == 5
    ]
    message, blocks = blocks_word(shell, fetch.request, 5, 3, head)
    frames: list[Any] = [
        frame for block in blocks for frame in (block.wire_header(), block.payload)
    ]
    shell.wires["storage"].hear(message, (), frames)
    assert shell.channel.supply.window_end == 8
    assert (shell.channel.feed.state is not FeedState.READING) or not reached
    asks = [
        type(message)
        for name in ("topic", "storage")
        for message in (shell.turn(name) if name == "topic" else shell.wires[name].take())
    ]
    assert (p.Attach in asks) is reached


@pytest.mark.parametrize(
    ("offset", "forward", "following"),
    [(4, True, 5), (6, True, 6), (3, False, 3), (20, False, 20), (END, False, 20), (0, False, 1)],
)
def test_a_seek_stays_within_the_log_and_with_forward_goes_on_only(
    shell: Shell, offset: int, forward: bool, following: int
) -> None:
    def seek(to: int, *, clamp: bool = False) -> int:
        shell.channel.seek(p.Seek(1, to, 1, 20, clamp, forward and not clamp))
        return shell.channel.supply.next_offset

    assert seek(offset) == following
    with pytest.raises(
        UsageError, match=r"21 is beyond the end of topic .* at offset 20: channel .* would skip"
    ):
        seek(21)
    assert shell.channel.supply.next_offset == following
    assert seek(21, clamp=True) == 20


def test_dead_letters_on_their_way_are_waited_for_a_while(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    monkeypatch.setattr(type(shell.channel.dead_letters), "sending", True, raising=False)
    shell.channel.commits.now = False
    shell.channel.supply.dirty = False
    assert not shell.channel.on_stop()
    now += int(options.DEAD_STOP_S * 1e9) - 1
    assert not shell.channel.on_stop()
    now += 1
    assert shell.channel.on_stop()

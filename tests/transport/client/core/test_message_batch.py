"""Tests of which messages form a batch, and of the halves of one that fails."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zsq
from zsq.transport.client.core.message_batch import (
    HALVING_FAILURES_MAX,
    BatchGathering,
    BatchLimits,
    Halving,
    MessageBatch,
    limits_of,
)
from zsq.transport.errors import UsageError

S: Final = 1_000_000_000


def message(size: int = 1, answered: bool = False) -> Any:
    return SimpleNamespace(body=b"x" * size, answered=answered, offset=7)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 0.2, None, None), "batch must be 1 to 100000, not 0"),
        ((101, 0.2, None, 100), "batch must be 1 to 100, the consumer's `ready`, not 101"),
        (("5", 0.2, None, None), "batch must be a whole number"),
        ((5, -1, None, None), "batch_wait must be 0 or more seconds"),
        ((5, float("inf"), None, None), "batch_wait must be 0 or more seconds"),
        ((5, "1", None, None), "batch_wait must be 0 or more seconds, not '1'"),
        ((5, 0.2, 0, None), "batch_bytes must be at least 1"),
    ],
)
def test_limits_that_make_no_sense_are_refused(arguments: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        limits_of(*arguments)


def test_halving_and_a_size_need_batches() -> None:
    assert limits_of(None, 0.2, None, None) is None
    with pytest.raises(UsageError, match="halving needs batch"):
        limits_of(None, 0.2, None, None, halving=True)
    with pytest.raises(UsageError, match="batch_bytes needs batch"):
        limits_of(None, 0.2, 100, None)


def test_a_batch_is_complete_by_count_by_bytes_or_by_time() -> None:
    by_count = BatchGathering[Any](BatchLimits(2, 100, S))
    for now_ns in (5, 6):
        assert not by_count.is_complete(now_ns)
        assert by_count.has_room(message())
        by_count.add(message(), now_ns)
    assert by_count.is_complete(6)
    by_bytes = BatchGathering[Any](BatchLimits(10, 100, S))
    by_bytes.add(message(60), 0)
    assert by_bytes.has_room(message(40))
    assert not by_bytes.has_room(message(41)), "it goes into the next batch"
    assert by_bytes.is_complete(0)
    by_time = BatchGathering[Any](BatchLimits(10, 100, S))
    assert not by_time.is_complete(1 << 60), "the wait begins with the first message"
    by_time.add(message(), 5)
    assert [by_time.is_complete(S + 4), by_time.is_complete(S + 5)] == [False, True]


def test_a_message_larger_than_a_batch_is_one_of_its_own() -> None:
    gathering = BatchGathering[Any](BatchLimits(10, 100, S))
    assert gathering.has_room(message(500))
    gathering.add(message(500), 0)
    assert gathering.is_complete(0)


def test_a_message_fails_alone_and_only_a_message_of_the_batch_can() -> None:
    messages = [message(), message(), message()]
    batch = MessageBatch(messages)
    batch.fail(messages[1], "late")
    batch.fail(messages[2], ValueError("bad"))
    (first, why), (second, error) = batch.failed
    assert (first, repr(why)) == (messages[1], "MessageFailed('late')")
    assert isinstance(why, zsq.MessageFailed)
    assert (second, repr(error)) == (messages[2], "ValueError('bad')")
    with pytest.raises(UsageError, match="no message of this batch"):
        batch.fail(message())
    with pytest.raises(UsageError, match="error must be a text or an exception"):
        batch.fail(messages[0], 5)  # type: ignore[arg-type]
    messages[0].answered = True
    with pytest.raises(UsageError, match="message 7 is already answered"):
        batch.fail(messages[0])
    messages[1].answered = True
    assert [failed for failed, _ in batch.failed] == [messages[2]]
    assert (len(batch), batch[0], list(batch[1:])) == (3, messages[0], messages[1:])
    assert batch.bodies == [b"x"] * 3


def halved(count: int, bad: set[int]) -> tuple[list[Sequence[int]], list[int], list[int]]:
    """Return the calls, the messages that were handled, and those that were requeued."""
    halving = Halving[Any](range(count), halves=True)
    calls: list[Sequence[int]] = []
    handled: list[int] = []
    requeued: list[int] = []
    while (part := halving.next()) is not None:
        calls.append(part)
        if bad.intersection(part):
            requeued += halving.failed(part)
        else:
            handled += part
            halving.succeeded()
    return calls, handled, requeued


def test_halving_finds_the_message_that_fails() -> None:
    calls, handled, requeued = halved(500, {123})
    assert requeued == [123]
    assert sorted(handled) == [number for number in range(500) if number != 123]
    assert len(calls) <= 2 * 9 + 1, "two calls for each halving"


def test_halving_ends_when_everything_fails() -> None:
    calls, handled, requeued = halved(500, set(range(500)))
    assert (len(calls), handled) == (HALVING_FAILURES_MAX, [])
    assert sorted(requeued) == list(range(500))


def test_without_halving_a_batch_fails_as_a_whole() -> None:
    halving = Halving[Any](range(4), halves=False)
    part = halving.next()
    assert part is not None
    assert halving.failed(part) == [0, 1, 2, 3]
    assert halving.next() is None


@given(st.integers(1, 200), st.sets(st.integers(0, 199), max_size=3))
def test_each_message_is_handled_or_requeued_once(count: int, bad: set[int]) -> None:
    bad = {number for number in bad if number < count}
    _, handled, requeued = halved(count, bad)
    assert sorted([*handled, *requeued]) == list(range(count))
    assert sorted(requeued) == sorted(bad)


@given(
    st.integers(1, 10),
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, S)), max_size=60),
)
def test_a_batch_keeps_its_limits_and_the_order(
    count: int, size: int, arrivals: list[tuple[int, int]]
) -> None:
    limits, now_ns = BatchLimits(count, size, S), 0
    batches, gathering = [], BatchGathering[Any](limits)
    sent = [message(length) for length, _ in arrivals]
    for one, (_, pause_ns) in zip(sent, arrivals, strict=True):
        now_ns += pause_ns
        if gathering.messages and (gathering.is_complete(now_ns) or not gathering.has_room(one)):
            assert gathering.is_complete(now_ns)
            batches.append(gathering.messages)
            gathering = BatchGathering[Any](limits)
        assert gathering.has_room(one)
        gathering.add(one, now_ns)
    batches.append(gathering.messages)
    assert [one for batch in batches for one in batch] == sent
    for batch in batches:
        assert len(batch) <= count
        assert len(batch) == 1 or sum(len(one.body) for one in batch) <= size or not batch
